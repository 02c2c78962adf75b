//! Becoming an endpoint of the distributed container, and ending that.

use std::path::PathBuf;
use std::time::Instant;

use rustix::io::Errno;
use session::{Control, ControlError};

use super::{ANSWER_TIMEOUT, Member, NAME_BYTES_MAX, RETRY, of_wire};
use crate::{Endpoint, Failed, Options};

/// Why a program did not become an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// There is no daemon to ask.
    #[error("can't reach the node's daemon")]
    NoDaemon(#[source] ControlError),
    /// The topology has no endpoint of this name that this domain may bind.
    #[error("{message}")]
    Unknown {
        /// The daemon's message.
        message: String,
    },
    /// Another program has bound the name.
    #[error("{message}")]
    Busy {
        /// The daemon's message.
        message: String,
    },
    /// The topology does not let this program bind it.
    #[error("{message}")]
    NotAllowed {
        /// The daemon's message.
        message: String,
    },
    /// As many endpoints as there may be are there.
    #[error("{message}")]
    Limit {
        /// The daemon's message: it names the key of the topology file.
        message: String,
    },
    /// Refused for another reason.
    #[error("{message}")]
    Refused {
        /// The errno that fits.
        errno: i32,
        /// The daemon's message.
        message: String,
    },
    /// The time was over first.
    #[error("the endpoint could not be bound in time{}", .last.as_ref().map(|last| format!(": {last}")).unwrap_or_default())]
    TimedOut {
        /// The last obstacle.
        last: Option<String>,
    },
}

impl BindError {
    fn of(error: ControlError) -> BindError {
        let ControlError::Refused { errno, message } = error else {
            return match error {
                ControlError::Deadline => BindError::TimedOut { last: None },
                error => BindError::NoDaemon(error),
            };
        };
        match Errno::from_raw_os_error(errno) {
            Errno::NOENT => BindError::Unknown { message },
            Errno::BUSY => BindError::Busy { message },
            Errno::PERM | Errno::ACCESS => BindError::NotAllowed { message },
            Errno::USERS | Errno::MFILE | Errno::NOSPC => BindError::Limit { message },
            _ => BindError::Refused { errno, message },
        }
    }

    /// Whether waiting may help: there is no daemon yet, it goes, or the program that has bound the
    /// name goes.
    fn may_pass(&self) -> bool {
        match self {
            BindError::Busy { .. } => true,
            BindError::NoDaemon(error) => error.is_gone(),
            BindError::Refused { errno, .. } => *errno == Errno::AGAIN.raw_os_error(),
            _ => false,
        }
    }
}

/// The daemon introduces a bound endpoint to others.
impl Endpoint {
    /// Becomes the endpoint of this name, or one without a name, which calls others and is called
    /// by nobody whom it does not know. The daemon has to be there.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(name: Option<&str>, options: &Options) -> Result<Endpoint, Failed<BindError>> {
        let control = Control::connect(&path(options)).map_err(BindError::of).map_err(Failed::Call)?;
        bind_over(control, name, options, Instant::now() + ANSWER_TIMEOUT)
    }

    /// The same, and waits until the daemon is there, and until no other program has the name.
    /// Without a deadline it waits as long as it takes.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind_by(
        name: Option<&str>,
        options: &Options,
        deadline: Option<Instant>,
    ) -> Result<Endpoint, Failed<BindError>> {
        let mut last = None;
        loop {
            let path = path(options);
            let control = Control::connect_when_there(&path, deadline).map_err(|error| match error {
                ControlError::Deadline => {
                    let last = format!("nobody listens at {}: is the node's daemon running?", path.display());
                    Failed::Call(BindError::TimedOut { last: Some(last) })
                }
                error => Failed::Call(BindError::of(error)),
            })?;
            let patience = Instant::now() + ANSWER_TIMEOUT;
            let answer_by = deadline.map_or(patience, |deadline| deadline.min(patience));
            let error = match bind_over(control, name, options, answer_by) {
                Err(Failed::Call(error)) if error.may_pass() => error,
                Err(Failed::Call(BindError::TimedOut { .. })) => {
                    let last = last.unwrap_or_else(|| "the node's daemon does not answer".to_owned());
                    return Err(Failed::Call(BindError::TimedOut { last: Some(last) }));
                }
                bound => return bound,
            };
            last = Some(super::with_cause(&error));
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Failed::Call(BindError::TimedOut { last }));
            }
            let until = deadline.map_or(now + RETRY, |deadline| deadline.min(now + RETRY));
            // tidy(sleep): nobody tells when another program's name is free.
            std::thread::sleep(until - now);
        }
    }

    /// Ends the endpoint, and waits until the daemon knows. Dropping it ends it as well.
    ///
    /// # Errors
    /// [`Failed::Daemon`]: the endpoint has ended all the same, with its connection.
    pub fn unbind(mut self) -> Result<(), Failed<BindError>> {
        self.check_here()?;
        self.show_held();
        match &mut self.member {
            Some(member) => match member.unbind() {
                Err(error) if !error.is_gone() => Err(Failed::Daemon(error)),
                _ => Ok(()),
            },
            None => Ok(()),
        }
    }
}

/// Becomes a backup of the endpoint of this name.
pub(crate) fn bind_backup(name: &str, options: &Options) -> Result<Endpoint, Failed<BindError>> {
    let mut control = Control::connect(&path(options)).map_err(BindError::of).map_err(Failed::Call)?;
    check_length(name)?;
    let bound = control.back(name, Instant::now() + ANSWER_TIMEOUT);
    let bound = bound.map_err(BindError::of).map_err(Failed::Call)?;
    let mut endpoint = Endpoint::new(of_wire(bound.address), None, options)?;
    endpoint.member = Some(Member { backs: true, ..Member::new(control, name, bound)? });
    endpoint.take_in()?;
    Ok(endpoint)
}

fn check_length(name: &str) -> Result<(), Failed<BindError>> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let message = format!("no endpoint has a name of more than {NAME_BYTES_MAX} bytes");
    Err(Failed::Call(BindError::Unknown { message }))
}

fn path(options: &Options) -> PathBuf {
    options.control.clone().unwrap_or_else(Control::path)
}

fn bind_over(
    mut control: Control,
    name: Option<&str>,
    options: &Options,
    answer_by: Instant,
) -> Result<Endpoint, Failed<BindError>> {
    let wanted = name.unwrap_or_default();
    check_length(wanted)?;
    let bound = control.bind(wanted, "", answer_by).map_err(BindError::of).map_err(Failed::Call)?;
    let mut endpoint = Endpoint::new(of_wire(bound.address), name.map(str::to_owned), options)?;
    endpoint.member = Some(Member::new(control, wanted, bound)?);
    endpoint.take_in()?;
    Ok(endpoint)
}
