//! The OCI bundle of a container (`config.json`, OCI runtime specification 1.0.2).
//!
//! It is written as a JSON literal because that reads like the specification; a test reads it back
//! through `oci-spec`, so a misspelled key does not pass.

use crate::error::{Context, Result};
use crate::layout::{DomainPaths, Layout};
use crate::machine::{DIRECTORY, KVM};
use crate::privilege::{Identity, capability_name};
use crate::root::{ImageRoot, PreparedRoot};
use crate::seccomp;
use crate::spec::{DomainSpec, Mount, Network};
use crate::users;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The `PATH` of a command unless it is told otherwise.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Open files, at first and at most: what systemd gives to a service, since select(2) can't do with
/// more than the first.
const OPEN_FILES: (u64, u64) = (1024, 524_288);
/// Bound of each private writable file system, in bytes. What is in it counts against the memory
/// limit as well.
const PRIVATE_BYTES: u64 = 256 * 1024 * 1024;
/// Bound of the files in each file system in memory: without one the kernel takes half of what the
/// node's memory holds.
const PRIVATE_INODES: &str = "nr_inodes=65536";
/// Where the domain finds what is its own.
pub(crate) const INSIDE: &str = "/run/tombolo";

/// The files of `/proc` and `/sys` that tell or do too much; the runtime hides those that exist.
const MASKED: [&str; 20] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    // What the machine's root may read without any capability tells of the memory of all domains.
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel/debug",
    "/sys/kernel/security",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Everything that the bundle is made of.
pub(crate) struct Bundle<'a> {
    pub layout: &'a Layout,
    pub paths: &'a DomainPaths,
    pub spec: &'a DomainSpec,
    pub image: &'a ImageRoot,
    pub root: &'a PreparedRoot,
    pub identity: &'a Identity,
}

