//! Frontends: how the daemon starts one, and what it hands over.
//!
//! A frontend's standard input is its private control socket. The first packet on it is the [`Launch`], with the
//! descriptors that it serves; so nothing has to be inherited by number, and the frontend does nothing before the daemon has
//! put it into the domain's cgroup.

use crate::broker::{Identity, Role};
use crate::control;
use crate::incarnation::{Held, about, blocking, said};
use crate::node::Node;
use crate::watched::watched;
use domain::Part;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use topology::Domain;

/// Longest launch packet, in bytes.
const MAX_LAUNCH_BYTES: usize = 16 * 1024;
/// Most descriptors of a launch: the FUSE session, the ledger, the sockets of the entrances.
const MAX_LAUNCH_DESCRIPTORS: usize = 8;

/// How long a frontend may take to ask what its domain is and mounts.
const INTRODUCTION_PATIENCE: Duration = Duration::from_secs(5);

/// Descriptors of the native entrances, those that the domain has.
#[derive(Debug, Default)]
pub struct Entrances {
    /// The DNS stub's UDP socket, bound.
    pub stub_udp: Option<OwnedFd>,
    /// The DNS stub's TCP socket, listening.
    pub stub_tcp: Option<OwnedFd>,
    /// The resolver's socket, listening.
    pub resolve: Option<OwnedFd>,
}

impl Entrances {
    /// Those that are there, in an order that is always the same.
    fn list(&self) -> Vec<(Entrance, &OwnedFd)> {
        let all = [
            (Entrance::StubUdp, &self.stub_udp),
            (Entrance::StubTcp, &self.stub_tcp),
            (Entrance::Resolve, &self.resolve),
        ];
        all.into_iter().filter_map(|(entrance, descriptor)| Some((entrance, descriptor.as_ref()?))).collect()
    }

    /// Their descriptors, in that order.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = &OwnedFd> {
        self.list().into_iter().map(|(_, descriptor)| descriptor)
    }
}

/// What a frontend is told at its start.
#[derive(Debug)]
pub struct Launch {
    /// The FUSE session.
    pub fuse: OwnedFd,
    /// Where it keeps what a successor needs.
    pub ledger: OwnedFd,
    /// Sockets of the native entrances.
    pub entrances: Entrances,
    /// The private control socket of the entrances.
    pub entrance_control: OwnedFd,
    /// The rest.
    pub order: LaunchOrder,
}

/// What a frontend is told in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchOrder {
    /// The distributed container.
    pub dc: String,
    /// The domain.
    pub domain: String,
    /// Whether it takes over from one that ended.
    pub successor: bool,
    /// Which descriptors follow those that are always there, in this order.
    entrances: Vec<Entrance>,
    /// The service that the stub asks.
    pub stub_service: Option<String>,
    /// The service that the resolver socket asks.
    pub resolve_service: Option<String>,
    /// Suffixes for short names, for the resolver socket.
    pub search: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Entrance {
    StubUdp,
    StubTcp,
    Resolve,
}

/// Why a process that was started as a frontend is none.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// Its standard input is no control socket.
    #[error(
        "a frontend is started by the daemon, not by hand: its standard input must be its control socket ({0})"
    )]
    Socket(io::Error),
    /// What the daemon sent makes no sense.
    #[error("the daemon sent an order that is not understood: {0}")]
    Order(String),
}

/// Takes the launch from the private control socket.
///
/// # Errors
/// [`LaunchError`].
pub fn receive_launch(socket: impl AsFd) -> Result<Launch, LaunchError> {
    let mut bytes = vec![0; MAX_LAUNCH_BYTES];
    let (length, descriptors) =
        sys::descriptors::receive_with_descriptors(&socket, &mut bytes, MAX_LAUNCH_DESCRIPTORS)
            .map_err(LaunchError::Socket)?;
    let text = bytes.get(..length).unwrap_or(&bytes);
    let order: LaunchOrder = serde_json::from_slice(text).map_err(|e| LaunchError::Order(e.to_string()))?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| LaunchError::Order("a descriptor is missing".into()));
    let (fuse, ledger, entrance_control) = (next()?, next()?, next()?);
    let mut entrances = Entrances::default();
    for entrance in &order.entrances {
        let place = match entrance {
            Entrance::StubUdp => &mut entrances.stub_udp,
            Entrance::StubTcp => &mut entrances.stub_tcp,
            Entrance::Resolve => &mut entrances.resolve,
        };
        *place = Some(next()?);
    }
    Ok(Launch { fuse, ledger, entrances, entrance_control, order })
}

