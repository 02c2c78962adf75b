//! The guardian: it waits for the dispatcher's end, and then gives back all that the ledger says,
//! at once and before anybody.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use sys::schedule::Class;

use crate::error::{Context, EnforceError, Result};
use crate::ledger;

/// The file that it holds locked while it is there.
const LOCK: &str = "guardian.lock";

/// Arguments: the folder of the ledger, and the dispatcher's process, whose child it is.
pub fn main(arguments: &[OsString]) -> Result<()> {
    let [folder, dispatcher] = arguments else {
        return Err(EnforceError::Dispatcher("the guardian takes a folder and a process".to_owned()));
    };
    let folder = Path::new(folder);
    let pid = dispatcher.to_str().and_then(|text| text.parse::<u32>().ok());
    let pid = pid.ok_or_else(|| EnforceError::Dispatcher("no number of a process".to_owned()))?;
    // Signals that end a whole session at its terminal are not for us.
    let _ = rustix::process::setsid();
    let lock = lock(folder)?;
    let process = sys::process::pidfd_open(pid);
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get());
    let is_parent = parent.is_some_and(|parent| u32::try_from(parent) == Ok(pid));
    // Without them it does the same, a bit later.
    let _ = sys::schedule::lock_memory();
    let _ = sys::schedule::set_class(0, Class::Fifo { priority: super::GUARDIAN_PRIORITY });
    if let (Ok(process), true) = (process, is_parent) {
        println!("up");
        let mut wait = [PollFd::new(&process, PollFlags::IN)];
        while rustix::io::retry_on_intr(|| poll(&mut wait, None)).doing("wait for the dispatcher's end")? == 0
        {
        }
    }
    let paid = ledger::pay_from(folder);
    drop(lock);
    paid.map(drop)
}

fn lock(folder: &Path) -> Result<fs::File> {
    let path = folder.join(LOCK);
    let file = fs::File::create(&path).at("make", &path)?;
    // Shared: a dispatcher's next guardian may come while the last is still at it.
    file.lock_shared().at("lock", &path)?;
    Ok(file)
}

/// Waits until the last guardian has given back what it had to.
pub fn wait_for_the_last(folder: &Path) -> Result<()> {
    let path = folder.join(LOCK);
    let file = fs::File::create(&path).at("make", &path)?;
    file.lock().at("lock", &path)
}
