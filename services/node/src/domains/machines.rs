//! A domain of kind `vm`: what the node finds for its machine, and the container that the machine
//! process runs in.

use super::Domains;
use super::spec;
use crate::base::blocking;
use crate::volumes;
use domain::{self as target, DomainSpec, Layout};
use machine::{Disk, DiskFormat, MachineOrder, VolumeDisk};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use topology::{Accel, DiskHolds, Domain, Machine, MachineKernel, Network, VolumeMount};
use wire::guest::{self, Boot};

/// The emulator's name.
const QEMU: &str = "qemu-system-x86_64";
/// Where Debian has it: what is told where there is none, so that the refusal names a place.
const QEMU_AT: &str = "/usr/bin/qemu-system-x86_64";
/// Where the machine process finds the kernel.
const KERNEL: &str = "/run/machine/kernel";
/// Where it finds the initramfs.
const INITRAMFS: &str = "/run/machine/initramfs";
/// Where it finds the disk.
const DISK: &str = "/run/machine/disk";
/// Where it finds the sockets of its volumes, in a folder each.
const VOLUMES: &str = "/run/machine/volumes";
/// Where it finds an emulator that is none of the system's own programs.
const OTHER_QEMU: &str = "/run/machine/qemu";
/// The part of the node's programs that a machine sees.
const SYSTEM: &str = "/usr";
/// The disk as the guest calls it.
const GUEST_DISK: &str = "/dev/vda";
/// The file system of a disk that holds a file tree.
const GUEST_FILE_SYSTEM: &str = "ext4";
/// The guest's address in QEMU's user network, and the node in it (QEMU's defaults).
const USER_NETWORK: (&str, &str) = ("10.0.2.15/24", "10.0.2.2");
/// Beside the guest's own time to end: what the machine process takes to switch it off, and to say
/// how it ended.
pub(crate) const WIND_UP: Duration = Duration::from_secs(5);

/// The node's finds for a machine: the same for as long as the machine runs, whatever is found
/// later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    qemu: PathBuf,
    /// The accelerator that `accel = "auto"` became.
    accel: machine::Accel,
    /// Kernel and initramfs that the node made, where the file names none.
    built: Option<(PathBuf, PathBuf)>,
}

/// The emulator, if the node has it.
pub(crate) fn qemu() -> Option<PathBuf> {
    image::find_program(QEMU).ok()
}

/// Finds what a machine needs, and makes the image that it boots.
pub(crate) async fn find(node: &Arc<Domains>, domain: &Domain, machine: &Machine) -> Result<Found, String> {
    let (node, name, machine) = (Arc::clone(node), domain.name.clone(), machine.clone());
    blocking(move || {
        check_files(&machine)?;
        let qemu = qemu();
        let accel = match (machine.accel, &qemu) {
            (Accel::Tcg, _) => machine::Accel::Tcg,
            (Accel::Auto, None) => machine::Accel::Auto,
            (Accel::Kvm, None) => machine::Accel::Kvm,
            (wanted, Some(qemu)) => decide(wanted, try_kvm(&node, qemu))?,
        };
        let built = match &machine.kernel {
            MachineKernel::Built { directory } => Some(build(&node, name.as_str(), directory.as_deref())?),
            MachineKernel::Files { .. } | MachineKernel::Disk => None,
        };
        Ok(Found { qemu: qemu.unwrap_or_else(|| QEMU_AT.into()), accel, built })
    })
    .await?
}

/// Whether KVM works here. It is tried once in the life of a daemon: a KVM that does not work takes
/// its time to say so.
fn try_kvm<'n>(node: &'n Domains, qemu: &Path) -> &'n Result<(), String> {
    node.kvm.get_or_init(|| {
        let works = machine::probe_kvm(&node.layout.program, qemu).map_err(|error| error.to_string());
        match &works {
            Ok(()) => tracing::info!("KVM works: virtual machines use it"),
            Err(why) => tracing::warn!(why, "virtual machines are emulated, which is several times slower"),
        }
        works
    })
}

/// Chooses the accelerator, given the file's wish and whether KVM works.
fn decide(wanted: Accel, kvm: &Result<(), String>) -> Result<machine::Accel, String> {
    match (wanted, kvm) {
        (Accel::Tcg, _) | (Accel::Auto, Err(_)) => Ok(machine::Accel::Tcg),
        (Accel::Auto | Accel::Kvm, Ok(())) => Ok(machine::Accel::Kvm),
        (Accel::Kvm, Err(why)) => {
            Err(format!("`accel = \"kvm\"`, and {why}; take `accel = \"auto\"` or \"tcg\""))
        }
    }
}

