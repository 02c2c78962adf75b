//! The cost of processes while they rest: processor time as the scheduler counts it, memory as a
//! control group does.

use crate::scenario::BenchError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the control groups are: version 1, then version 2.
const GROUPS: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.current")];

/// Processor time of a process of one thread, in ns, as the scheduler counts it: exact while it
/// sleeps.
///
/// # Errors
/// Where the kernel does not tell.
pub fn processor_ns(process: u32) -> Result<u64, BenchError> {
    let path = format!("/proc/{process}/schedstat");
    let text = fs::read_to_string(&path).map_err(BenchError::io(path))?;
    text.split(' ').next().and_then(|ns| ns.parse().ok()).ok_or_else(|| BenchError::Missing {
        what: "schedstat".into(),
        how: "a kernel that counts processor time in ns",
    })
}

/// A control group that counts memory, the kernel's included.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    usage: &'static str,
}

impl MemoryGroup {
    /// Makes one.
    ///
    /// # Errors
    /// Where the machine counts no memory for us.
    pub fn make(name: &str) -> Result<Self, BenchError> {
        for (root, usage) in GROUPS {
            let folder = Path::new(root).join(name);
            if Path::new(root).join("cgroup.procs").exists() && fs::create_dir(&folder).is_ok() {
                let group = Self { folder, usage };
                if group.bytes().is_ok() {
                    return Ok(group);
                }
            }
        }
        Err(BenchError::Missing {
            what: "a control group that counts memory".into(),
            how: "start it through sudo, with the memory controller on",
        })
    }

    /// Puts a process into it; what it takes from now on is counted.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn take_in(&self, process: u32) -> Result<(), BenchError> {
        fs::write(self.folder.join("cgroup.procs"), process.to_string())
            .map_err(BenchError::io("filling a control group"))
    }

    /// The bytes that it is charged.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn bytes(&self) -> Result<u64, BenchError> {
        let text = fs::read_to_string(self.folder.join(self.usage));
        let number = text.and_then(|text| text.trim().parse().map_err(io::Error::other));
        number.map_err(BenchError::io("reading what a control group is charged"))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!("bench: {} is left: {error}", self.folder.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_have_used_a_processor() {
        assert!(processor_ns(std::process::id()).is_ok_and(|ns| ns > 0));
        assert!(processor_ns(0).is_err());
    }
}
