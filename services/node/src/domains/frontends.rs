//! Frontends: how the daemon starts one, and what it hands over.
//!
//! The daemon hands over a [`frontend::Launch`]; the frontend does nothing before it has that, and
//! by then the daemon has put it into the domain's cgroup.

use super::Domains;
use super::handover;
use super::incarnation::{Held, about};
use crate::base::place::LOG_VARIABLE;
use crate::base::watched;
use crate::base::{blocking, said};
use crate::broker::control;
use crate::broker::{Broker, Identity, Machine, MemberId, Role};
use domain::Part;
use frontend::{Handed, LaunchOrder};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use topology::Domain;

/// How long a frontend may take to ask what its domain is and mounts.
const INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The order for the frontend of a domain.
pub(crate) fn order(dc: &str, domain: &Domain, successor: bool) -> LaunchOrder {
    let with = |wanted: fn(&topology::ServiceMount) -> bool| {
        domain.services.iter().find(|mount| wanted(mount)).map(|mount| mount.service.as_str().to_owned())
    };
    let mut order = LaunchOrder::new(dc, domain.name.as_str());
    order.successor = successor;
    order.stub_service = with(|mount| mount.stub);
    order.resolve_service = with(|mount| mount.resolve);
    order.search = domain.resolv.search.clone();
    order
}

/// The cgroup of a domain's frontend.
pub(crate) fn cgroup(node: &Domains, dc: &str, name: &str) -> Result<String, String> {
    let paths = node.layout.domain(dc, name).map_err(said)?;
    Ok(format!("{}/{}", paths.cgroup, Part::Frontend.name()))
}

/// A domain's frontend: a process of ours beside a container, or one that the agent in a guest
/// runs.
#[derive(Debug)]
pub(crate) enum Frontend {
    Here(Process),
    Guest(InGuest),
}

impl Frontend {
    /// Its process on this node.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Here(process) => Some(process.pid),
            Self::Guest(_) => None,
        }
    }

    /// Comes back when there is to be another one.
    pub(crate) async fn ended(&mut self) -> End {
        match self {
            Self::Here(process) => {
                process.ended().await;
                End::Died
            }
            Self::Guest(guest) => guest.wanted().await,
        }
    }
}

/// Why there is to be another frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The one before has ended.
    Died,
    /// There was none before: the machine has only now come.
    First,
}

/// The frontend of a guest, which its machine is told to have run.
#[derive(Debug)]
pub(crate) struct InGuest {
    broker: Broker,
    dc: String,
    domain: String,
    /// The machine that was told last, and the number of frontends that had ended by then.
    told: Option<(MemberId, u64)>,
}

impl InGuest {
    /// One that is told of as soon as there is a machine to tell.
    pub(crate) fn awaited(node: &Domains, dc: &str, domain: &str) -> Self {
        Self { broker: node.broker.clone(), dc: dc.to_owned(), domain: domain.to_owned(), told: None }
    }

    /// Comes back when the machine is to be told (again).
    async fn wanted(&self) -> End {
        let lacks = |machine: Option<&Machine>| {
            let Some((machine, member)) = machine.and_then(|m| Some((m, m.member?))) else { return false };
            // A machine that has connected anew may never have heard what the connection before was
            // told.
            self.told.is_none_or(|(told, ends)| told != member || machine.frontend_ends > ends)
        };
        self.broker.machine_where(&self.dc, &self.domain, lacks).await;
        if self.told.is_none() { End::First } else { End::Died }
    }