fn send_launch(
    socket: &OwnedFd,
    entrance_control: &OwnedFd,
    dc: &str,
    domain: &Domain,
    held: &Held,
    successor: bool,
) -> io::Result<()> {
    let optional = held.entrances.list();
    let with = |wanted: fn(&topology::ServiceMount) -> bool| {
        domain.services.iter().find(|mount| wanted(mount)).map(|mount| mount.service.as_str().to_owned())
    };
    let order = LaunchOrder {
        dc: dc.to_owned(),
        domain: domain.name.as_str().to_owned(),
        successor,
        entrances: optional.iter().map(|(entrance, _)| *entrance).collect(),
        stub_service: with(|mount| mount.stub),
        resolve_service: with(|mount| mount.resolve),
        search: domain.resolv.search.clone(),
    };
    let mut descriptors: Vec<BorrowedFd<'_>> =
        vec![held.fuse.as_fd(), held.ledger.as_fd(), entrance_control.as_fd()];
    descriptors.extend(optional.iter().map(|(_, descriptor)| descriptor.as_fd()));
    let bytes = serde_json::to_vec(&order)?;
    sys::descriptors::send_with_descriptors(socket, &bytes, &descriptors)
}

/// The cgroup of a domain's frontend.
pub(crate) fn cgroup(node: &Node, dc: &str, name: &str) -> Result<String, String> {
    let paths = node.layout.domain(dc, name).map_err(said)?;
    Ok(format!("{}/{}", paths.cgroup, Part::Frontend.name()))
}

/// A frontend that runs. Dropped, it is left alone: it ends with its mount or its cgroup, and outlives the daemon.
#[derive(Debug)]
pub(crate) struct Frontend {
    child: Option<Child>,
    pid: u32,
    ended: Arc<AsyncFd<OwnedFd>>,
}

impl Frontend {
    /// Starts a frontend in the domain's cgroup and hands it what is held.
    pub(crate) async fn spawn(
        node: &Arc<Node>,
        dc: &str,
        domain: &Domain,
        held: &Held,
        successor: bool,
    ) -> Result<Self, String> {
        let name = domain.name.as_str();
        let pair = || sys::descriptors::socket_pair().map_err(|e| format!("no socket for the frontend: {e}"));
        let (ours, theirs) = pair()?;
        let (our_entrances, their_entrances) = pair()?;
        let child = Command::new(&node.layout.program)
            .args(["frontend", &format!("{dc}/{name}")])
            .env_clear()
            .env(crate::place::RUN_DIR_VARIABLE, &node.layout.run_dir)
            .envs(std::env::var_os(LOG_VARIABLE).map(|value| (LOG_VARIABLE, value)))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .current_dir("/")
            // Ctrl-C at a daemon in the foreground is not for it.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("can't start {} as a frontend: {e}", node.layout.program.display()))?;
        let frontend = Self::watch(child)?;
        let pid = frontend.pid();
        {
            let (node, dc, name) = (Arc::clone(node), dc.to_owned(), name.to_owned());
            blocking(move || domain::join_cgroup(&node.layout, &dc, &name, Part::Frontend, pid))
                .await?
                .map_err(said)?;
        }
        send_launch(&ours, &their_entrances, dc, domain, held, successor)
            .map_err(|e| format!("the frontend did not take its order: {e}"))?;
        let about = about(node);
        let admit = |role, socket| {
            let identity = Identity { dc: dc.to_owned(), domain: name.to_owned(), role, pid, main: false };
            control::admit_private(&node.broker, &about, identity, socket)
                .map_err(|e| format!("the frontend's control socket can't be watched: {e}"))
        };
        admit(Role::Entrances, our_entrances)?;
        // Only then does it know what to show: a program that looks at once shall find its services.
        if let Some(member) = admit(Role::Frontend, ours)?
            && tokio::time::timeout(INTRODUCTION_PATIENCE, node.broker.introduced(member)).await.is_err()
        {
            tracing::warn!(dc, domain = name, "its frontend does not ask what to show");
        }
        Ok(frontend)
    }

