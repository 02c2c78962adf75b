//! The daemon's messages, the requests to it, and the effects of timeouts.

use wire::control::{Event, MountedService, Reply, Request};

use super::parked::Op;
use super::{Core, ENTRANCE, Link, LinkState};
use crate::host::Host;

/// How long the channel to a server that has a successor may take to end, in ns. Then what was
/// under way over it is as lost as with its death.
const LAST_WORDS_NS: u64 = 1_000_000_000;

/// Between two looks at the clock while something waits for its time, in ns.
pub(crate) const TICK_NS: u64 = 100_000_000;

/// The kind of an outstanding request to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Services,
    About,
    Connect(usize),
    Back(usize),
}

/// A channel that the daemon has given us: for which service, and as its how manieth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewLink {
    pub(crate) service: usize,
    pub(crate) epoch: u64,
}

impl<H: Host> Core<H> {
    /// Asks who we are and what we serve.
    pub(crate) fn introduce(&mut self) {
        let id = self.question(Question::Services);
        self.host.ask(&Request::Services { id });
        self.ask_about();
    }

    pub(super) fn ask_about(&mut self) {
        let id = self.question(Question::About);
        self.host.ask(&Request::About { id });
    }

    pub(super) fn question(&mut self, question: Question) -> u64 {
        self.last_question += 1;
        // One of a kind is enough: an older one's answer says less.
        self.questions.retain(|_, other| *other != question);
        self.questions.insert(self.last_question, question);
        self.last_question
    }