    /// Tells the machine to have the guest run one. `pid`: the machine process, through which all
    /// of the guest speaks.
    pub(crate) fn tell(&mut self, node: &Arc<Domains>, domain: &Domain, pid: u32) -> Result<(), String> {
        let Some((member, ends)) = self
            .broker
            .machine(&self.dc, &self.domain)
            .and_then(|machine| Some((machine.member?, machine.frontend_ends)))
        else {
            // It comes again, and then it is told.
            return Ok(());
        };
        self.told = Some((member, ends));
        let (ours, theirs) = pair()?;
        let (our_entrances, their_entrances) = pair()?;
        let order = serde_json::to_value(order(&self.dc, domain, false))
            .map_err(|e| format!("a frontend's order can't be written: {e}"))?;
        if !self.broker.order_frontend(&self.dc, &self.domain, order, vec![theirs, their_entrances]) {
            return Err("its machine does not read its control socket".into());
        }
        for (role, socket) in [(Role::Entrances, our_entrances), (Role::Frontend, ours)] {
            admit(node, &self.dc, &self.domain, role, pid, socket)?;
        }
        Ok(())
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd), String> {
    sys::descriptors::socket_pair().map_err(|e| format!("no socket for the frontend: {e}"))
}

/// Takes in a frontend, or its entrances, at a private socket.
fn admit(
    node: &Arc<Domains>,
    dc: &str,
    domain: &str,
    role: Role,
    pid: u32,
    socket: OwnedFd,
) -> Result<Option<MemberId>, String> {
    let identity = Identity { dc: dc.to_owned(), domain: domain.to_owned(), role, pid, main: false };
    control::admit_private(&node.broker, &about(node), identity, socket)
        .map_err(|e| format!("the frontend's control socket can't be watched: {e}"))
}

/// A frontend that runs on this node. Dropped, it is left alone: it ends with its mount or its
/// cgroup, and outlives the daemon.
#[derive(Debug)]
pub(crate) struct Process {
    child: Option<Child>,
    pid: u32,
    ended: Arc<AsyncFd<OwnedFd>>,
}

impl Process {
    /// Starts a frontend in the domain's cgroup and hands it what is held.
    pub(crate) async fn spawn(
        node: &Arc<Domains>,
        dc: &str,
        domain: &Domain,
        held: &Held,
        successor: bool,
    ) -> Result<Self, String> {
        let name = domain.name.as_str();
        let (ours, theirs) = pair()?;
        let (our_entrances, their_entrances) = pair()?;
        let child = Command::new(&node.layout.program)
            .args(["frontend", &format!("{dc}/{name}")])
            .env_clear()
            .env(crate::base::place::RUN_DIR_VARIABLE, &node.layout.run_dir)
            .envs(std::env::var_os(LOG_VARIABLE).map(|value| (LOG_VARIABLE, value)))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .current_dir("/")
            // Ctrl-C at a daemon in the foreground is not for it.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("can't start {} as a frontend: {e}", node.layout.program.display()))?;
        let frontend = Self::watch(child)?;
        let pid = frontend.pid;
        {
            let (node, dc, name) = (Arc::clone(node), dc.to_owned(), name.to_owned());
            blocking(move || domain::join_cgroup(&node.layout, &dc, &name, Part::Frontend, pid))
                .await?
                .map_err(said)?;
        }
        let handover = {
            let (node, dc, name) = (Arc::clone(node), dc.to_owned(), name.to_owned());
            blocking(move || handover::open(&node.layout, &dc, &name)).await??
        };
        let handed = Handed {
            fuse: held.fuse.as_fd(),
            ledger: held.ledger.as_fd(),
            entrance_control: their_entrances.as_fd(),
            entrances: &held.entrances,
            handover: Some(handover.as_fd()),
        };
        frontend::send_launch(&ours, order(dc, domain, successor), handed)
            .map_err(|e| format!("the frontend did not take its order: {e}"))?;
        admit(node, dc, name, Role::Entrances, pid, our_entrances)?;
        // Only then does it know what to show: a program that looks at once shall find its
        // services.
        if let Some(member) = admit(node, dc, name, Role::Frontend, pid, ours)?
            && tokio::time::timeout(INTRODUCTION_TIMEOUT, node.broker.introduced(member)).await.is_err()
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

    /// Comes back when it has ended and somebody has to take its place. One that ended by itself
    /// found its mount gone: the domain is ending, and no successor could do better.
    async fn ended(&mut self) {
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

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let ended = Arc::clone(&self.ended);
        // Nobody but its parent can reap it. Without a loop the daemon is ending, and init does
        // that.
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
