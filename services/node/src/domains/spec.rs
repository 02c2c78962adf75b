//! A domain of a topology, as the machinery of domains wants it.

use super::machines;
use crate::volumes;
use domain::{self as target, DomainSpec, Layout};
use std::path::PathBuf;
use topology::{Domain, Program, Topology};

/// Where the stub listens inside a domain: what `resolv.conf` says.
pub(crate) const STUB_ADDRESS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(127, 0, 0, 53);
/// The stub's port.
pub(crate) const STUB_PORT: u16 = 53;
/// The socket for clients of 9P2000.L, in what the domain sees as `/run/tombolo`.
pub(crate) const NINEP_SOCKET: &str = "9p.sock";
/// Where stock `libnss-resolve` looks for its socket: the folder.
pub(crate) const RESOLVE_FOLDER: &str = "/run/systemd/resolve";
/// Its socket in there.
pub(crate) const RESOLVE_SOCKET: &str = "io.systemd.Resolve";
/// The variable that names the folder of a domain's secrets.
const SECRETS_VARIABLE: &str = "TOMBOLO_SECRETS";
/// Where a domain sees what is in its `inside` folder.
pub(crate) const INSIDE: &str = "/run/tombolo";
/// A folder in [`INSIDE`] of a domain that runs a server of ours: what the server keeps there
/// outlives it, as long as the domain is in its file.
pub(crate) const KEPT: &str = "kept";
/// The folder of the node's state directory with file trees, and its name in [`INSIDE`].
pub(crate) const FILES: &str = "files";
/// The capability to open files whatever their modes say.
const OVERRIDE: &str = "DAC_OVERRIDE";
/// The preload library, beside the binary on the node and in [`INSIDE`] in a domain.
pub(crate) const PRELOAD_LIBRARY: &str = "libtombolo_preload.so";

/// The specification of one incarnation; of a machine with what the node found for it.
pub(crate) fn of_domain(
    layout: &Layout,
    topology: &Topology,
    domain: &Domain,
    found: Option<&machines::Found>,
) -> DomainSpec {
    if let (Some(machine), Some(found)) = (&domain.machine, found) {
        return machines::spec(layout, topology.name.as_str(), domain, machine, found);
    }
    let dc = topology.name.as_str();
    let name = domain.name.as_str();
    DomainSpec {
        dc: dc.to_owned(),
        name: name.to_owned(),
        kind: match domain.kind {
            topology::DomainKind::Process => target::Kind::Process,
            topology::DomainKind::Container => target::Kind::Container,
            topology::DomainKind::Vm => target::Kind::Vm,
        },
        root: crate::base::root(layout, &domain.root),
        writable: domain.writable,
        layer: domain
            .layer()
            .map(|layer| target::Layer { bytes: layer.size_bytes, inodes: u64::from(layer.inodes) }),
        userns: domain.userns,
        command: command(layout, dc, domain),
        environment: {
            let mut variables = environment(layout, dc, domain);
            if serves_files(topology, domain) {
                let folder = files_inside(layout, dc, domain).display().to_string();
                variables.push((wire::files::STORE_VARIABLE.into(), folder));
            }
            variables
        },
        mounts: mounts(layout, topology, domain),
        user: domain.user.as_ref().map(crate::base::user_text),
        network: match domain.network {
            topology::Network::None => target::Network::None,
            topology::Network::Host => target::Network::Host,
        },
        hostname: domain.hostname.clone(),
        workdir: domain.workdir.clone(),
        capabilities: capabilities(topology, domain),
        limits: limits(domain),
        log: log(domain),
        stop: stop(domain),
        resolv_conf: has_stub(domain).then(|| resolv_conf(domain)),
        runtime: target::RuntimeChoice::Auto,
        machine: None,
        held: false,
    }
}

/// The limits that the kernel enforces on a domain.
pub(crate) fn limits(domain: &Domain) -> target::Limits {
    target::Limits {
        cpu: domain.limits.cpu_milli.map(|milli| f64::from(milli) / 1000.0),
        memory_bytes: domain.limits.memory_bytes,
        pids: Some(u64::from(domain.limits.pids)),
    }
}

