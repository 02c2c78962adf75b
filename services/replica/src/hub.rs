//! The one loop in which a replica's process decides: what comes in from its engine, clients, other
//! nodes and the daemon meets here.

use crate::base::{Base, Disk, For, extent_bytes};
use crate::engine::Job;
use crate::input::Input;
use crate::names::Names;
use crate::peers::Ground;
use crate::serving::Serving;
use crate::standby::{self, StandBy};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use wire::replica::{Condition, Configure, Order, Part, Report, VolumeRecord};

#[derive(Debug)]
enum Role {
    StandBy(Box<StandBy>),
    Primary(Box<Serving>),
}

/// A replica's process.
#[derive(Debug)]
pub(crate) struct Hub {
    pub base: Base,
    role: Role,
    /// The view in which clients are served; 0: none.
    serving: watch::Sender<u64>,
    clients: usize,
    told: Condition,
}

impl Hub {
    pub fn new(
        configured: Configure,
        jobs: UnboundedSender<Job>,
        ground: Ground,
        serving: watch::Sender<u64>,
    ) -> Self {
        let disk = Disk::new(jobs);
        let base = Base {
            names: Names::new(&configured),
            extent_bytes: extent_bytes(configured.bytes),
            configured,
            disk,
            ground,
            reports: VecDeque::new(),
            has_daemon: false,
            until_ns: 0,
            found: BTreeMap::new(),
            connections: 0,
        };
        let role = Role::StandBy(Box::new(StandBy::new()));
        Self { base, role, serving, clients: 0, told: Condition::default() }
    }

    /// A daemon is there.
    pub fn hello(&mut self) -> Report {
        self.base.has_daemon = true;
        self.base.reports.clear();
        let condition = self.condition();
        self.told = condition.clone();
        let record = match &mut self.role {
            Role::Primary(serving) => {
                serving.ask_again();
                Some(serving.record())
            }
            Role::StandBy(standby) => {
                standby.ask_again(&mut self.base);
                None
            }
        };
        Report::Hello {
            version: wire::replica::VERSION,
            pid: std::process::id(),
            configured: Some(Box::new(self.base.configured.clone())),
            condition,
            record,
        }
    }

    pub fn obey(&mut self, order: Order) {
        match order {
            // It is what it is.
            Order::Configure(_) | Order::Trust {} => {}
            Order::Hold { until_ns } => {
                self.base.until_ns = until_ns;
                self.nudge();
            }
            Order::Prepare {} => {
                if let Role::StandBy(standby) = &mut self.role {
                    standby.prepare(&mut self.base);
                }
            }
            Order::Serve { record, revision, until_ns } => self.serve(&record, revision, until_ns),
            Order::StandBy {} => {
                if let Role::Primary(serving) = &self.role {
                    let view = serving.view();
                    self.stand_by(view);
                } else if let Role::StandBy(standby) = &mut self.role {
                    standby.resume(&mut self.base);
                }
            }
            Order::Answer { id, record } => {
                if let Role::StandBy(standby) = &mut self.role {
                    standby.answered(id, record.as_ref(), &mut self.base);
                }
            }
            Order::Registry { record, revision } => {
                self.primary(|serving, base| serving.registry(&record, revision, base));
            }
            Order::Found { node, at, why } => {
                self.primary(|serving, base| serving.found(&node, at, why, base))
            }
            Order::Release {} => self.primary(Serving::release),
        }
    }

    fn serve(&mut self, record: &VolumeRecord, revision: u64, until_ns: u64) {
        // Anything else is no answer to what was prepared: the daemon finds that this is no
        // primary.
        let Role::StandBy(standby) = &mut self.role else { return };
        if !standby.is_prepared() || !self.base.disk.is_quiet() {
            return;
        }
        self.base.until_ns = until_ns;
        let Some(mut serving) = Serving::new(record, revision, &mut self.base) else {
            tracing::error!(?record, "the record does not say that this node serves");
            return;
        };
        tracing::info!(view = serving.view(), "serves clients");
        serving.begin(&mut self.base);
        self.serving.send_replace(serving.view());
        self.role = Role::Primary(Box::new(serving));
        self.settle();
    }

