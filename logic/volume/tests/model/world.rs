//! The world: what is true, what is under way, and what must never be.

use std::collections::{BTreeMap, BTreeSet};
use volume::{Action, Backup, Event, Extent, Node, Primary, Record, Session, Verdict, WriteId};

/// The contents of an extent: the view and the number of the write, so that later ones are greater.
pub type Value = (u64, WriteId);

/// A rule that the world breaks on purpose, to see that the checks notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A backup lets a session begin while its disk still writes.
    OpensUnquiet,
    /// A node claims while its disk still writes.
    ClaimsUnquiet,
    /// A node that starts does not ask for the view.
    ForgetsView,
    /// Others take over while a node still believes in its lease.
    LyingClock,
}

#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub nodes: u16,
    pub extents: Extent,
    pub writes: u32,
    /// Lost messages, lost power, failing disks, leases that end, connections given up.
    pub faults: u32,
    pub doubles: u32,
    /// Attempts to connect or to ask the registry again.
    pub attempts: u32,
    pub broken: Option<Broken>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    Open(u64),
    Opened(Session),
    NotOpened,
    Store { session: Session, sequence: u64, extent: Extent, value: Value },
    Stored(Session, u64, bool),
    Change(Record, u64),
    News(Record, u64),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub from: Node,
    pub to: Node,
    pub body: Body,
}

/// The registry's place in messages.
pub const REGISTRY: Node = Node(u16::MAX);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Then {
    Own(WriteId),
    Answer(Node, Session, u64),
}