    fn watch(child: Child) -> Result<Self, String> {
        let watched =
            sys::process::pidfd_open(child.id()).and_then(|pidfd| watched(pidfd, Interest::READABLE));
        match watched {
            Ok(ended) => {
                let pid = child.id();
                Ok(Self { child: Some(child), pid, ended: Arc::new(ended) })
            }
            Err(error) => {
                end(child);
                Err(format!("a frontend can't be watched: {error}"))
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Comes back when it has ended and somebody has to take its place. One that ended by itself found its mount gone: the
    /// domain is ending, and no successor could do better.
    pub(crate) async fn ended(&mut self) {
        if let Err(error) = self.ended.readable().await {
            tracing::error!(%error, "the end of a frontend can't be awaited");
        }
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        let by_itself = status.is_some_and(|status| status.success());
        if by_itself {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let ended = Arc::clone(&self.ended);
        // Nobody but its parent can reap it. Without a loop the daemon is ending, and init does that.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if ended.readable().await.is_ok() {
                    let _reaped = child.wait();
                }
            });
        }
    }
}

fn end(mut child: Child) {
    let _ended_already = child.kill();
    let _reaped = child.wait();
}

/// Says what is logged.
pub(crate) const LOG_VARIABLE: &str = "TOMBOLO_LOG";

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> OwnedFd {
        rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    fn name_of(descriptor: &OwnedFd) -> String {
        let link =
            std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(descriptor)));
        link.unwrap().to_string_lossy().into_owned()
    }

    #[test]
    fn a_launch_arrives_with_each_descriptor_in_its_place() {
        let text =
            "name = \"shop\"\n[domain.web]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"true\"]\n";
        let topology = topology::parse(text, "x.toml", std::path::Path::new("/")).unwrap();
        let entrances =
            Entrances { stub_udp: None, stub_tcp: Some(file("tcp")), resolve: Some(file("resolve")) };
        let held = Held { fuse: file("fuse"), ledger: file("ledger"), entrances };
        let (ours, theirs) = sys::descriptors::socket_pair().unwrap();
        send_launch(&ours, &file("control"), "shop", &topology.domains[0], &held, true).unwrap();
        let launch = receive_launch(&theirs).unwrap();
        assert!(
            launch.order.successor && launch.order.domain == "web" && launch.entrances.stub_udp.is_none()
        );
        for (descriptor, name) in [
            (&launch.fuse, "fuse"),
            (&launch.ledger, "ledger"),
            (&launch.entrance_control, "control"),
            (launch.entrances.stub_tcp.as_ref().unwrap(), "tcp"),
            (launch.entrances.resolve.as_ref().unwrap(), "resolve"),
        ] {
            assert!(name_of(descriptor).contains(name), "{} is not {name}", name_of(descriptor));
        }
    }

    #[test]
    fn an_order_without_its_descriptors_or_without_sense_is_refused() {
        let (ours, theirs) = sys::descriptors::socket_pair().unwrap();
        sys::descriptors::send_with_descriptors(&ours, b"{}", &[]).unwrap();
        assert!(matches!(receive_launch(&theirs), Err(LaunchError::Order(_))));
        let order = b"{\"dc\":\"a\",\"domain\":\"b\",\"successor\":false,\"entrances\":[],\"search\":[]}";
        sys::descriptors::send_with_descriptors(&ours, order, &[ours.as_fd()]).unwrap();
        let refusal = receive_launch(&theirs).unwrap_err().to_string();
        assert!(refusal.contains("a descriptor is missing"), "{refusal}");
        assert!(matches!(receive_launch(std::io::stdin()), Err(LaunchError::Socket(_))));
    }
}