/// Why a machine whose file leaves the choice to the node is emulated, where it is; none before the
/// first one was started.
pub(crate) fn emulated_because(node: &Domains, domain: &Domain) -> Option<String> {
    let chosen = domain.machine.as_ref().is_some_and(|machine| machine.accel == Accel::Auto);
    node.kvm.get().filter(|_| chosen)?.as_ref().err().cloned()
}

fn build(node: &Domains, domain: &str, directory: Option<&Path>) -> Result<(PathBuf, PathBuf), String> {
    let state = &node.place.state_dir;
    let mut progress = |progress| tracing::debug!(domain, ?progress, "making the guest's image");
    let image =
        image::default_guest(state, directory, &node.layout.program, &mut progress).map_err(|error| {
            let help = error.help().map_or_else(String::new, |help| format!("; {help}"));
            format!("can't make the guest's kernel and initramfs: {}{help}", with_causes(&error))
        })?;
    Ok((image.kernel, image.initramfs))
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// QEMU runs as root without capabilities: what root may open only because it is root, QEMU may
/// not.
fn check_files(machine: &Machine) -> Result<(), String> {
    let kernel = match &machine.kernel {
        MachineKernel::Files { kernel, initramfs } => [Some(kernel), initramfs.as_ref()],
        MachineKernel::Built { .. } | MachineKernel::Disk => [None, None],
    };
    for path in kernel.into_iter().flatten() {
        check_file(path, 0o4, "read")?;
    }
    match &machine.disk {
        Some(disk) if disk.read_only => check_file(&disk.path, 0o4, "read"),
        Some(disk) => check_file(&disk.path, 0o6, "read and written"),
        None => Ok(()),
    }
}

fn check_file(path: &Path, wanted: u32, words: &str) -> Result<(), String> {
    let found = std::fs::metadata(path).map_err(|e| format!("can't look at {}: {e}", path.display()))?;
    let shift = match (found.uid(), found.gid()) {
        (0, _) => 6,
        (_, 0) => 3,
        _ => 0,
    };
    if (found.mode() >> shift) & wanted == wanted {
        return Ok(());
    }
    Err(format!(
        "{} can't be {words} by the machine, which runs as root without capabilities: make it root's (chown root), or open it to \
         everybody",
        path.display()
    ))
}

impl Found {
    /// Whether the machine sees the emulator where the node does.
    fn is_of_the_system(&self) -> bool {
        self.qemu.starts_with(SYSTEM)
    }

    /// Returns the finds of an earlier daemon for a machine that runs. `None`: it is not such a
    /// machine.
    pub(crate) fn of(running: &DomainSpec) -> Option<Self> {
        let order: MachineOrder = serde_json::from_value(running.machine.as_ref()?.order.clone()).ok()?;
        let source = |target: &str| {
            running.mounts.iter().find(|mount| mount.target == Path::new(target)).map(|m| m.source.clone())
        };
        let built = source(KERNEL).zip(source(INITRAMFS));
        let qemu = source(OTHER_QEMU).unwrap_or(order.qemu);
        Some(Self { qemu, accel: order.accel, built })
    }
}

/// The container of a machine process.
pub(crate) fn spec(
    layout: &Layout,
    dc: &str,
    domain: &Domain,
    machine: &Machine,
    found: &Found,
) -> DomainSpec {
    let order = order(layout, dc, domain, machine, found);
    let kvm = order.accel != machine::Accel::Tcg;
    // Its types have string keys and no sums of maps: there is no way in which it can't be written.
    let order = serde_json::to_value(&order).unwrap_or_default();
    let program = format!("{}/tombolo", spec::INSIDE);
    DomainSpec {
        hostname: domain.hostname.clone(),
        workdir: Some("/".into()),
        mounts: mounts(machine, found).into_iter().chain(volume_mounts(layout, dc, domain)).collect(),
        // What the guest reaches, QEMU reaches for it.
        network: match domain.network {
            Network::None => target::Network::None,
            Network::Host => target::Network::Host,
        },
        limits: spec::limits(domain),
        log: spec::log(domain),
        stop: spec::stop(domain),
        machine: Some(target::Machine { order, kvm }),
        ..DomainSpec::new(dc, domain.name.as_str(), target::Kind::Vm, &[&program, "machine"])
    }
}

fn files<'m>(machine: &'m Machine, found: &'m Found) -> (Option<&'m PathBuf>, Option<&'m PathBuf>) {
    match &machine.kernel {
        MachineKernel::Built { .. } => {
            (found.built.as_ref().map(|built| &built.0), found.built.as_ref().map(|built| &built.1))
        }
        MachineKernel::Files { kernel, initramfs } => (Some(kernel), initramfs.as_ref()),
        MachineKernel::Disk => (None, None),
    }
}