/// A write that is on its way to the disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pending {
    pub extent: Extent,
    pub value: Value,
    pub then: Then,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Role {
    Idle,
    Claiming(Record, u64),
    Primary(Box<Primary>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    pub up: bool,
    pub incarnation: u64,
    pub role: Role,
    pub backup: Backup,
    pub disk: Vec<Value>,
    pub pending: Vec<Pending>,
    /// Whether the node believes that it has its lease.
    pub holds: bool,
    /// Whether the registry has the lease.
    pub lease: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub record: Record,
    pub revision: u64,
    pub hosts: BTreeMap<Node, Host>,
    pub net: Vec<Message>,
    pub writes: u32,
    pub faults: u32,
    pub doubles: u32,
    pub attempts: u32,
    next_write: WriteId,
    /// The last acknowledged write of each extent.
    pub acknowledged: Vec<Value>,
    /// The highest view in which something was acknowledged.
    acknowledged_view: u64,
    broken: Option<Broken>,
}

impl World {
    pub fn new(config: Config) -> Self {
        let nodes: BTreeSet<Node> = (1..=config.nodes).map(Node).collect();
        let extents = config.extents as usize;
        let host = Host {
            up: true,
            incarnation: 1,
            role: Role::Idle,
            backup: Backup::new(1, 0),
            disk: vec![(0, 0); extents],
            pending: Vec::new(),
            holds: true,
            lease: true,
        };
        Self {
            record: Record::new(nodes.clone()),
            revision: 1,
            hosts: nodes.into_iter().map(|node| (node, host.clone())).collect(),
            net: Vec::new(),
            writes: config.writes,
            faults: config.faults,
            doubles: config.doubles,
            attempts: config.attempts,
            next_write: 0,
            acknowledged: vec![(0, 0); extents],
            acknowledged_view: 0,
            broken: config.broken,
        }
    }

    pub fn is_broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    pub fn host(&mut self, node: Node) -> &mut Host {
        self.hosts.get_mut(&node).expect("the world has this node")
    }

    pub fn send(&mut self, from: Node, to: Node, body: Body) {
        let message = Message { from, to, body };
        let place = self.net.partition_point(|other| *other < message);
        self.net.insert(place, message);
    }

    pub fn client_writes(&mut self, node: Node, extent: Extent) -> Result<(), String> {
        self.next_write += 1;
        self.event(node, Event::Write(self.next_write, extent))
    }

    /// Hands an event to the primary on a node, and does what it says.
    pub fn event(&mut self, node: Node, event: Event) -> Result<(), String> {
        let host = self.host(node);
        let holds = host.holds;
        let Role::Primary(primary) = &mut host.role else { return Ok(()) };
        let view = primary.view();
        let actions = primary.step(event, holds);
        self.act(node, view, actions)
    }

    fn act(&mut self, node: Node, view: u64, actions: Vec<Action>) -> Result<(), String> {
        for action in actions {
            match action {
                Action::StoreOwn(id, extent) => {
                    self.host(node).pending.push(Pending { extent, value: (view, id), then: Then::Own(id) });
                }
                Action::Store(to, session, sequence, id, extent) => {
                    self.send(node, to, Body::Store { session, sequence, extent, value: (view, id) });
                }
                Action::Copy(to, session, sequence, extent) => {
                    let value = self.host(node).disk[extent as usize];
                    self.send(node, to, Body::Store { session, sequence, extent, value });
                }
                Action::Open(to) => self.send(node, to, Body::Open(view)),
                Action::Change(record, revision) => self.send(node, REGISTRY, Body::Change(record, revision)),
                Action::Acknowledge(id) => self.acknowledge(view, id)?,
                Action::Fail(_) => {}
                Action::End => self.host(node).role = Role::Idle,
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, view: u64, id: WriteId) -> Result<(), String> {
        let value = (view, id);
        // The extent is not in the action: it is wherever the primary has it.
        let of_all = self.hosts.values().flat_map(|host| host.disk.iter().enumerate());
        let extent = of_all.filter(|(_, held)| **held == value).map(|(extent, _)| extent).next();
        let extent = extent.ok_or_else(|| format!("write {value:?} is acknowledged and on no disk"))?;
        if view < self.acknowledged_view && !self.is_broken(Broken::LyingClock) {
            return Err(format!("view {view} acknowledges after view {}", self.acknowledged_view));
        }
        self.acknowledged_view = self.acknowledged_view.max(view);
        self.acknowledged[extent] = self.acknowledged[extent].max(value);
        Ok(())
    }

    pub fn deliver(&mut self, message: Message) -> Result<(), String> {
        let Message { from, to, body } = message;
        if to == REGISTRY {
            if let Body::Change(record, base) = body {
                if base == self.revision {
                    (self.record, self.revision) = (record, base + 1);
                }
                let news = Body::News(self.record.clone(), self.revision);
                self.send(REGISTRY, from, news);
            }
            return Ok(());
        }
        if !self.host(to).up {
            return Ok(());
        }
        match body {
            Body::Open(view) => {
                let unquiet = self.is_broken(Broken::OpensUnquiet);
                let host = self.host(to);
                let quiet = unquiet || host.pending.is_empty();
                let session = if host.role == Role::Idle { host.backup.open(view, quiet) } else { None };
                self.send(to, from, session.map_or(Body::NotOpened, Body::Opened));
            }
            Body::Store { session, sequence, extent, value } => {
                let host = self.host(to);
                match host.backup.store(session, sequence) {
                    Verdict::Store => {
                        let then = Then::Answer(from, session, sequence);
                        host.pending.push(Pending { extent, value, then });
                    }
                    Verdict::Again => self.send(to, from, Body::Stored(session, sequence, true)),
                    Verdict::UnderWay => {}
                    Verdict::Refuse => self.send(to, from, Body::Stored(session, sequence, false)),
                }
            }
            Body::Opened(session) => self.event(to, Event::Opened(from, session))?,
            Body::NotOpened => self.event(to, Event::Lost(from))?,
            Body::Stored(session, sequence, done) => {
                self.event(to, Event::Stored(from, session, sequence, done))?;
            }
            Body::News(record, revision) => self.news(to, record, revision)?,
            Body::Change(..) => {}
        }
        Ok(())
    }

    pub fn news(&mut self, node: Node, record: Record, revision: u64) -> Result<(), String> {
        let extents = self.acknowledged.len() as Extent;
        let host = self.host(node);
        host.backup.heard(record.view);
        let Role::Claiming(claimed, base) = &host.role else {
            return self.event(node, Event::Registry(record, revision));
        };
        if revision <= *base {
            return Ok(());
        }
        if !record.is_primary(node, claimed.view) {
            host.role = Role::Idle;
            return Ok(());
        }
        let view = record.view;
        let (primary, actions) = Primary::new(node, record, revision, extents);
        host.role = Role::Primary(Box::new(primary));
        self.act(node, view, actions)
    }

    /// A write reaches stable storage, or the disk refuses it.
    pub fn disk(&mut self, node: Node, at: usize, done: bool) -> Result<(), String> {
        let host = self.host(node);
        let pending = host.pending.remove(at);
        if done {
            host.disk[pending.extent as usize] = pending.value;
        }
        match pending.then {
            Then::Own(id) => self.event(node, Event::OwnStored(id, done))?,
            Then::Answer(to, session, sequence) => {
                if self.host(node).backup.stored(session, sequence) {
                    self.send(node, to, Body::Stored(session, sequence, done));
                }
            }
        }
        Ok(())
    }

    /// Checks the invariants that hold at every moment.
    pub fn check(&self) -> Result<(), String> {
        for node in &self.record.current {
            for (extent, value) in self.hosts[node].disk.iter().enumerate() {
                let acknowledged = self.acknowledged[extent];
                if *value < acknowledged {
                    return Err(format!(
                        "{node} is current and has {value:?} where {acknowledged:?} was acknowledged"
                    ));
                }
            }
        }
        self.hosts.iter().try_for_each(|(node, host)| self.check_primary(*node, host))
    }

    fn check_primary(&self, node: Node, host: &Host) -> Result<(), String> {
        let Role::Primary(primary) = &host.role else { return Ok(()) };
        for extent in
            (0..self.acknowledged.len()).filter(|extent| primary.may_read(*extent as Extent, host.holds))
        {
            let (read, acknowledged) = (host.disk[extent], self.acknowledged[extent]);
            if read < acknowledged && !self.is_broken(Broken::LyingClock) {
                return Err(format!("{node} reads {read:?} where {acknowledged:?} was acknowledged"));
            }
            if !self.record.is_primary(node, primary.view()) {
                continue;
            }
            for other in &self.record.current {
                let held = self.hosts[other].disk[extent];
                if held != read {
                    return Err(format!("{other} is current and has {held:?}, the primary {read:?}"));
                }
            }
        }
        Ok(())
    }
}
