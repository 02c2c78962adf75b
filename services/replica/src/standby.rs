//! A replica that takes the writes of another node: one session at a time, of the view's primary,
//! on a quiet disk.

use crate::base::{Base, For};
use crate::engine::Ask;
use crate::input::{Caller, Write};
use bytes::Bytes;
use std::collections::BTreeMap;
use tokio::sync::mpsc::UnboundedSender;
use volume::{Backup, Session, Verdict};
use wire::nbd::{Reply, error};
use wire::replica::{Greeted, Report, VolumeRecord};

/// Callers that wait for the registry's word at most.
const MAX_ASKED: usize = 8;

/// The session that is open.
#[derive(Debug)]
struct Open {
    connection: u64,
    session: Session,
    view: u64,
    replies: UnboundedSender<Reply>,
}

/// A replica that serves no clients.
#[derive(Debug)]
pub(crate) struct StandBy {
    backup: Backup,
    open: Option<Open>,
    /// Callers of whom the registry is asked, by the question.
    asked: BTreeMap<u64, Caller>,
    next_question: u64,
    /// The caller that may write as soon as the disk is quiet.
    next: Option<Caller>,
    /// Nobody may write: this node is about to claim the volume.
    is_prepared: bool,
    /// The daemon waits for the word that the disk is quiet.
    owes_quiet: bool,
}

/// Tells a caller that there is no session.
pub(crate) fn refuse(caller: Caller, why: &str) {
    // One that is gone need not be told.
    let _gone = caller.answer.send(Greeted { refused: Some(why.to_owned()) });
}

impl StandBy {
    pub fn new() -> Self {
        Self {
            // Each session is a connection of this process, which no other one outlives; the
            // registry is asked for the view of each.
            backup: Backup::new(1, 0),
            open: None,
            asked: BTreeMap::new(),
            next_question: 0,
            next: None,
            is_prepared: false,
            owes_quiet: false,
        }
    }

    pub fn is_prepared(&self) -> bool {
        self.is_prepared
    }

    pub fn view(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.view)
    }

    pub fn prepare(&mut self, base: &mut Base) {
        self.backup.close();
        self.open = None;
        for caller in std::mem::take(&mut self.asked).into_values().chain(self.next.take()) {
            refuse(caller, "this node is about to claim the volume");
        }
        (self.is_prepared, self.owes_quiet) = (true, true);
        self.look(base);
    }

    pub fn resume(&mut self, base: &mut Base) {
        (self.is_prepared, self.owes_quiet) = (false, false);
        self.look(base);
    }

    /// Another daemon is there: what its predecessor was asked is asked again.
    pub fn ask_again(&mut self, base: &mut Base) {
        for id in self.asked.keys() {
            base.report(Report::Ask { id: *id });
        }
        self.owes_quiet &= self.is_prepared;
    }

    pub fn caller(&mut self, caller: Caller, base: &mut Base) {
        if caller.greeting.id != base.configured.id {
            return refuse(caller, "this is a replica of another volume");
        }
        if self.is_prepared {
            return refuse(caller, "this node is about to claim the volume");
        }
        if !base.has_daemon || self.asked.len() >= MAX_ASKED {
            return refuse(caller, "this node can't ask the registry who the primary is");
        }
        self.next_question += 1;
        self.asked.insert(self.next_question, caller);
        base.report(Report::Ask { id: self.next_question });
    }

    /// The registry's word on a caller.
    pub fn answered(&mut self, question: u64, record: Option<&VolumeRecord>, base: &mut Base) {
        let Some(caller) = self.asked.remove(&question) else { return };
        let Some(record) = record else {
            return refuse(caller, "this node can't ask the registry who the primary is");
        };
        let is_primary = record.primary.as_ref() == Some(&caller.node);
        if record.id != caller.greeting.id || record.view != caller.greeting.view || !is_primary {
            let primary = record.primary.as_deref().unwrap_or("nobody");
            return refuse(caller, &format!("the registry has view {}, of {primary}", record.view));
        }
        if let Some(earlier) = self.next.replace(caller) {
            refuse(earlier, "another one came");
        }
        self.look(base);
    }

    /// Does what waits for a quiet disk.
    pub fn look(&mut self, base: &mut Base) {
        let quiet = base.disk.is_quiet();
        if quiet && std::mem::take(&mut self.owes_quiet) {
            base.report(Report::Quiet {});
        }
        let Some(caller) = self.next.take() else { return };
        let view = caller.greeting.view;
        // Whatever was open is over: its connection ends with the replies.
        self.open = None;
        match self.backup.open(view, quiet) {
            Some(session) => {
                tracing::info!(view, node = caller.node, "takes writes");
                let Caller { connection, replies, answer, .. } = caller;
                if answer.send(Greeted { refused: None }).is_ok() {
                    self.open = Some(Open { connection, session, view, replies });
                } else {
                    self.backup.close();
                }
            }
            None if quiet => refuse(caller, "its view is older than one that was here"),
            None => self.next = Some(caller),
        }
    }

    pub fn write(&mut self, write: Write, base: &mut Base) {
        let Some(open) = self.open.as_ref().filter(|open| open.connection == write.connection) else {
            return;
        };
        let (session, sequence, replies) = (open.session, write.sequence, open.replies.clone());
        match self.backup.store(session, sequence) {
            Verdict::Store => {
                let ask = Ask::Write { offset: write.offset, data: write.data.clone() };
                base.disk.ask(ask, For::Caller { session, sequence, replies, _write: write });
            }
            Verdict::Again => drop(replies.send(Reply { error: 0, cookie: sequence })),
            Verdict::UnderWay => {}
            Verdict::Refuse => drop(replies.send(Reply { error: error::INVALID, cookie: sequence })),
        }
    }

    pub fn stored(
        &mut self,
        session: Session,
        sequence: u64,
        replies: &UnboundedSender<Reply>,
        result: Result<Bytes, u32>,
    ) {
        if self.backup.stored(session, sequence) {
            let error = result.err().unwrap_or(0);
            // The primary may be gone.
            let _gone = replies.send(Reply { error, cookie: sequence });
        }
    }

    pub fn gone(&mut self, connection: u64) {
        self.asked.retain(|_, caller| caller.connection != connection);
        self.next.take_if(|caller| caller.connection == connection);
        if self.open.take_if(|open| open.connection == connection).is_some() {
            self.backup.close();
        }
    }
}
