//! The promises to a cgroup: processor time by quota, memory that is left to it, bandwidth of a
//! disk; and holding all of it for a while.

use super::{Cgroups, MAX_DEPTH, Version, directories, write};
use crate::error::{Context, Error, Result};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Shortest period over which the kernel keeps a quota, in µs (`min_cfs_quota_period`); shortest
/// quota, too.
pub const SHORTEST_PERIOD_US: u64 = 1_000;
/// Longest one (`max_cfs_quota_period`).
pub const MAX_PERIOD_US: u64 = 1_000_000;
/// How long processes may take to be frozen: until each comes by the kernel's exit. Only one that
/// hangs in the kernel takes longer.
const FREEZING: Duration = Duration::from_millis(200);

/// A quota as the kernel keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Processor time in each period, in µs.
    pub budget_us: u64,
    /// The period, in µs.
    pub period_us: u64,
}

impl Quota {
    /// The quota for a budget in each period, in ns. Periods that the kernel does not know become
    /// ones that it does, with the same share: longer ones are cut into equal parts, so that the
    /// budget comes sooner; `false` beside it says that a shorter one was stretched, so that the
    /// budget may come later.
    #[must_use]
    pub fn of(budget_ns: u64, period_ns: u64) -> (Self, bool) {
        let period_us = (period_ns / 1_000).max(1);
        let parts = period_us.div_ceil(MAX_PERIOD_US);
        let mut target_us = (period_us / parts).max(1);
        let budget_us = |target_us: u64| {
            let share = u128::from(budget_ns) * u128::from(target_us);
            u64::try_from(share.div_ceil(u128::from(period_ns.max(1)))).unwrap_or(u64::MAX)
        };
        // A period has to hold the shortest quota, too.
        let mut exact = true;
        if target_us < SHORTEST_PERIOD_US || budget_us(target_us) < SHORTEST_PERIOD_US {
            exact = target_us >= SHORTEST_PERIOD_US && parts > 1;
            let needed =
                u128::from(SHORTEST_PERIOD_US) * u128::from(period_ns) / u128::from(budget_ns.max(1));
            let needed = u64::try_from(needed).unwrap_or(u64::MAX).max(SHORTEST_PERIOD_US);
            target_us = needed.clamp(target_us, MAX_PERIOD_US);
        }
        (Self { budget_us: budget_us(target_us).max(SHORTEST_PERIOD_US), period_us: target_us }, exact)
    }
}

/// The open files of one cgroup's quota: a change is one write, and looking at it one read.
#[derive(Debug)]
pub struct QuotaFile {
    quota: File,
    /// Version 1 has a file of its own for the period.
    period: Option<File>,
    told: Option<Quota>,
}

impl QuotaFile {
    /// Tells the kernel this quota, as far as it was not told it already; and looks whether it took
    /// it.
    ///
    /// # Errors
    /// The kernel's; `ENODEV` where the cgroup is gone.
    pub fn set(&mut self, to: Quota) -> io::Result<()> {
        let was = self.told.take();
        match &self.period {
            None => self.quota.write_all_at(format!("{} {}", to.budget_us, to.period_us).as_bytes(), 0)?,
            Some(period) => {
                let put = |file: &File, value: u64| file.write_all_at(value.to_string().as_bytes(), 0);
                // What is in force in between is not more than both: a longer period first, a
                // shorter one last.
                let is_longer = was.is_none_or(|was| to.period_us > was.period_us);
                if is_longer {
                    put(period, to.period_us)?;
                }
                if was.is_none_or(|was| was.budget_us != to.budget_us) {
                    put(&self.quota, to.budget_us)?;
                }
                if !is_longer && was.is_some_and(|was| was.period_us != to.period_us) {
                    put(period, to.period_us)?;
                }
            }
        }
        let found = self.found();
        if found != Some(to) {
            return Err(io::Error::other(format!("the kernel keeps {found:?} where {to:?} was asked for")));
        }
        self.told = found;
        Ok(())
    }

    /// The quota that was told last; `None`: none, or it failed.
    #[must_use]
    pub fn told(&self) -> Option<Quota> {
        self.told
    }

    /// The quota that the kernel keeps now.
    #[must_use]
    pub fn found(&self) -> Option<Quota> {
        let mut text = [0_u8; 64];
        let mut read = |file: &File| {
            let length = file.read_at(&mut text, 0).ok()?;
            Some(String::from_utf8_lossy(text.get(..length)?).trim_end().to_owned())
        };
        let (budget, period) = match &self.period {
            Some(period) => (read(&self.quota)?, read(period)?),
            None => {
                let both = read(&self.quota)?;
                let (budget, period) = both.split_once(' ')?;
                (budget.to_owned(), period.to_owned())
            }
        };
        Some(Quota { budget_us: budget.parse().ok()?, period_us: period.parse().ok()? })
    }
}

