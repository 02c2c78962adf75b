//! The frontend of one domain: its services as files, and its native entrances.

use super::{log, said};
use entrance::{Entrance, Handle};
use frontend::{Config, Frontend, Identity, Launch, LaunchOrder};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use session::{Control, ControlError, Notice};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use wire::control::{Event, MountedService};

/// The owner of the files below `/srv`: the domain's root.
const OWNER: (u32, u32) = (0, 0);
/// How long the daemon may take for an answer.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before a link that the daemon refused is asked for again, if nothing is heard
/// meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Stack of the thread that talks to the daemon for the entrances, in bytes.
const STACK_BYTES: usize = 256 * 1024;

/// Serves until the mount is gone.
pub fn run() -> Result<(), String> {
    log();
    // The standard input is the private control socket; from here on it has a descriptor with an
    // owner.
    let control: OwnedFd =
        std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| format!("no control socket: {e}"))?;
    let launch = frontend::receive_launch(&control).map_err(|e| said(&e))?;
    let Launch { fuse, ledger, mut entrances, entrance_control, handover, order } = launch;
    let config = Config {
        fuse,
        control,
        ledger,
        successor: order.successor,
        identity: Some(own_user()),
        owner: OWNER,
        ninep: entrances.ninep.take(),
        handover,
        resend: true,
    };
    let frontend = Frontend::start(config).map_err(|e| said(&e))?;
    // Threads only after the privileges are gone.
    let wanted = wanted(&order);
    if !wanted.is_empty() {
        let sockets = entrance::Entrances {
            udp: entrances.stub_udp.map(Into::into),
            tcp: entrances.stub_tcp.map(Into::into),
            resolve: entrances.resolve.map(Into::into),
        };
        let (observer, asked) = (frontend.observer(), wanted.clone());
        let answered = move |entrance: Entrance, time: Duration| {
            if let Some((_, name, service)) = asked.iter().find(|(of, ..)| *of == entrance) {
                observer.latency(service, name, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            }
        };
        let handle = entrance::run_observed(sockets, Box::new(answered))
            .map_err(|e| format!("can't serve the entrances: {e}"))?;
        std::thread::Builder::new()
            .name("entrance-links".into())
            .stack_size(STACK_BYTES)
            .spawn(move || link_entrances(entrance_control, &handle, &wanted))
            .map_err(|e| format!("can't start a thread: {e}"))?;
    }
    frontend.serve().map_err(|e| said(&e))
}

/// Returns the user of a frontend: it owns nothing and may nothing, and nothing else runs as this
/// user. As one user, such as `nobody`, frontends could be stopped by one another and by every
/// program of that user.
fn own_user() -> Identity {
    let number = accounts::user_of_this_process();
    Identity { uid: number, gid: number }
}

/// Returns the service that each entrance asks, and the daemon's name of the entrance.
fn wanted(order: &LaunchOrder) -> Vec<(Entrance, &'static str, String)> {
    let stub = order.stub_service.clone().map(|service| (Entrance::Stub, "stub", service));
    let resolve = order.resolve_service.clone().map(|service| (Entrance::Resolve, "resolve", service));
    stub.into_iter().chain(resolve).collect()
}

/// Gives the entrances their links, and new ones after each server's death, until the daemon is
/// gone: the links of then live on, and the next daemon's frontend takes the place of this one.
fn link_entrances(socket: OwnedFd, handle: &Handle, wanted: &[(Entrance, &'static str, String)]) {
    let ended = Control::from_descriptor(socket, None).and_then(|control| {
        let mut links = Links { control, handle, wanted, linked: BTreeMap::new(), known: BTreeMap::new() };
        links.run()
    });
    if let Err(error) = ended {
        tracing::info!(error = said(&error), "the entrances hear no more of the daemon");
    }
    // The thread's end must not end the entrances.
    loop {
        std::thread::park();
    }
}

struct Links<'a> {
    control: Control,
    handle: &'a Handle,
    wanted: &'a [(Entrance, &'static str, String)],
    /// For each entrance, the generation of the server that it is linked to.
    linked: BTreeMap<&'static str, u64>,
    /// The generation of each service that is up.
    known: BTreeMap<String, u64>,
}

impl Links<'_> {
    fn run(&mut self) -> Result<(), ControlError> {
        let services = self.control.services(Instant::now() + DAEMON_TIMEOUT)?;
        self.learn(services);
        loop {
            let complete = self.link()?;
            let again = (!complete).then(|| Instant::now() + ASK_AGAIN);
            wait(&self.control, again).map_err(ControlError::Wait)?;
            while let Some(notice) = self.control.next_notice()? {
                self.hear(notice)?;
            }
        }
    }

    fn learn(&mut self, services: Vec<MountedService>) {
        self.known = services.into_iter().filter(|s| s.up).map(|s| (s.name, s.generation)).collect();
    }

    fn hear(&mut self, notice: Notice) -> Result<(), ControlError> {
        match notice {
            Notice::Event(Event::Service { service, up: true, generation }) => {
                self.known.insert(service, generation);
            }
            Notice::Event(Event::Service { service, up: false, .. }) => {
                self.known.remove(&service);
            }
            Notice::Event(Event::Services { services }) => self.learn(services),
            Notice::Event(Event::Inspect { id }) => {
                self.control.report_state(id, self.handle.state())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Asks for the links that are missing; whether all are there.
    fn link(&mut self) -> Result<bool, ControlError> {
        let mut complete = true;
        for (entrance, name, service) in self.wanted {
            let Some(generation) = self.known.get(service).copied() else { continue };
            if self.linked.get(name) == Some(&generation) {
                continue;
            }
            match self.control.connect_service(service, name, 0, Instant::now() + DAEMON_TIMEOUT) {
                Ok((_, end)) => {
                    self.handle.connect(*entrance, end);
                    self.linked.insert(name, generation);
                }
                Err(ControlError::Refused { message, .. }) => {
                    tracing::debug!(message, "no link for an entrance yet");
                    complete = false;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(complete)
    }
}

/// Waits until the daemon says something, or until `deadline`.
fn wait(control: &Control, deadline: Option<Instant>) -> Result<(), Errno> {
    let left = deadline.map(|deadline| session::timespec(deadline.saturating_duration_since(Instant::now())));
    match poll(&mut [PollFd::new(control, PollFlags::IN)], left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