    /// Takes a packet of the daemon. Where it brings a channel that is wanted, says which.
    pub(crate) fn daemon_says(&mut self, reply: Reply) -> Option<NewLink> {
        match reply {
            Reply::Services { id, services } => {
                if self.questions.remove(&id) == Some(Question::Services) {
                    self.mounts(services);
                }
            }
            Reply::Connected { id, memory, .. } => return self.connected(id, memory),
            Reply::Backed { id, backing } => self.backed(id, backing),
            Reply::About { id, about } => {
                if self.questions.remove(&id) == Some(Question::About) {
                    self.about = about;
                    self.finish_abouts(None);
                }
            }
            Reply::Refused { id, errno, message } => self.refused(id, errno, &message),
            Reply::Serving { .. }
            | Reply::Machine { .. }
            | Reply::Bound { .. }
            | Reply::Promoted { .. }
            | Reply::Introduced { .. }
            | Reply::Buffer { .. }
            | Reply::Granted { .. }
            | Reply::Borrowed { .. }
            | Reply::Lent { .. }
            | Reply::State { .. }
            | Reply::Done { .. } => {
                tracing::warn!("the daemon takes a frontend for something else");
            }
            Reply::Event(event) => self.event(event),
        }
        None
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Service { service, up, generation } => self.service_changed(&service, up, generation),
            Event::Services { services } => {
                self.mounts(services);
                self.ask_about();
            }
            Event::Inspect { id } => {
                let state = self.state();
                self.host.ask(&Request::State { id, state });
            }
            Event::Attach { .. }
            | Event::Settings { .. }
            | Event::Verbs { .. }
            | Event::Withdrawn { .. }
            | Event::Leave { .. }
            | Event::Introduced { .. }
            | Event::Rights { .. }
            | Event::Moved { .. }
            | Event::Revoked { .. }
            | Event::Unbound { .. }
            | Event::Migrate { .. }
            | Event::Superseded { .. }
            | Event::Frontend { .. } => {
                tracing::warn!("the daemon takes a frontend for something else");
            }
        }
    }

    fn mounts(&mut self, services: Vec<MountedService>) {
        for (service, error) in self.tree.update(services) {
            tracing::warn!(service, %error, "a service can't be shown");
        }
        self.links.resize(self.tree.services.len(), Link::default());
        self.aim();
        self.introduced = true;
        self.save_facts();
        for at in 0..self.tree.services.len() {
            let Some(service) = self.tree.services.get(at) else { continue };
            let (present, up, generation) = (service.present, service.mounted.up, service.mounted.generation);
            if present {
                self.want(at, up, generation);
                continue;
            }
            // A service that comes back one day is a new one.
            self.keep_defaults(at, &[]);
            if self.link(at).state != LinkState::Down {
                self.lose(at);
            }
        }
        self.take_again(false);
    }

    fn service_changed(&mut self, name: &str, up: bool, generation: u64) {
        let Some(at) = self.tree.service_named(name) else { return };
        if let Some(service) = self.tree.services.get_mut(at) {
            (service.mounted.up, service.mounted.generation) = (up, generation);
        }
        self.want(at, up, generation);
    }

    /// Sees to it that the link goes to the server that is there, if one is.
    fn want(&mut self, at: usize, up: bool, generation: u64) {
        let link = self.link(at);
        if !up || link.state != LinkState::Down && link.generation == generation {
            // A server that is said to be gone may still finish what it has: its channel's end is
            // the true end.
            return;
        }
        if matches!(link.state, LinkState::Greeting | LinkState::Up) {
            let deadline = self.host.now().saturating_add(LAST_WORDS_NS);
            if let Some(link) = self.links.get_mut(at) {
                (link.followed, link.retry_at) = (true, deadline);
            }
            self.ticking = true;
            return;
        }
        self.connect(at);
    }

    /// Goes to the server that has come meanwhile, if one has.
    pub(super) fn follow(&mut self, at: usize) {
        let Some(link) = self.links.get_mut(at).filter(|link| link.followed) else { return };
        link.followed = false;
        if self.tree.services.get(at).is_some_and(|service| service.mounted.up) {
            self.connect(at);
        }
    }

    /// Gives up channels whose servers have successors, and do not end.
    pub(super) fn end_followed(&mut self, now: u64) {
        for at in 0..self.links.len() {
            if self.links.get(at).is_some_and(|link| link.followed && link.retry_at <= now) {
                self.lose(at);
            }
        }
    }

    fn connect(&mut self, at: usize) {
        let Some(mounted) = self.tree.services.get(at).map(|service| &service.mounted) else { return };
        let (service, generation) = (mounted.name.clone(), mounted.generation);
        if let Some(link) = self.links.get_mut(at) {
            (link.state, link.generation) = (LinkState::Asked, generation);
        }
        let id = self.question(Question::Connect(at));
        let entrance = ENTRANCE.into();
        self.host.ask(&Request::Connect { id, service, entrance, ring_bytes: 0, wait_ms: 0 });
    }

    fn connected(&mut self, id: u64, memory: bool) -> Option<NewLink> {
        let Some(Question::Connect(service)) = self.questions.remove(&id) else { return None };
        let link = self.links.get_mut(service).filter(|link| link.state == LinkState::Asked)?;
        link.state = LinkState::Greeting;
        link.memory = memory;
        link.epoch += 1;
        Some(NewLink { service, epoch: link.epoch })
    }

    fn refused(&mut self, id: u64, errno: i32, message: &str) {
        let question = self.questions.remove(&id);
        tracing::info!(?question, errno, message, "the daemon refused");
        match question {
            Some(Question::Connect(at)) => self.lose(at),
            Some(Question::Back(at)) => self.has_no_memory(at),
            Some(Question::About) => self.finish_abouts(None),
            Some(Question::Services) => {
                self.introduced = true;
                self.take_again(false);
            }
            None => {}
        }
    }

    /// The daemon is gone. Links stay as they are; nothing new can be asked.
    pub(crate) fn daemon_gone(&mut self) {
        self.daemon_there = false;
        self.questions.clear();
        self.finish_abouts(None);
        self.take_again(false);
        for at in 0..self.links.len() {
            if self.link(at).state == LinkState::Asked {
                self.lose(at);
            }
        }
    }

    /// Does what is due. Returns whether something goes on waiting for its time.
    pub(crate) fn tick(&mut self) -> bool {
        let now = self.host.now();
        self.expire(now);
        self.end_followed(now);
        self.finish_abouts(Some(now));
        self.take_again(true);
        let mut waits = self.parked.values().any(|parked| match parked.op {
            Op::About | Op::Again { .. } => true,
            Op::Node(_) => parked.tag.is_none(),
            _ => false,
        });
        for at in 0..self.tree.services.len() {
            let Some(service) = self.tree.services.get(at) else { continue };
            let wanted = service.present && service.mounted.up && self.daemon_there;
            let link = self.link(at);
            if wanted && link.state == LinkState::Down {
                if link.retry_at <= now {
                    self.connect(at);
                }
                waits = true;
            }
        }
        waits |= self.end_overdue_locks(now);
        waits |= self.is_anything_queued() || self.links.iter().any(|link| link.followed);
        self.ticking = waits;
        waits
    }

    /// Whether requests wait for a backend that is not there.
    fn is_anything_queued(&self) -> bool {
        use crate::handle::{Body, Progress};
        let down = |service: Option<usize>| service.is_some_and(|service| !self.is_up(service));
        self.handles.iter().flatten().filter(|handle| down(handle.service())).any(|handle| {
            match &handle.body {
                Body::Session(session) => {
                    !handle.calls.is_empty() || session.entries.iter().any(|e| e.progress == Progress::Queued)
                }
                Body::Text(text, _) => text.wanted || !handle.calls.is_empty(),
                Body::Own(_) => false,
            }
        })
    }

    /// Whether [`Core::tick`] has to be called in a while.
    pub(crate) fn is_ticking(&self) -> bool {
        self.ticking
    }
}
