//! The machine is the agent's: its name, its network, its mounts, and its end.

use crate::Config;
use crate::entrances::STUB_ADDRESS;
use interface::{Interfaces, LOOPBACK};
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_remount, unmount,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::system::RebootCommand;
use std::ffi::CString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::guest::{Boot, Network, Root};

/// Where the root of the domain is mounted that is not the initramfs.
const ROOT: &str = "/mnt";
/// The folders of the machine that a root gets besides ours. Those that it lacks are made, where it
/// can be written.
const SHARED: [&str; 3] = ["proc", "sys", "dev"];
/// Descriptors of the agent: one for each member, six for each process, as many as there are
/// streams.
const OPEN_FILES: u64 = 4096;
/// How long a disk may take to appear.
const DISK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often is looked for it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Network cards, in `/sys/class/net/*/type` (`ARPHRD_ETHER`).
const ETHERNET: &str = "1";

/// Keeps the agent from being killed for want of memory, makes it the parent of its orphans, and
/// gives it room for all members and processes that it may have.
///
/// # Errors
/// The kernel's error.
pub fn protect() -> io::Result<()> {
    let hard = getrlimit(Resource::Nofile).maximum;
    let most = Some(OPEN_FILES.min(hard.unwrap_or(u64::MAX)));
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: hard })?;
    fs::write("/proc/self/oom_score_adj", "-1000")?;
    sys::process::set_child_subreaper()
}

/// Writes everything to the disks and switches the machine off. Comes back only where that fails.
///
/// # Errors
/// The kernel's error.
pub fn power_off() -> io::Result<()> {
    // The group of number 1 is to kill(2) everybody but the first process and us: nobody shall
    // write to a disk any more. Those who can't be killed are not worth a word now.
    let _gone = rustix::process::kill_process_group(Pid::INIT, Signal::KILL);
    rustix::fs::sync();
    // A root that nobody uses is left as after a clean end; else its journal has the rest.
    let _busy = mount_remount(ROOT, MountFlags::RDONLY, c"");
    let _busy = unmount(ROOT, UnmountFlags::DETACH);
    rustix::fs::sync();
    Ok(rustix::system::reboot(RebootCommand::PowerOff)?)
}

fn at<'a, E: Into<io::Error>>(what: &'a str, path: &'a Path) -> impl FnOnce(E) -> String + 'a {
    move |error| format!("can't {what} {}: {}", path.display(), error.into())
}

/// Makes the machine what the node says; what the command is to see as `/`, if that is another
/// root.
pub(crate) fn apply(config: &Config, boot: &Boot) -> Result<Option<PathBuf>, String> {
    if !config.owns_machine {
        return Ok(None);
    }
    rustix::system::sethostname(boot.hostname.as_bytes())
        .map_err(|error| format!("can't be called {:?}: {error}", boot.hostname))?;
    write("/etc/hostname", &format!("{}\n", boot.hostname))?;
    let hosts = format!(
        "127.0.0.1 localhost\n127.0.1.1 {}\n::1 localhost ip6-localhost ip6-loopback\n",
        boot.hostname
    );
    write("/etc/hosts", &hosts)?;
    if let Some(text) = &boot.resolv_conf {
        write("/etc/resolv.conf", text)?;
    }
    network(boot).map_err(|error| format!("can't set up the network: {error}"))?;
    place(config)?;
    boot.root.as_ref().map(|root| mount_root(config, boot, root)).transpose()
}

fn write(path: &str, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(at("write", Path::new(path)))
}

fn network(boot: &Boot) -> io::Result<()> {
    let interfaces = Interfaces::open()?;
    interfaces.set_up(LOOPBACK)?;
    match &boot.network {
        Some(network) => {
            let card = first_card().ok_or_else(|| io::Error::other("there is no network card"))?;
            let (address, prefix, gateway) = parse(network).ok_or_else(|| {
                io::Error::other(format!("{} by {} is no network", network.address, network.gateway))
            })?;
            interfaces.set_up(card)?;
            interfaces.add_address(card, IpAddr::V4(address), prefix)?;
            interfaces.add_default_route(card, gateway)
        }
        None => interface::add_loopback_addresses(STUB_ADDRESS),
    }
}

fn parse(network: &Network) -> Option<(Ipv4Addr, u8, Ipv4Addr)> {
    let (address, prefix) = network.address.split_once('/')?;
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
    Some((address.parse().ok()?, prefix, network.gateway.parse().ok()?))
}

/// Index of the network card that the kernel found first.
fn first_card() -> Option<u32> {
    let entries = fs::read_dir("/sys/class/net").ok()?.filter_map(Result::ok);
    let number = |entry: &fs::DirEntry, name: &str| {
        fs::read_to_string(entry.path().join(name)).ok().map(|text| text.trim().to_owned())
    };
    let cards = entries.filter(|entry| number(entry, "type").as_deref() == Some(ETHERNET));
    cards.filter_map(|card| number(&card, "ifindex")?.parse().ok()).min()
}

