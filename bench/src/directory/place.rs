//! Where the bench runs: a network namespace of its own with a bridge and a name server, and in it
//! a node of its own. Nothing of it is seen from the machine's network, and all of it goes when its
//! processes go.

use crate::machine::{check_files, check_programs, check_root, finish, inside, network_namespace};
use crate::machines::{self, Card, Image, Network};
use crate::scenario::BenchError;
use crate::undo::Undo;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

/// Address of the bridge, and of the name server on it. Of the block for benchmarks (RFC 2544).
pub const NAME_SERVER: &str = "198.18.0.1";
/// The suffix of all names.
pub const SUFFIX: &str = "bench.test";
/// The distributed container of the bench.
pub const DC: &str = "bench";
/// Where the domains see the programs of this build; guests have them at the same place.
pub const PROGRAMS: &str = machines::PROGRAMS;
/// Addresses of the network cards of guests, on the bridge.
const GUEST_ADDRESS: &str = "198.18.255.1/16";

/// Makes the bridge, says so, and stays until its input ends; nobody reads what it says then, which
/// busybox's `cat` would notice.
const HUB: &str = "set -e
ip link set lo up
ip link add hub type bridge
ip address add 198.18.0.1/16 dev hub
ip link set hub up
echo up
exec cat >/dev/null";

/// Ends, by pid, whatever runs in a network namespace (its inode is the argument): it was made by
/// the bench alone.
const END_ALL: &str = "for process in /proc/[0-9]*; do \
    [ \"$(readlink \"$process/ns/net\" 2>/dev/null)\" != \"$1\" ] || kill \"${process#/proc/}\" 2>/dev/null; \
    done; true";

/// The network namespace, the name server in it, and the node.
#[derive(Debug)]
pub struct Place {
    /// Undone last, after the node and the name server have been told to end.
    undo: Option<Undo>,
    /// Whether a node was begun, so that it has to be ended.
    node: bool,
    hub: Child,
    name_server: Child,
    _name_server_says: BufReader<ChildStderr>,
    binary: PathBuf,
    folder: PathBuf,
    /// The image that the domains boot, where they are virtual machines.
    guest: Option<Image>,
}

impl Place {
    /// Makes it all. With a guest's image, its domain is a virtual machine.
    ///
    /// # Errors
    /// Where something is missing or does not start; what had been made is undone.
    pub fn make(binary: &Path, guest: Option<&Image>) -> Result<Self, BenchError> {
        check_machine(binary)?;
        let (mut undo, folder) = Undo::with_folder()?;
        let mut later =
            |command: &[&OsStr]| undo.add(command).map_err(BenchError::io("noting what to clean up"));
        let hub = network_namespace(HUB)?;
        let namespace = std::fs::read_link(format!("/proc/{}/ns/net", hub.id()))
            .map_err(BenchError::io("looking at the hub"))?;
        later(&["sh".as_ref(), "-c".as_ref(), END_ALL.as_ref(), "sh".as_ref(), namespace.as_os_str()])?;
        let (name_server, says) = start_name_server(hub.id(), &folder)?;
        Ok(Self {
            undo: Some(undo),
            node: false,
            hub,
            name_server,
            _name_server_says: says,
            binary: binary.to_path_buf(),
            folder,
            guest: guest.cloned(),
        })
    }

