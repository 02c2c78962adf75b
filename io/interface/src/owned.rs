//! For tests: a control group of version 2 whose sockets the test makes. A socket belongs to where
//! the process was when it was made.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The process is in one control group at a time.
static PLACE: Mutex<()> = Mutex::new(());

/// The owner of packets; gone with the value.
pub(crate) struct Owner {
    top: PathBuf,
    at: PathBuf,
}

impl Owner {
    /// `None` where the machine has no control groups of version 2.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let _place = place();
        let found = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let top = found.into_iter().find(|top| Path::new(top).join("cgroup.controllers").exists())?;
        let at = Path::new(top).join(format!("tombolo-test-{name}-{}", std::process::id()));
        fs::create_dir(&at).ok()?;
        Some(Self { top: top.into(), at })
    }

    /// The number of the control group.
    pub(crate) fn id(&self) -> u64 {
        fs::metadata(&self.at).expect("it is there").ino()
    }

    /// Its directory.
    pub(crate) fn directory(&self) -> fs::File {
        fs::File::open(&self.at).expect("it is there")
    }

    /// Does something inside, in a control group below this one.
    pub(crate) fn inside<T>(&self, act: impl FnOnce() -> T) -> T {
        let _place = place();
        let below = self.at.join("payload");
        if !below.exists() {
            fs::create_dir(&below).expect("a control group");
        }
        move_to(&below);
        let done = act();
        move_to(&self.top);
        done
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _place = place();
        // There may be none below.
        let _or_none = fs::remove_dir(self.at.join("payload"));
        fs::remove_dir(&self.at).expect("nobody is in it");
    }
}

fn place() -> MutexGuard<'static, ()> {
    PLACE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn move_to(at: &Path) {
    fs::write(at.join("cgroup.procs"), std::process::id().to_string()).expect("the process moves");
}