/// Places what programs find in `/run/tombolo`: our program and the libraries that the image has.
fn place(config: &Config) -> Result<(), String> {
    fs::create_dir_all(&config.run).map_err(at("make", &config.run))?;
    show(&config.program, &config.run.join("tombolo"))?;
    let entries = match fs::read_dir(&config.libraries) {
        Ok(entries) => entries,
        // An image may have none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at("read", &config.libraries)(error)),
    };
    for entry in entries.filter_map(Result::ok) {
        show(&entry.path(), &config.run.join(entry.file_name()))?;
    }
    Ok(())
}

/// Binds a file or a folder on another place, which is made. Nothing is copied: all of it is in the
/// guest's memory.
fn show(source: &Path, target: &Path) -> Result<(), String> {
    if source.is_dir() {
        fs::create_dir_all(target).map_err(at("make", target))?;
    } else {
        fs::write(target, "").map_err(at("make", target))?;
    }
    mount_bind(source, target).map_err(at("bind on", target))
}

/// Mounts the root of the domain, and in it what belongs to the machine.
fn mount_root(config: &Config, boot: &Boot, root: &Root) -> Result<PathBuf, String> {
    let (place, device) = (PathBuf::from(ROOT), Path::new(&root.device));
    let deadline = Instant::now() + DISK_TIMEOUT;
    while !device.exists() && Instant::now() < deadline {
        // tidy(sleep): a disk that is not there is looked for before anything else is done; none of
        // this happens twice.
        std::thread::sleep(LOOK_AGAIN);
    }
    fs::create_dir_all(&place).map_err(at("make", &place))?;
    let flags = if root.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    mount(device, &place, root.kind.as_str(), flags, None)
        .map_err(|error| format!("can't mount {} as {}: {error}", root.device, root.kind))?;
    for name in SHARED {
        let target = folder(&place, name)?;
        mount_bind_recursive(Path::new("/").join(name), &target).map_err(at("bind on", &target))?;
    }
    folder(&place, "srv")?;
    let run = folder(&place, "run")?;
    temporary(&run)?;
    if root.read_only {
        temporary(&folder(&place, "tmp")?)?;
    }
    for ours in [&config.run, &config.resolve] {
        fs::create_dir_all(ours).map_err(at("make", ours))?;
        let target = inside(&place, ours);
        fs::create_dir_all(&target).map_err(at("make", &target))?;
        mount_bind_recursive(ours, &target).map_err(at("bind on", &target))?;
    }
    if let Some(text) = &boot.resolv_conf {
        resolv_conf(&place, text)?;
    }
    Ok(place)
}

/// A folder of a root, which is made where it is missing.
fn folder(root: &Path, name: &str) -> Result<PathBuf, String> {
    let path = root.join(name);
    if !path.is_dir() {
        fs::create_dir(&path).map_err(|error| {
            format!("the root has no /{name}, which everything needs, and it can't be made: {error}")
        })?;
    }
    Ok(path)
}

fn temporary(place: &Path) -> Result<(), String> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = CString::from(c"mode=1777");
    let options = if place.ends_with("run") { CString::from(c"mode=755") } else { options };
    mount("tmpfs", place, "tmpfs", flags, options.as_c_str()).map_err(at("mount a tmpfs on", place))
}

/// Where a path of the machine is in a root.
pub(crate) fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Has the root's `/etc/resolv.conf` say this, without a trace on its disk.
fn resolv_conf(root: &Path, text: &str) -> Result<(), String> {
    let place = root.join("etc/resolv.conf");
    // A link, as systemd's resolver makes them, leads into what is ours: the root's /run.
    let target = match fs::read_link(&place) {
        Ok(link) => inside(root, &Path::new("/etc").join(link)),
        Err(_) => place,
    };
    if target.is_file() {
        let own = root.join("run/tombolo-resolv.conf");
        fs::write(&own, text).map_err(at("write", &own))?;
        return mount_bind(&own, &target).map_err(at("bind on", &target));
    }
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(at("make", folder))?;
    }
    fs::write(&target, text).map_err(at("write", &target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_an_address_a_prefix_and_a_gateway() {
        let network =
            |address: &str, gateway: &str| Network { address: address.into(), gateway: gateway.into() };
        let good = parse(&network("10.0.2.15/24", "10.0.2.2"));
        assert_eq!(good, Some((Ipv4Addr::new(10, 0, 2, 15), 24, Ipv4Addr::new(10, 0, 2, 2))));
        for (address, gateway) in [("10.0.2.15", "10.0.2.2"), ("10.0.2.15/33", "10.0.2.2"), ("a/1", "b")] {
            assert_eq!(parse(&network(address, gateway)), None);
        }
    }
}