    /// A folder for files of the run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A command in the network namespace of the place.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        inside(self.hub.id(), program)
    }

    /// `tombolo ARGUMENTS` for the node of this place.
    #[must_use]
    pub fn tombolo(&self, arguments: &[&str]) -> Command {
        self.of_node(self.command(&self.binary), arguments)
    }

    fn of_node(&self, mut command: Command, arguments: &[&str]) -> Command {
        let state = self.folder.join("state");
        command.arg("--run-dir").arg(self.run_dir()).arg("--state-dir").arg(state).args(arguments);
        command
    }

    /// The run directory of the node.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Folder of the programs that are measured.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.binary.parent().map_or_else(PathBuf::new, Path::to_path_buf)
    }

    /// Whether its domain is a virtual machine.
    #[must_use]
    pub fn has_guest(&self) -> bool {
        self.guest.is_some()
    }

    /// The beginning of a command in a domain: `tombolo exec [OPTION...] DC/NAME --`.
    #[must_use]
    pub fn exec(&self, number: usize, options: &[&str]) -> Command {
        let mut command = self.tombolo(&["exec"]);
        command.args(options).args([&format!("{DC}/{}", domain_name(number)), "--"]);
        command
    }

    /// Gives the guest of a domain a network card on the bridge, for its own resolver.
    ///
    /// # Errors
    /// Where its machine does not take it.
    pub fn plug_card(&self, number: usize) -> Result<(), BenchError> {
        let socket =
            self.run_dir().join("dc").join(DC).join(domain_name(number)).join("machine/machine.sock");
        let card = Card { number: 1, address: GUEST_ADDRESS, network: Network::Bridge("hub") };
        card.plug(self.hub.id(), &socket, self.exec(number, &[]))
    }

    /// Brings `domains` domains up, with the cache as said; what runs already stays.
    ///
    /// # Errors
    /// Where `tombolo up` fails.
    pub fn up(&mut self, domains: usize, cache: &str) -> Result<(), BenchError> {
        check_node(&self.binary)?;
        self.end_node_later()?;
        let file = self.folder.join("topology.toml");
        std::fs::write(&file, topology(domains, cache, &self.programs(), self.guest.as_ref()))
            .map_err(BenchError::io("writing the topology"))?;
        finish(self.tombolo(&["up", &file.to_string_lossy()]))
    }

    fn end_node_later(&mut self) -> Result<(), BenchError> {
        if self.node {
            return Ok(());
        }
        // Without the hub's namespace in front: that may be gone when this is run.
        let down = self.of_node(Command::new(&self.binary), &["down", "--all"]);
        let words: Vec<&OsStr> = std::iter::once(down.get_program()).chain(down.get_args()).collect();
        if let Some(undo) = &mut self.undo {
            undo.add(&words).map_err(BenchError::io("noting what to clean up"))?;
        }
        self.node = true;
        Ok(())
    }

    /// Ends all domains.
    ///
    /// # Errors
    /// Where `tombolo down` fails.
    pub fn down(&self) -> Result<(), BenchError> {
        finish(self.tombolo(&["down", "--all"]))
    }

    /// Ends everything; dropping does the same, and can't tell.
    ///
    /// # Errors
    /// Where something could not be undone.
    pub fn end(mut self) -> Result<(), BenchError> {
        let undo = self.undo.take();
        undo.map_or(Ok(()), Undo::finish).map_err(BenchError::io("cleaning up"))
    }

    /// Process of the name server.
    #[must_use]
    pub fn name_server(&self) -> u32 {
        self.name_server.id()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // First the node, while its network is there; the shell does it. Then what is left are
        // children of ours.
        drop(self.undo.take());
        for child in [&mut self.name_server, &mut self.hub] {
            // It may have ended with its namespace already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn check_machine(binary: &Path) -> Result<(), BenchError> {
    check_root()?;
    check_programs(&["ip", "nsenter", "unshare", "dnsmasq"])?;
    check_files(binary, &["lookup-worker"])
}

/// Checks what the node needs beyond the rest.
fn check_node(binary: &Path) -> Result<(), BenchError> {
    check_programs(&["runc"])?;
    check_files(binary, &["tombolo", "libtombolo_preload.so"])
}

fn start_name_server(hub: u32, folder: &Path) -> Result<(Child, BufReader<ChildStderr>), BenchError> {
    let configuration = folder.join("dnsmasq.conf");
    std::fs::write(&configuration, zone()).map_err(BenchError::io("writing the zone"))?;
    let mut child = inside(hub, "dnsmasq")
        .args(["--keep-in-foreground", "--log-facility=-", "--pid-file="])
        .arg(format!("--conf-file={}", configuration.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(BenchError::io("starting dnsmasq"))?;
    let mut says = BufReader::new(
        child.stderr.take().ok_or_else(|| BenchError::Missing { what: "a pipe".into(), how: "try again" })?,
    );
    let mut said = String::new();
    // dnsmasq says `started` once its sockets are bound.
    while !said.contains("started") {
        let before = said.len();
        says.read_line(&mut said).map_err(BenchError::io("listening to dnsmasq"))?;
        if said.len() == before {
            let status = child.wait().map_err(BenchError::io("waiting for dnsmasq"))?.to_string();
            return Err(BenchError::Command { command: "dnsmasq".into(), status, said });
        }
    }
    Ok((child, says))
}

/// Every name below the suffix has an address of each family, for five minutes.
fn zone() -> String {
    format!(
        "port=53\nlisten-address={NAME_SERVER}\nbind-interfaces\nno-resolv\nno-hosts\nuser=root\ncache-size=0\nlocal-ttl=300\n\
         address=/{SUFFIX}/192.0.2.1\naddress=/{SUFFIX}/2001:db8::1\n"
    )
}

fn topology(domains: usize, cache: &str, programs: &Path, guest: Option<&Image>) -> String {
    let mut text = format!(
        "name = \"{DC}\"\n\n\
         [domain.resolver]\nkind = \"container\"\nnetwork = \"host\"\n\n\
         [service.dns]\nkind = \"directory\"\ndomain = \"resolver\"\n\
         allow = [{{ domains = \"*\", verbs = [\"resolve\"] }}]\n\
         settings = {{ upstream = [\"{NAME_SERVER}:53\"], cache = {{ mode = \"{cache}\" }} }}\n"
    );
    let kind = guest.map_or_else(
        || {
            let mounts = format!("mounts = [{{ source = \"{}\", target = \"{PROGRAMS}\" }}]", programs.display());
            format!(
                "kind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\nstop = {{ signal = \"KILL\" }}\n{mounts}\n"
            )
        },
        machines::topology,
    );
    for number in 0..domains {
        // Infallible: writing into a text.
        let _ =
            write!(text, "\n[domain.{}]\n{kind}services = {{ dns = \"/srv/dns\" }}\n", domain_name(number));
    }
    text
}

/// Name of the domain with this number, from 0.
#[must_use]
pub fn domain_name(number: usize) -> String {
    format!("d{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topology_has_as_many_domains_as_asked_for() {
        let text = topology(3, "private", Path::new("/programs"), None);
        assert_eq!(text.matches("[domain.d").count(), 3);
        assert!(text.contains("mode = \"private\"") && text.contains("source = \"/programs\""));
    }

    #[test]
    fn a_guest_is_a_domain_without_mounts() {
        let image = Image { kernel: "/i/vmlinuz".into(), initramfs: "/i/initramfs".into() };
        let text = topology(1, "none", Path::new("/programs"), Some(&image));
        assert!(text.contains("kind = \"vm\"") && text.contains("services = ") && !text.contains("mounts"));
    }
}