    fn stand_by(&mut self, view: u64) {
        tracing::info!(view, "the view is over");
        self.serving.send_replace(0);
        self.base.until_ns = 0;
        self.role = Role::StandBy(Box::new(StandBy::new()));
        self.base.report(Report::Ended { view });
    }

    /// Does something as the primary, if this is one.
    fn primary(&mut self, act: impl FnOnce(&mut Serving, &mut Base)) {
        if let Role::Primary(serving) = &mut self.role {
            act(serving, &mut self.base);
            self.settle();
        }
    }

    /// Looks whether the view is over.
    fn settle(&mut self) {
        if let Role::Primary(serving) = &self.role
            && serving.has_ended()
        {
            let view = serving.view();
            self.stand_by(view);
        }
    }

    fn nudge(&mut self) {
        self.primary(Serving::nudge);
    }

    pub fn take(&mut self, input: Input) {
        match input {
            Input::Engine { token, result } => self.engine(token, result),
            Input::Client { view, wish, replier } => {
                // Of a view that is over: its connection ends without a reply.
                self.primary(|serving, base| {
                    if serving.view() == view {
                        serving.client(wish, replier, base);
                    }
                });
            }
            Input::Clients(more) => self.clients = self.clients.saturating_add_signed(more),
            Input::PeerUp { node, connection } => {
                self.primary(|serving, base| serving.peer_up(&node, connection, base));
            }
            Input::PeerStored { node, connection, sequence, error } => {
                self.primary(|serving, base| serving.peer_stored(&node, connection, sequence, error, base));
            }
            Input::PeerGone { node, connection, why } => {
                self.primary(|serving, base| serving.peer_gone(&node, connection, why, base));
            }
            Input::Caller(caller) => match &mut self.role {
                Role::StandBy(standby) => standby.caller(caller, &mut self.base),
                Role::Primary(_) => standby::refuse(caller, "this node is the primary itself"),
            },
            Input::CallerWrites(write) => {
                if let Role::StandBy(standby) = &mut self.role {
                    standby.write(write, &mut self.base);
                }
            }
            Input::CallerGone { connection } => {
                if let Role::StandBy(standby) = &mut self.role {
                    standby.gone(connection);
                }
            }
        }
    }

    fn engine(&mut self, token: u64, result: Result<Bytes, u32>) {
        let Some(what_for) = self.base.disk.answered(token) else { return };
        let is_of = |serving: &Serving, view| serving.view() == view;
        match what_for {
            For::Own { view, write } => self.primary(|serving, base| {
                if is_of(serving, view) {
                    serving.own_stored(write, result, base);
                }
            }),
            For::Read { view, read } => self.primary(|serving, base| {
                if is_of(serving, view) {
                    serving.read_done(read, result, base);
                }
            }),
            For::Copy { view, node, session, sequence, offset } => self.primary(|serving, base| {
                if is_of(serving, view) {
                    serving.copied(node, session, sequence, offset, result, base);
                }
            }),
            For::Caller { session, sequence, replies, .. } => {
                if let Role::StandBy(standby) = &mut self.role {
                    standby.stored(session, sequence, &replies, result);
                }
            }
        }
        if let Role::StandBy(standby) = &mut self.role {
            standby.look(&mut self.base);
        }
    }

    /// Looks at what only the clock says.
    pub fn tick(&mut self) {
        self.primary(Serving::tick);
        let condition = self.condition();
        if condition != self.told {
            self.told = condition.clone();
            self.base.report(Report::Condition(condition));
        }
    }

    fn condition(&self) -> Condition {
        let mut condition =
            Condition { clients: self.clients, holds: self.base.holds(), ..Condition::default() };
        match &self.role {
            Role::StandBy(standby) => {
                condition.view = standby.view();
                condition.part = if standby.is_prepared() { Part::Prepared } else { Part::StandBy };
            }
            Role::Primary(serving) => {
                (condition.part, condition.view) = (Part::Primary, serving.view());
                (condition.peers, condition.acknowledged) = serving.peers(&self.base);
            }
        }
        condition
    }
}
