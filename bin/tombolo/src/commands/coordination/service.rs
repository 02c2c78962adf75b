//! The folder of a coordination service, as a domain sees it.

use super::KIND;
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use terminal::Failure;

/// Where a domain's services are, and where it is said which there are.
const SERVICES: &str = "/srv";
const LIST: &str = "/srv/self/services";
/// Longest answer of `ctl`: as much as a server answers.
const ANSWER_BYTES: u64 = wire::service::MAX_ANSWER_BYTES as u64 + 1;

/// The folder with `kv`, `locks`, `semaphores`, `ctl`, `watch` and `status`.
pub struct Folder(PathBuf);

impl Folder {
    /// The service of this name, or the only one.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn find(name: Option<&str>) -> Result<Self, Failure> {
        let text =
            fs::read_to_string(LIST).map_err(|error| Failure::new(format!("can't read {LIST}: {error}")))?;
        let found = find(&text, name);
        match found.as_slice() {
            [(_, at)] => Ok(Self(Path::new(SERVICES).join(at))),
            [] => Err(Failure::new("this domain has no such service of kind \"coordination\"")
                .help(format!("{LIST} lists what it has"))),
            several => {
                let names: Vec<&str> = several.iter().map(|(name, _)| *name).collect();
                Err(Failure::misuse("say which service, by --service")
                    .help(format!("there are: {}", names.join(", "))))
            }
        }
    }

    /// A path in it.
    pub fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
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
        let mut ctl = OpenOptions::new().read(true).write(true).open(self.at("ctl"))?;
        ctl.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = Vec::new();
        ctl.take(ANSWER_BYTES).read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// Names and folders of services of our kind, in the lines `NAME KIND AT STATE VERBS`.
fn find<'t>(text: &'t str, name: Option<&str>) -> Vec<(&'t str, &'t str)> {
    let one = |line: &'t str| {
        let mut words = line.split(' ');
        let (this, kind, at) = (words.next()?, words.next()?, words.next()?);
        (kind == KIND && name.is_none_or(|name| name == this)).then_some((this, at))
    };
    text.lines().filter_map(one).collect()
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
    fn the_service_is_found_by_its_kind_and_its_name() {
        let text = "dns directory dns up resolve\nsync coordination sync up observe\nother coordination o/p down observe\n";
        assert_eq!(find(text, None), [("sync", "sync"), ("other", "o/p")]);
        assert_eq!(find(text, Some("other")), [("other", "o/p")]);
        assert_eq!(find(text, Some("dns")), []);
        assert_eq!(find("torn\n\n", None), []);
    }

    #[test]
    fn errnos_have_words() {
        let stale = refused("kv/n", &Errno::STALE.into());
        assert_eq!(stale.message, "kv/n: it has another revision: somebody was faster");
        assert!(refused("kv/n", &Errno::IO.into()).message.starts_with("kv/n: "));
    }
}