impl Bundle<'_> {
    /// Writes it.
    pub fn write(&self) -> Result<()> {
        let dir = self.paths.bundle();
        fs::create_dir_all(&dir).at("create", &dir)?;
        crate::status::write_json(&dir.join("config.json"), &self.config()?)
    }

    pub(crate) fn config(&self) -> Result<Value> {
        let spec = self.spec;
        Ok(json!({
            "ociVersion": "1.0.2",
            "process": self.process()?,
            "root": { "path": self.root.path, "readonly": !spec.writable },
            "hostname": spec.hostname.as_deref().unwrap_or(&spec.name),
            "mounts": self.mounts(),
            "linux": self.linux()?,
        }))
    }

    fn linux(&self) -> Result<Value> {
        let spec = self.spec;
        let mut linux = json!({
            "resources": { "devices": self.allowed_devices() },
            "devices": self.devices(),
            "cgroupsPath": format!("/{}", self.paths.payload_cgroup()),
            "namespaces": namespaces(spec),
            "seccomp": seccomp::filter(&spec.capabilities)?,
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        });
        if let (true, Some(linux)) = (spec.userns, linux.as_object_mut()) {
            // The machine's numbers: files of roots, mounts and services are whose they are.
            let same = json!([{ "containerID": 0, "hostID": 0, "size": u32::MAX }]);
            linux.insert("uidMappings".into(), same.clone());
            linux.insert("gidMappings".into(), same);
        }
        Ok(linux)
    }

    fn process(&self) -> Result<Value> {
        let names: Vec<String> =
            self.spec.capabilities.iter().map(|c| capability_name(c)).collect::<Result<_>>()?;
        let Identity { uid, gid, groups, .. } = self.identity;
        let (soft, hard) = open_files();
        let workdir =
            self.spec.workdir.as_deref().or(self.image.workdir.as_deref()).unwrap_or(Path::new("/"));
        let mut rlimits = vec![("RLIMIT_NOFILE", soft, hard), ("RLIMIT_CORE", 0, 0)];
        if self.spec.userns {
            rlimits.extend(users::RLIMITS.map(|(name, most)| (name, most, most)));
        }
        let rlimit = |(name, soft, hard)| json!({ "type": name, "soft": soft, "hard": hard });
        let rlimits: Vec<Value> = rlimits.into_iter().map(rlimit).collect();
        Ok(json!({
            "terminal": false,
            "user": { "uid": uid, "gid": gid, "umask": 0o022, "additionalGids": groups },
            "args": if self.spec.command.is_empty() { &self.image.command } else { &self.spec.command },
            "env": environment(&self.image.environment, &self.spec.environment, self.identity.home.as_deref()),
            "cwd": workdir,
            "capabilities": {
                "bounding": names, "effective": names, "permitted": names, "inheritable": names, "ambient": names,
            },
            "rlimits": rlimits,
            "noNewPrivileges": true,
        }))
    }

    /// Whether KVM is passed: where it is not there, the machine process says so.
    fn kvm(&self) -> bool {
        let wanted = self.spec.machine.as_ref().is_some_and(|machine| machine.kvm);
        wanted && fs::metadata(KVM.0).is_ok_and(|found| found.file_type().is_char_device())
    }

    fn allowed_devices(&self) -> Vec<Value> {
        let mut rules = vec![json!({ "allow": false, "access": "rwm" })];
        if self.kvm() {
            rules.push(json!({ "allow": true, "type": "c", "major": KVM.1, "minor": KVM.2, "access": "rw" }));
        }
        rules
    }

    fn devices(&self) -> Vec<Value> {
        let (path, major, minor) = KVM;
        let kvm = json!({ "path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o600, "uid": 0, "gid": 0 });
        self.kvm().then_some(kvm).into_iter().collect()
    }

    fn mounts(&self) -> Vec<Value> {
        let mut mounts = kernel_mounts();
        for name in &self.root.private {
            let mode = format!("mode={:o}", crate::root::private_mode(name));
            let size = format!("size={PRIVATE_BYTES}");
            mounts.push(json!({ "destination": format!("/{name}"), "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "nodev", mode, size, PRIVATE_INODES] }));
        }
        mounts.extend(self.root.mounts.iter().map(bind));
        let inside = self.paths.inside();
        mounts.push(json!({ "destination": INSIDE, "type": "bind", "source": inside,
            "options": ["bind", "ro", "nosuid", "nodev"] }));
        mounts.push(
            json!({ "destination": format!("{INSIDE}/tombolo"), "type": "bind", "source": self.layout.program,
            "options": ["bind", "ro", "nosuid", "nodev"] }),
        );
        if self.spec.machine.is_some() {
            mounts.push(json!({ "destination": DIRECTORY, "type": "bind", "source": self.paths.machine(),
                "options": ["bind", "rprivate", "nosuid", "nodev", "noexec"] }));
        }
        mounts.extend(self.spec.mounts.iter().map(bind));
        mounts
    }
}

/// [`OPEN_FILES`], as far as we have them to give: even root can't go beyond `fs.nr_open`, nor
/// beyond its own limit without `CAP_SYS_RESOURCE`.
pub(crate) fn open_files() -> (u64, u64) {
    let ours = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let hard = OPEN_FILES.1.min(ours);
    (OPEN_FILES.0.min(hard), hard)
}

fn kernel_mounts() -> Vec<Value> {
    let mount = |destination: &str, kind: &str, options: &[&str]| json!({ "destination": destination, "type": kind, "source": kind, "options": options });
    vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k", PRIVATE_INODES]),
        mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        mount(
            "/dev/shm",
            "tmpfs",
            &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k", PRIVATE_INODES],
        ),
        mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        mount("/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]),
    ]
}

/// `rro` is the recursive one: with `ro` alone, file systems that are mounted below the source
/// would stay writable.
fn bind(mount: &Mount) -> Value {
    let mut options = vec!["rbind", "rprivate", "nosuid", "nodev"];
    if mount.read_only {
        options.extend(["ro", "rro"]);
    }
    json!({ "destination": mount.target, "type": "bind", "source": mount.source, "options": options })
}

fn namespaces(spec: &DomainSpec) -> Vec<Value> {
    let mut names = vec!["pid", "ipc", "uts", "mount", "cgroup"];
    if spec.network == Network::None {
        names.push("network");
    }
    if spec.userns {
        names.push("user");
    }
    names.into_iter().map(|n| json!({ "type": n })).collect()
}

/// The image's variables, then ours where they are missing, then those asked for; the last of a
/// name wins.
pub(crate) fn environment(image: &[String], asked: &[(String, String)], home: Option<&str>) -> Vec<String> {
    let mut pairs: Vec<(String, String)> = vec![
        ("PATH".to_owned(), DEFAULT_PATH.to_owned()),
        ("HOME".to_owned(), home.unwrap_or("/").to_owned()),
    ];
    let image = image.iter().filter_map(|v| v.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()));
    for (key, value) in image.chain(asked.iter().cloned()) {
        pairs.retain(|(k, _)| *k != key);
        pairs.push((key, value));
    }
    pairs.into_iter().map(|(k, v)| format!("{k}={v}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Kind;

    #[test]
    fn the_bundle_is_what_oci_spec_understands() {
        let layout = Layout {
            run_dir: "/r".into(),
            state_dir: "/s".into(),
            cgroup_name: "t".into(),
            program: "/usr/bin/tombolo".into(),
        };
        let mut spec = DomainSpec::new("dc", "d", Kind::Container, &["true"]);
        spec.capabilities = vec!["net_raw".into()];
        spec.mounts = vec![Mount { source: "/a".into(), target: "/b".into(), read_only: true }];
        let paths = layout.domain("dc", "d").expect("paths");
        let root = PreparedRoot {
            path: "/r/root".into(),
            directory: crate::root::open_directory(Path::new("/")).expect("/"),
            mounts: Vec::new(),
            private: vec!["tmp"],
        };
        let identity = Identity { uid: 1, gid: 2, groups: vec![3], home: None };
        let image = ImageRoot::default();
        let bundle = Bundle {
            layout: &layout,
            paths: &paths,
            spec: &spec,
            image: &image,
            root: &root,
            identity: &identity,
        };
        let ours = bundle.config().expect("config");
        let read: oci_spec::runtime::Spec = serde_json::from_value(ours.clone()).expect("oci-spec reads it");
        let theirs = serde_json::to_value(&read).expect("oci-spec writes it");
        contained(&ours, &theirs, "config");
    }

    /// Everything that we say is there after a round trip.
    fn contained(ours: &Value, theirs: &Value, at: &str) {
        match (ours, theirs) {
            (Value::Object(a), Value::Object(b)) => a.iter().for_each(|(k, v)| {
                let there = b.get(k).unwrap_or_else(|| panic!("{at}.{k} is not in the specification"));
                contained(v, there, &format!("{at}.{k}"));
            }),
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() && !at.contains("capabilities") => {
                a.iter().zip(b).for_each(|(x, y)| contained(x, y, at));
            }
            (Value::Array(a), Value::Array(b)) => assert_eq!(a.len(), b.len(), "{at}"),
            (a, b) => assert_eq!(a, b, "{at}"),
        }
    }

    #[test]
    fn the_last_variable_of_a_name_wins() {
        let got = environment(&["A=1".into(), "PATH=/x".into()], &[("A".into(), "2".into())], Some("/root"));
        assert_eq!(got, ["HOME=/root", "PATH=/x", "A=2"]);
    }
}