/// A block device, by its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device {
    /// The whole disk that holds a path; `None` where that is no disk (such as overlay, tmpfs,
    /// network).
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let number = fs::metadata(path).ok()?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let entry = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let whole = if entry.join("partition").exists() { entry.parent()?.to_owned() } else { entry };
        let text = fs::read_to_string(whole.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl Cgroups {
    /// Promises the cgroup `path` processor time: at most this, and before all who are promised
    /// nothing. `None` takes it back.
    ///
    /// # Errors
    /// [`Error::Controller`] where there is no such controller; [`Error::File`] when the kernel
    /// refuses.
    pub fn promise_cpu(&self, path: &str, quota: Option<Quota>) -> Result<()> {
        let hierarchy =
            self.with("cpu").ok_or(Error::Controller { what: "processor time", controller: "cpu" })?;
        let at = hierarchy.mount.join(path);
        match hierarchy.version {
            Version::One => {
                if let Some(Quota { budget_us, period_us }) = quota {
                    if read_number(&at.join("cpu.cfs_period_us")) != Some(period_us) {
                        write(&at.join("cpu.cfs_period_us"), &period_us.to_string())?;
                    }
                    write(&at.join("cpu.cfs_quota_us"), &budget_us.to_string())
                } else {
                    write(&at.join("cpu.cfs_quota_us"), "-1")
                }
            }
            Version::Two => {
                let text = quota.map_or_else(
                    || "max 100000".to_owned(),
                    |Quota { budget_us, period_us }| format!("{budget_us} {period_us}"),
                );
                write(&at.join("cpu.max"), &text)
            }
        }
    }

    /// Opens the quota of the cgroup `path` for changes.
    ///
    /// # Errors
    /// [`Error::Controller`] where there is no such controller; [`Error::File`] where it can't be
    /// opened.
    pub fn quota_file(&self, path: &str) -> Result<QuotaFile> {
        let hierarchy =
            self.with("cpu").ok_or(Error::Controller { what: "processor time", controller: "cpu" })?;
        let open = |name: &str| {
            let at = hierarchy.mount.join(path).join(name);
            fs::OpenOptions::new().read(true).write(true).open(&at).at("open", at)
        };
        Ok(match hierarchy.version {
            Version::One => QuotaFile {
                quota: open("cpu.cfs_quota_us")?,
                period: Some(open("cpu.cfs_period_us")?),
                told: None,
            },
            Version::Two => QuotaFile { quota: open("cpu.max")?, period: None, told: None },
        })
    }

    /// The quota that is in force.
    #[must_use]
    pub fn promised_cpu(&self, path: &str) -> Option<Quota> {
        let hierarchy = self.with("cpu")?;
        let at = hierarchy.mount.join(path);
        if hierarchy.version == Version::One {
            let budget_us = read_number(&at.join("cpu.cfs_quota_us"))?;
            return Some(Quota { budget_us, period_us: read_number(&at.join("cpu.cfs_period_us"))? });
        }
        let text = fs::read_to_string(at.join("cpu.max")).ok()?;
        let (budget, period) = text.trim().split_once(' ')?;
        Some(Quota { budget_us: budget.parse().ok()?, period_us: period.parse().ok()? })
    }

    /// Whether a process that is in another cgroup of the controller `cpu` has its time counted
    /// there, too: version 1, where one hierarchy has both.
    #[must_use]
    pub fn counts_where_it_schedules(&self) -> bool {
        self.with("cpuacct")
            .is_some_and(|hierarchy| hierarchy.version == Version::One && hierarchy.has("cpu"))
    }

    /// How many periods of the quota have passed while somebody wanted to run; what changes of it
    /// are in force after the next.
    #[must_use]
    pub fn quota_periods(&self, path: &str) -> Option<u64> {
        super::usage::keyed(&self.with("cpu")?.mount.join(path).join("cpu.stat"), "nr_periods")
    }

    /// Leaves the cgroup `path` this much memory when others want more; `None` takes it back.
    ///
    /// # Errors
    /// As [`Cgroups::promise_cpu`].
    pub fn promise_memory(&self, path: &str, bytes: Option<u64>) -> Result<()> {
        let hierarchy =
            self.with("memory").ok_or(Error::Controller { what: "memory", controller: "memory" })?;
        let at = hierarchy.mount.join(path);
        match hierarchy.version {
            Version::One => {
                let text = bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
                write(&at.join("memory.soft_limit_in_bytes"), &text)
            }
            Version::Two => {
                // What a cgroup keeps is at most what those above it keep.
                let mut above = hierarchy.mount.clone();
                let names: Vec<&str> = path.split('/').collect();
                for name in names.iter().take(names.len().saturating_sub(1)) {
                    above.push(name);
                    if bytes.is_some() {
                        write(&above.join("memory.low"), "max")?;
                    }
                }
                write(&at.join("memory.low"), &bytes.unwrap_or(0).to_string())
            }
        }
    }

    /// Holds the cgroup `path` and those below it to so many bytes and operations a second of a
    /// disk, reading and writing each; 0 is no bound.
    ///
    /// # Errors
    /// [`Error::Controller`] where no hierarchy has the cgroup; [`Error::File`] when the kernel
    /// refuses.
    pub fn promise_disk(&self, path: &str, device: Device, bytes: u64, operations: u64) -> Result<()> {
        let Device { major, minor } = device;
        if let Some(hierarchy) = self.with("blkio") {
            // Version 1 looks at each cgroup by itself.
            let mut places = Vec::new();
            gather(&hierarchy.mount.join(path), MAX_DEPTH, &mut places);
            if places.is_empty() {
                return Err(Error::Controller { what: "disk bandwidth of this domain", controller: "blkio" });
            }
            for place in places {
                for (file, value) in [
                    ("blkio.throttle.read_bps_device", bytes),
                    ("blkio.throttle.write_bps_device", bytes),
                    ("blkio.throttle.read_iops_device", operations),
                    ("blkio.throttle.write_iops_device", operations),
                ] {
                    write(&place.join(file), &format!("{major}:{minor} {value}"))?;
                }
            }
            return Ok(());
        }
        let hierarchy =
            self.with("io").ok_or(Error::Controller { what: "disk bandwidth", controller: "io" })?;
        let word = |value: u64| if value == 0 { "max".to_owned() } else { value.to_string() };
        let (bytes, operations) = (word(bytes), word(operations));
        let text = format!("{major}:{minor} rbps={bytes} wbps={bytes} riops={operations} wiops={operations}");
        write(&hierarchy.mount.join(path).join("io.max"), &text)
    }

    /// Holds all processes of the cgroup `path`, or lets them go on. Returns when all of them are
    /// held; one that hangs in the kernel is held when it comes back from there, and not waited
    /// for.
    ///
    /// # Errors
    /// [`Error::Controller`] where there is no freezer; [`Error::File`] when the kernel refuses.
    pub fn hold(&self, path: &str, held: bool) -> Result<()> {
        let one = self.hierarchies.iter().find(|h| h.version == Version::One && h.has("freezer"));
        let two = || self.hierarchies.iter().find(|h| h.version == Version::Two);
        let (freezer, file, word, said, frozen) = match one {
            Some(freezer) => {
                let word = if held { "FROZEN" } else { "THAWED" };
                (freezer, "freezer.state", word, "freezer.state", "FROZEN")
            }
            None => {
                let two = two().ok_or(Error::Controller { what: "suspension", controller: "freezer" })?;
                (two, "cgroup.freeze", if held { "1" } else { "0" }, "cgroup.events", "frozen 1")
            }
        };
        let place = freezer.mount.join(path);
        write(&place.join(file), word)?;
        if held {
            await_frozen(&place.join(said), frozen);
        }
        Ok(())
    }

    /// How long, in us, processes of the cgroup `path` have waited in all for what this controller
    /// gives, `cpu`, `memory` or `io`; where the kernel tells that only of the whole node, that.
    #[must_use]
    pub fn pressure_us(&self, path: &str, controller: &str) -> Option<u64> {
        let own = self.with(controller).filter(|h| h.version == Version::Two);
        let file: PathBuf = own.map_or_else(
            || Path::new("/proc/pressure").join(controller),
            |h| h.mount.join(path).join(format!("{controller}.pressure")),
        );
        let text = fs::read_to_string(file).ok()?;
        let some = text.lines().find(|line| line.starts_with("some "))?;
        some.rsplit_once("total=")?.1.trim().parse().ok()
    }

    /// The directory of the cgroup `path` in the hierarchy of version 2, where there is one.
    #[must_use]
    pub fn unified(&self, path: &str) -> Option<PathBuf> {
        let hierarchy = self.hierarchies.iter().find(|h| h.version == Version::Two)?;
        Some(hierarchy.mount.join(path)).filter(|at| at.is_dir())
    }

    /// Whether the cgroup `path` is there, in the hierarchy of the processor or any other.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        let here = self.with("cpu").or(self.hierarchies.first());
        here.is_some_and(|hierarchy| hierarchy.mount.join(path).is_dir())
    }
}

