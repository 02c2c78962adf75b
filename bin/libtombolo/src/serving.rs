//! The services of a process, and the thread in which each is served.

use crate::failure;
use crate::offering::daemon_refused;
use crate::service_calls::{Plain, Queue};
use rustix::io::Errno;
use service::{Call as Asking, Error, ServeError, Service, Stream};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use sys::channel_abi::{Failure, Handle, Outcome};
use sys::service_abi::{Call, Declared};

/// All services of this process.
#[derive(Debug)]
pub struct ServiceTable(pub Mutex<Held>);

#[derive(Debug)]
pub struct Held {
    pub last: Handle,
    pub all: BTreeMap<Handle, Arc<One>>,
}

impl ServiceTable {
    pub const fn new() -> Self {
        Self(Mutex::new(Held { last: 0, all: BTreeMap::new() }))
    }
}

/// A file as it was declared.
#[derive(Debug, Clone)]
pub struct Declaration {
    pub name: String,
    pub verb: String,
    pub declared: Declared,
}

/// One service.
#[derive(Debug)]
pub struct One {
    pub name: String,
    /// The process that made it.
    pub process: u32,
    pub phase: Mutex<Phase>,
    pub queue: Arc<Queue>,
}

pub enum Phase {
    Declaring(Vec<Declaration>),
    Started { streams: Vec<Option<Stream>>, stop: service::Handle, thread: JoinHandle<()> },
    Closed,
}

impl std::fmt::Debug for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Declaring(_) => "Declaring",
            Self::Started { .. } => "Started",
            Self::Closed => "Closed",
        })
    }
}

/// Why a service is not served, with the errno that fits.
fn refused(error: &Error, otherwise: Option<Errno>) -> Failure {
    match error {
        Error::Declaration { .. } => failure::of(Some(Errno::INVAL), error),
        Error::Serve(ServeError::Control(control)) if otherwise.is_none() => {
            daemon_refused(control, Errno::ADDRINUSE)
        }
        _ => failure::of(otherwise, error),
    }
}

/// Declares a file to the crate that serves it; the stream, where it is one.
fn declare(service: &mut Service<()>, file: i32, one: Declaration, queue: &Arc<Queue>) -> Option<Stream> {
    let Declaration { name, verb, declared } = one;
    let asked = |kind: u32| {
        let queue = Arc::clone(queue);
        move |_: &mut (), asking: &mut Asking<'_>, bytes: &[u8]| {
            queue.ask(asking, bytes, |plain| Plain { file, kind, ..plain })
        }
    };
    match declared {
        Declared::Text => {
            let read = asked(Call::READ);
            service.text(&name, &verb, move |state, asking| read(state, asking, &[]));
        }
        Declared::Control { readable, idempotent } => {
            let control = service.control(&name, &verb, asked(Call::WRITE)).idempotent(idempotent);
            if readable {
                let read = asked(Call::READ);
                control.read(move |state, asking, _size| read(state, asking, &[]));
            }
        }
        Declared::Session { ioctl, idempotent } => {
            let session = service.session(&name, &verb, asked(Call::WRITE)).idempotent(idempotent);
            let (opens, closes) = (Arc::clone(queue), Arc::clone(queue));
            session.opened(move |(), asking| {
                opens.opened(asking.session());
                Ok(())
            });
            session.closed(move |(), asking| closes.closed(asking.session()));
            if ioctl {
                let queue = Arc::clone(queue);
                session.ioctl(move |(), asking: &mut Asking<'_>, number, data: &[u8]| {
                    queue.ask(asking, data, |plain| Plain { file, kind: Call::IOCTL, number, ..plain })
                });
            }
        }
        Declared::Stream { options, exchange } => {
            let standard = service::StreamOptions::default();
            let or = |asked: u64, standard: usize| match usize::try_from(asked) {
                Ok(0) => standard,
                asked => asked.unwrap_or(usize::MAX),
            };
            let options = service::StreamOptions {
                history: or(options.history, standard.history),
                history_bytes: or(options.history_bytes, standard.history_bytes),
                replay: options.replay != 0,
                numbered: false,
            };
            return Some(if exchange {
                let queue = Arc::clone(queue);
                service.exchange(&name, &verb, options, move |(), asking: &mut Asking<'_>, record| {
                    let kind = Call::WRITE;
                    queue.ask(asking, record, |plain| Plain { file, kind, is_record: true, ..plain })
                })
            } else {
                service.stream(&name, &verb, options)
            });
        }
    }
    None
}

/// The first message of the thread that serves.
pub type Begun = Outcome<(Vec<Option<Stream>>, service::Handle)>;

/// Ends a queue whose thread has ended without saying why.
struct EndOnPanic<'q>(&'q Queue);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        self.0.end(failure::failure(
            Errno::NOTRECOVERABLE,
            "a defect of libtombolo ended the service's thread",
        ));
    }
}

/// The thread of a service.
pub fn serve(name: &str, files: Vec<Declaration>, queue: &Arc<Queue>, begun: &mpsc::SyncSender<Begun>) {
    let offered = Service::new(name, ()).map_err(|error| refused(&error, None)).and_then(|mut service| {
        let files = files.into_iter().zip(0..);
        let streams = files.map(|(one, file)| declare(&mut service, file, one, queue)).collect();
        let stop = service.handle();
        let offered = service.offer().map_err(|error| refused(&error, None))?;
        Ok((offered, streams, stop))
    });
    let offered = match offered {
        Ok((offered, streams, stop)) => {
            // The caller of tombolo_service_start() waits for this.
            let _ = begun.send(Ok((streams, stop)));
            offered
        }
        Err(failure) => {
            let _ = begun.send(Err(failure));
            return;
        }
    };
    // A defect that ends this thread is told to those who wait for calls, too.
    let _end = EndOnPanic(queue);
    queue.end(match offered.run() {
        Ok(()) => failure::failure(Errno::SHUTDOWN, "the service is closed"),
        Err(error) => refused(&error, Some(Errno::SHUTDOWN)),
    });
}