pub(crate) fn log(domain: &Domain) -> target::LogLimits {
    target::LogLimits { max_bytes: domain.log.max_bytes, files: domain.log.files }
}

pub(crate) fn stop(domain: &Domain) -> target::Stop {
    target::Stop { signal: domain.stop.signal.number(), timeout_ms: domain.stop.timeout_ms }
}

/// Whether a stub answers in the domain.
pub(crate) fn has_stub(domain: &Domain) -> bool {
    domain.services.iter().any(|mount| mount.stub)
}

/// The folder on the node on which the secrets of a process are mounted, for it alone.
pub(crate) fn secrets_folder(layout: &Layout, dc: &str, name: &str) -> PathBuf {
    layout.domains().join(dc).join(name).join("inside/secrets")
}

/// The folder in which a domain reads its secrets.
pub(crate) fn secrets_at(layout: &Layout, dc: &str, domain: &Domain) -> PathBuf {
    match domain.kind {
        topology::DomainKind::Container | topology::DomainKind::Vm => PathBuf::from(target::SECRETS),
        // It sees the node's own /run, but for its own folder in the place of ours.
        topology::DomainKind::Process if layout.run_dir == std::path::Path::new(INSIDE) => {
            PathBuf::from(INSIDE).join("secrets")
        }
        topology::DomainKind::Process => secrets_folder(layout, dc, domain.name.as_str()),
    }
}

/// Whether a resolver socket answers in the domain.
pub(crate) fn has_resolve(domain: &Domain) -> bool {
    domain.services.iter().any(|mount| mount.resolve)
}

/// The folder on the node that the domain sees as [`RESOLVE_FOLDER`].
pub(crate) fn resolve_folder(layout: &Layout, dc: &str, name: &str) -> PathBuf {
    layout.domains().join(dc).join(name).join("inside/resolve")
}

pub(crate) fn command(layout: &Layout, dc: &str, domain: &Domain) -> Vec<String> {
    match &domain.program {
        Program::Command(words) => words.clone(),
        Program::Image | Program::Nothing => Vec::new(),
        // The last words are for people: `ps` on the node shows whose server it is.
        Program::Server(_) => vec![
            program(layout, domain),
            "server".into(),
            format!("{dc}/{}", domain.name.as_str()),
            layout.run_dir.display().to_string(),
        ],
    }
}

/// Our binary, as the domain sees it.
pub(crate) fn program(layout: &Layout, domain: &Domain) -> String {
    match domain.kind {
        topology::DomainKind::Container | topology::DomainKind::Vm => format!("{INSIDE}/tombolo"),
        // It sees the node's own files.
        topology::DomainKind::Process => layout.program.display().to_string(),
    }
}

/// The preload library, as the domain sees it.
fn library(layout: &Layout, domain: &Domain) -> String {
    match domain.kind {
        topology::DomainKind::Container | topology::DomainKind::Vm => format!("{INSIDE}/{PRELOAD_LIBRARY}"),
        topology::DomainKind::Process => layout.program.with_file_name(PRELOAD_LIBRARY).display().to_string(),
    }
}

pub(crate) fn environment(layout: &Layout, dc: &str, domain: &Domain) -> Vec<(String, String)> {
    let mut variables: Vec<_> = domain.environment.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    if !domain.secrets.is_empty() {
        let at = secrets_at(layout, dc, domain).display().to_string();
        variables.push((SECRETS_VARIABLE.into(), at));
    }
    if domain.services.iter().any(|mount| mount.preload) && !domain.environment.contains_key("LD_PRELOAD") {
        variables.push(("LD_PRELOAD".into(), library(layout, domain)));
    }
    if keeps(domain) {
        variables.push((
            wire::control::KEPT_VARIABLE.into(),
            kept_inside(layout, dc, domain).display().to_string(),
        ));
    }
    variables
}