fn gather(at: &Path, depth: usize, places: &mut Vec<PathBuf>) {
    if !at.is_dir() {
        return;
    }
    places.push(at.to_owned());
    if depth > 0 {
        directories(at).iter().for_each(|child| gather(&at.join(child), depth - 1, places));
    }
}

pub(super) fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Waits until the kernel says in `file` that all are frozen, and not longer than [`FREEZING`].
fn await_frozen(file: &Path, frozen: &str) {
    let deadline = Instant::now() + FREEZING;
    let is_frozen = || fs::read_to_string(file).is_ok_and(|text| text.lines().any(|line| line == frozen));
    while !is_frozen() && Instant::now() < deadline {
        // tidy(sleep): version 1 tells nobody when it happens.
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_has_the_share_that_was_promised_in_a_period_that_the_kernel_knows() {
        let of = |budget_us: u64, period_us: u64| Quota::of(budget_us * 1_000, period_us * 1_000);
        let quota = |budget_us, period_us| Quota { budget_us, period_us };
        assert_eq!(of(16_000, 40_000), (quota(16_000, 40_000), true));
        // Cut into parts, each with its share.
        assert_eq!(of(500_000, 4_000_000), (quota(125_000, 1_000_000), true));
        // Stretched, which is told.
        assert_eq!(of(250, 500), (quota(1_000, 2_000), false));
        assert_eq!(of(100, 10_000), (quota(1_000, 100_000), false));
        // Rounded up, never down.
        assert_eq!(Quota::of(5_680_001, 40_000_000).0, quota(5_681, 40_000));
        for (budget, period) in [(1, 1), (1, 3_600_000_000), (3_600_000_000, 3_600_000_000), (7, 13)] {
            let (Quota { budget_us, period_us }, _) = of(budget, period);
            assert!((SHORTEST_PERIOD_US..=MAX_PERIOD_US).contains(&period_us), "{budget} {period}");
            assert!(budget_us >= SHORTEST_PERIOD_US);
            assert!(u128::from(budget_us) * u128::from(period) >= u128::from(budget) * u128::from(period_us));
        }
    }

    #[test]
    fn both_versions_are_told_in_their_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let at = dir.path().join("sys/fs/cgroup").join(file);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, text).unwrap();
        };
        let text = |file: &str| fs::read_to_string(dir.path().join("sys/fs/cgroup").join(file)).unwrap();
        let device = Device { major: 8, minor: 0 };
        for file in ["cpu.cfs_period_us", "cpu.cfs_quota_us"] {
            put(&format!("cpu/t/{file}"), "");
        }
        put("memory/t/memory.soft_limit_in_bytes", "");
        put("freezer/t/freezer.state", "");
        for way in ["read_bps", "write_bps", "read_iops", "write_iops"] {
            put(&format!("blkio/t/blkio.throttle.{way}_device"), "");
        }
        let one = "\
31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
32 23 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 23 0:30 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
34 23 0:31 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
";
        let cgroups = Cgroups::from_mountinfo(one, dir.path());
        cgroups.promise_cpu("t", Some(Quota { budget_us: 16_000, period_us: 40_000 })).unwrap();
        assert_eq!(cgroups.promised_cpu("t"), Some(Quota { budget_us: 16_000, period_us: 40_000 }));
        cgroups.promise_memory("t", Some(4096)).unwrap();
        cgroups.promise_disk("t", device, 1_000_000, 0).unwrap();
        cgroups.hold("t", true).unwrap();
        assert_eq!(text("memory/t/memory.soft_limit_in_bytes"), "4096");
        assert_eq!(text("blkio/t/blkio.throttle.write_bps_device"), "8:0 1000000");
        assert_eq!(text("freezer/t/freezer.state"), "FROZEN");
        assert!(matches!(cgroups.promise_disk("u", device, 1, 1), Err(Error::Controller { .. })));
        let two = "31 23 0:28 / /sys/fs/cgroup/two rw - cgroup2 cgroup2 rw\n";
        put("two/cgroup.controllers", "cpu memory io\n");
        for file in ["cpu.max", "memory.low", "io.max", "cgroup.freeze"] {
            put(&format!("two/t/d/{file}"), "");
            put(&format!("two/t/{file}"), "");
        }
        let cgroups = Cgroups::from_mountinfo(two, dir.path());
        cgroups.promise_cpu("t/d", Some(Quota { budget_us: 16_000, period_us: 40_000 })).unwrap();
        assert_eq!(cgroups.promised_cpu("t/d"), Some(Quota { budget_us: 16_000, period_us: 40_000 }));
        cgroups.promise_memory("t/d", Some(4096)).unwrap();
        cgroups.promise_disk("t/d", device, 0, 5).unwrap();
        cgroups.hold("t/d", true).unwrap();
        assert_eq!((text("two/t/memory.low"), text("two/t/d/memory.low")), ("max".into(), "4096".into()));
        assert_eq!(text("two/t/d/io.max"), "8:0 rbps=max wbps=max riops=5 wiops=5");
        assert_eq!(text("two/t/d/cgroup.freeze"), "1");
    }
}
