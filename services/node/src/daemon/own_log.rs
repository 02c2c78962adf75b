//! The log of a daemon that `up` started: kept within bounds for as long as the daemon lives, since
//! domains can cause lines in it.

use crate::base::KEPT;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Size at which the log is set aside, in bytes: it and the one before take twice as much.
pub const MAX_LOG_BYTES: u64 = 16 << 20;
/// How often its size is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// Looks after the log in `path` for as long as this is polled, if the standard error is that file.
pub(crate) async fn look_after(path: &Path) {
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        ticks.tick().await;
        let log = path.to_owned();
        let look = move || bound(&log, MAX_LOG_BYTES, std::io::stderr().as_fd(), rustix::stdio::dup2_stderr);
        let looked = KEPT.run(look).await.and_then(|looked| looked.map_err(|error| error.to_string()));
        if let Err(error) = looked {
            tracing::warn!(path = %path.display(), error, "the daemon's log can't be set aside");
        }
    }
}

/// Sets the log aside if `out` is that file and has more than `most` bytes; `replace` puts a new
/// one in its place.
fn bound(
    path: &Path,
    most: u64,
    out: impl AsFd,
    replace: impl FnOnce(File) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let writes_to = File::from(out.as_fd().try_clone_to_owned()?).metadata()?;
    let there = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    if !same(&writes_to, &there) || there.len() <= most {
        return Ok(());
    }
    set_aside(path)?;
    replace(File::options().create(true).append(true).open(path)?)?;
    Ok(())
}

/// Renames a log, so that the next one begins anew.
///
/// # Errors
/// The error of rename(2).
pub fn set_aside(path: &Path) -> io::Result<()> {
    fs::rename(path, path.with_extension("log.1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_log_that_is_too_long_is_set_aside_and_one_that_is_not_ours_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.log");
        let mut log = File::options().create(true).append(true).open(&path).unwrap();
        log.write_all(&[b'x'; 100]).unwrap();
        let kept = |_: File| -> rustix::io::Result<()> { panic!("it was replaced") };
        bound(&path, 100, &log, kept).unwrap();
        bound(&path, 10, File::open("/dev/null").unwrap(), kept).unwrap();
        let mut next = None;
        let replace = |file| {
            next = Some(file);
            Ok(())
        };
        bound(&path, 99, &log, replace).unwrap();
        next.unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(folder.path().join("daemon.log.1")).unwrap().len(), 100);
    }
}
