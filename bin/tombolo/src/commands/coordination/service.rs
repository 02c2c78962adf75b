//! The folder of a coordination service, as a domain sees it.

use coordinate::{Sync, Wait};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terminal::Failure;

/// Where a domain's services are, and where it is said which there are.
const SERVICES: &str = "/srv";
const LIST: &str = "/srv/self/services";
/// The folder with `kv`, `locks`, `semaphores`, `ctl`, `watch` and `status`.
pub struct Folder(Sync);

impl Folder {
    /// The service of this name, or the only one.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn find(name: Option<&str>) -> Result<Self, Failure> {
        let text =
            fs::read_to_string(LIST).map_err(|error| Failure::new(format!("can't read {LIST}: {error}")))?;
        let mut found = coordinate::services_in(&text);
        found.retain(|(this, _)| name.is_none_or(|name| name == *this));
        match found.as_slice() {
            [(_, at)] => Ok(Self(Sync::at(Path::new(SERVICES).join(at)))),
            [] => Err(Failure::new("this domain has no such service of kind \"coordination\"")
                .help(format!("{LIST} lists what it has"))),
            several => {
                let names: Vec<&str> = several.iter().map(|(name, _)| *name).collect();
                Err(Failure::misuse("say which service, by --service")
                    .help(format!("there are: {}", names.join(", "))))
            }
        }
    }

    /// The service, as programs use it.
    pub fn sync(&self) -> &Sync {
        &self.0
    }

    /// A path in it.
    pub fn at(&self, path: &str) -> PathBuf {
        self.0.path(path)
    }

    /// Says a line to `ctl`, and returns the whole answer.
    ///
    /// # Errors
    /// The errno of the service.
    pub fn ask(&self, line: &str) -> io::Result<String> {
        if line.contains('\n') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it has a line end: `set` takes it from the standard input",
            ));
        }
        let answer = self.0.ask(line.as_bytes())?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// How long a command waits.
pub fn wait(only_try: bool, timeout: Option<Duration>) -> Wait {
    match timeout {
        _ if only_try => Wait::Not,
        Some(timeout) => Wait::For(timeout),
        None => Wait::Ever,
    }
}

/// Explains that something was not there in time; `else_` says all other errors.
pub fn late(path: &str, timeout: Option<Duration>, error: &io::Error, else_: Failure) -> Failure {
    match (error.kind(), timeout) {
        (io::ErrorKind::TimedOut, Some(timeout)) => Failure::new(format!("{path}: not within {timeout:?}"))
            .help("`tombolo sync ls` shows what is there, and who has what"),
        _ => else_,
    }
}

/// Explains an errno of the service about `what`.
pub fn refused(what: &str, error: &io::Error) -> Failure {
    let why = match Errno::from_io_error(error) {
        Some(Errno::NOENT) => "there is none",
        Some(Errno::STALE) => "it has another revision: somebody was faster",
        Some(Errno::EXIST) => "there is one already",
        Some(Errno::ISDIR) => "it is a folder",
        Some(Errno::FBIG) => "a value has 32 KiB at the most",
        Some(Errno::ACCESS | Errno::PERM) => {
            "the file does not let this domain do that (verbs `observe`, `coordinate`)"
        }
        Some(Errno::NOTEMPTY) => "it is a folder that is not empty",
        Some(Errno::AGAIN) => "the registry does not answer now; try again",
        _ => return Failure::new(format!("{what}: {error}")),
    };
    Failure::new(format!("{what}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_have_words() {
        let stale = refused("kv/n", &Errno::STALE.into());
        assert_eq!(stale.message, "kv/n: it has another revision: somebody was faster");
        assert!(refused("kv/n", &Errno::IO.into()).message.starts_with("kv/n: "));
    }
}