fn mounts(machine: &Machine, found: &Found) -> Vec<target::Mount> {
    let (kernel, initramfs) = files(machine, found);
    let mount = |source: &PathBuf, target: &str, read_only| target::Mount {
        source: source.clone(),
        target: target.into(),
        read_only,
    };
    let kernel = kernel.map(|path| mount(path, KERNEL, true));
    let initramfs = initramfs.map(|path| mount(path, INITRAMFS, true));
    let disk = machine.disk.as_ref().map(|disk| mount(&disk.path, DISK, disk.read_only));
    let qemu = (!found.is_of_the_system()).then(|| mount(&found.qemu, OTHER_QEMU, true));
    [kernel, initramfs, disk, qemu].into_iter().flatten().collect()
}

/// The folders of the NBD sockets of its volumes.
fn volume_mounts<'d>(
    layout: &'d Layout,
    dc: &'d str,
    domain: &'d Domain,
) -> impl Iterator<Item = target::Mount> + 'd {
    domain.volumes.iter().map(move |volume| target::Mount {
        source: volumes::share(&layout.run_dir, dc, volume.name.as_str()),
        target: volume_folder(volume).into(),
        read_only: true,
    })
}

fn volume_folder(volume: &VolumeMount) -> String {
    format!("{VOLUMES}/{}", volume.name)
}

fn order(layout: &Layout, dc: &str, domain: &Domain, machine: &Machine, found: &Found) -> MachineOrder {
    let (kernel, initramfs) = files(machine, found);
    MachineOrder {
        qemu: if found.is_of_the_system() { found.qemu.clone() } else { OTHER_QEMU.into() },
        accel: match machine.accel {
            Accel::Auto => found.accel,
            Accel::Kvm => machine::Accel::Kvm,
            Accel::Tcg => machine::Accel::Tcg,
        },
        cpus: machine.cpus,
        memory_bytes: machine.memory_bytes,
        kernel: kernel.map(|_| KERNEL.into()),
        initramfs: initramfs.map(|_| INITRAMFS.into()),
        append: machine.append.clone(),
        disk: machine.disk.as_ref().map(|disk| Disk {
            path: DISK.into(),
            format: match disk.format {
                topology::DiskFormat::Raw => DiskFormat::Raw,
                topology::DiskFormat::Qcow2 => DiskFormat::Qcow2,
            },
            read_only: disk.read_only,
        }),
        volumes: domain
            .volumes
            .iter()
            .map(|volume| VolumeDisk {
                serial: volume.name.as_str().to_owned(),
                socket: format!("{}/{}", volume_folder(volume), storage::SOCKET).into(),
                export: storage::EXPORT.to_owned(),
            })
            .collect(),
        user_network: domain.network == Network::Host,
        boot_ms: machine.boot_timeout_ms,
        shutdown_ms: domain.stop.timeout_ms,
        boot: boot(layout, dc, domain, machine),
    }
}

fn boot(layout: &Layout, dc: &str, domain: &Domain, machine: &Machine) -> Boot {
    let root = machine.disk.as_ref().filter(|disk| disk.holds == DiskHolds::Root);
    let (address, gateway) = USER_NETWORK;
    Boot {
        version: guest::VERSION,
        dc: dc.to_owned(),
        domain: domain.name.as_str().to_owned(),
        hostname: domain.hostname.clone().unwrap_or_else(|| domain.name.as_str().to_owned()),
        command: spec::command(layout, dc, domain),
        environment: spec::environment(layout, dc, domain),
        user: domain.user.as_ref().map(crate::base::user_text),
        workdir: domain.workdir.as_ref().map(|path| path.to_string_lossy().into_owned()),
        services: true,
        resolv_conf: spec::has_stub(domain).then(|| spec::resolv_conf(domain)),
        stub: spec::has_stub(domain),
        resolve: spec::has_resolve(domain),
        network: (domain.network == Network::Host)
            .then(|| guest::Network { address: address.to_owned(), gateway: gateway.to_owned() }),
        root: root.map(|disk| guest::Root {
            device: GUEST_DISK.to_owned(),
            kind: GUEST_FILE_SYSTEM.to_owned(),
            read_only: disk.read_only,
        }),
    }
}

#[cfg(test)]
mod tests;