/// Whether a domain has a folder in which a server keeps something. A guest sees none of the
/// node's.
pub(crate) fn keeps(domain: &Domain) -> bool {
    matches!(domain.program, Program::Server(_)) && domain.kind != topology::DomainKind::Vm
}

/// Returns the path of that folder on the node.
pub(crate) fn kept_folder(layout: &Layout, dc: &str, name: &str) -> PathBuf {
    layout.domains().join(dc).join(name).join("inside").join(KEPT)
}

/// The same, as the domain sees it.
fn kept_inside(layout: &Layout, dc: &str, domain: &Domain) -> PathBuf {
    let is_process = domain.kind == topology::DomainKind::Process;
    // A process sees the node's own files, but for the run directory that is the usual one.
    if is_process && layout.run_dir != std::path::Path::new(INSIDE) {
        kept_folder(layout, dc, domain.name.as_str())
    } else {
        PathBuf::from(INSIDE).join(KEPT)
    }
}

/// Whether a domain runs the server of a file tree.
pub(crate) fn serves_files(topology: &Topology, domain: &Domain) -> bool {
    let mut served = topology.served_by(domain.name.as_str());
    keeps(domain) && served.any(|service| service.kind() == topology::ServiceKind::Files)
}

/// The folder on the node of the trees of such a domain whose file names no store. It outlives the
/// domain.
pub(crate) fn files_folder(layout: &Layout, dc: &str, name: &str) -> PathBuf {
    layout.state_dir.join(FILES).join(dc).join(name)
}

/// The same, as the domain sees it.
fn files_inside(layout: &Layout, dc: &str, domain: &Domain) -> PathBuf {
    match domain.kind {
        topology::DomainKind::Process => files_folder(layout, dc, domain.name.as_str()),
        topology::DomainKind::Container | topology::DomainKind::Vm => PathBuf::from(INSIDE).join(FILES),
    }
}

/// The capabilities from the file. A server of file trees opens what its tenants have closed to
/// everybody, themselves included, as root does: it may.
fn capabilities(topology: &Topology, domain: &Domain) -> Vec<String> {
    let mut all = domain.capabilities.clone();
    if serves_files(topology, domain) && !all.iter().any(|name| name.trim_start_matches("CAP_") == OVERRIDE) {
        all.push(OVERRIDE.into());
    }
    all
}

fn mounts(layout: &Layout, topology: &Topology, domain: &Domain) -> Vec<target::Mount> {
    let dc = topology.name.as_str();
    let mut mounts: Vec<_> = domain
        .mounts
        .iter()
        .map(|mount| target::Mount {
            source: mount.source.clone(),
            target: mount.target.clone(),
            read_only: mount.read_only,
        })
        .collect();
    // Read-only: whoever may connect to a socket may not remove it.
    mounts.extend(domain.volumes.iter().filter_map(|volume| {
        let source = volumes::share(&layout.run_dir, dc, volume.name.as_str());
        Some(target::Mount { source, target: volume.at.clone()?, read_only: true })
    }));
    if has_resolve(domain) {
        let source = resolve_folder(layout, dc, domain.name.as_str());
        mounts.push(target::Mount { source, target: RESOLVE_FOLDER.into(), read_only: true });
    }
    if keeps(domain) {
        let source = kept_folder(layout, dc, domain.name.as_str());
        let is_process = domain.kind == topology::DomainKind::Process;
        let target = if is_process { source.clone() } else { kept_inside(layout, dc, domain) };
        mounts.push(target::Mount { source, target, read_only: false });
    }
    if serves_files(topology, domain) {
        let source = files_folder(layout, dc, domain.name.as_str());
        mounts.push(target::Mount { source, target: files_inside(layout, dc, domain), read_only: false });
    }
    mounts
}

/// `resolv.conf(5)` of a domain whose names come from the stub.
pub(crate) fn resolv_conf(domain: &Domain) -> String {
    let mut text = format!("nameserver {STUB_ADDRESS}\noptions ndots:{}\n", domain.resolv.ndots);
    if !domain.resolv.search.is_empty() {
        text += &format!("search {}\n", domain.resolv.search.join(" "));
    }
    text
}
