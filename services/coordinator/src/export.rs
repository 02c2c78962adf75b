//! The service's face to the loop: its files, and which part takes which call.

use crate::coordinator::Coordinator;
use coordination::Root;
use serde_json::{Value, json};
use session::{Context, LinkId, Readiness, ReplyTo, Service};
use std::time::Instant;
use wire::control::Consumer;
use wire::coordination::{KIND, file, verb};
use wire::service::{Behaviour, Export, FileExport, Kind, OpenInfo, VERSION};

fn shown(id: u32, name: &str, mode: u32, behaviour: Behaviour, idempotent: bool, verb: &str) -> FileExport {
    FileExport { id, name: Some(name.into()), mode, behaviour, idempotent, verb: verb.into(), change: None }
}

/// A folder, which whoever may coordinate may change.
fn folder(root: Root, verb: &str) -> FileExport {
    let change = Some(verb::COORDINATE.into());
    let folder = shown(number(root), root.as_str(), 0o777, Behaviour::Folder, true, verb);
    FileExport { change, ..folder }
}

/// The number of a root's folder in the export.
pub(crate) fn number(root: Root) -> u32 {
    match root {
        Root::Keys => file::KV,
        Root::Locks => file::LOCKS,
        Root::Semaphores => file::SEMAPHORES,
        Root::Barriers => file::BARRIERS,
        Root::Queues => file::QUEUES,
    }
}

/// The root with this number.
pub(crate) fn root(number: u32) -> Option<Root> {
    Root::ALL.into_iter().find(|root| self::number(*root) == number)
}

impl Service for Coordinator {
    fn export(&self) -> Export {
        let files = vec![
            folder(Root::Keys, verb::OBSERVE),
            folder(Root::Locks, verb::COORDINATE),
            folder(Root::Semaphores, verb::COORDINATE),
            folder(Root::Barriers, verb::COORDINATE),
            folder(Root::Queues, verb::COORDINATE),
            shown(file::CTL, "ctl", 0o666, Behaviour::Session, false, verb::COORDINATE),
            shown(file::WATCH, "watch", 0o666, Behaviour::Stream, true, verb::OBSERVE),
            shown(file::STATUS, "status", 0o444, Behaviour::Text, true, verb::OBSERVE),
        ];
        Export { version: VERSION, kind: KIND.into(), files }
    }

    fn start(&mut self, ctx: &mut dyn Context) {
        self.begin(ctx);
    }

    fn attach(&mut self, _: &mut dyn Context, link: LinkId, consumer: &Consumer) {
        self.links.insert(link, consumer.clone());
    }

    fn detach(&mut self, ctx: &mut dyn Context, link: LinkId) {
        self.lose(ctx, link);
    }

    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo) {
        self.take_open(ctx, to, info);
    }

    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        self.take_request(ctx, to, payload);
    }

    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        self.take_control(ctx, to, payload);
    }

    fn tree(&mut self, ctx: &mut dyn Context, to: ReplyTo, kind: Kind, payload: &[u8]) {
        self.take_tree(ctx, to, kind, payload);
    }

    fn credit(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64) {
        self.arrive(link, session);
        self.ask_for_item(link, session);
        self.send_to(ctx, link, session);
        self.flush(ctx);
    }

    fn cancel(&mut self, _: &mut dyn Context, link: LinkId, tag: u64) {
        // What was decided stays decided; its answer is dropped by the loop. A push that waits for
        // room was not.
        self.forget_pushes(|to| (to.link, to.tag) == (link, tag));
    }

    fn close(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64) {
        Coordinator::close(self, ctx, link, session);
    }

    fn settings(&mut self, _: &mut dyn Context, settings: &Value) -> Result<(), String> {
        self.grace_ms = crate::grace_ms(settings)?;
        Ok(())
    }

    fn ready(&mut self, ctx: &mut dyn Context, _: u32, _: Readiness) {
        self.hear(ctx);
    }

    fn deadline(&self) -> Option<Instant> {
        Coordinator::deadline(self)
    }

    fn expired(&mut self, ctx: &mut dyn Context) {
        self.expire(ctx);
    }

    fn over(&self) -> Option<&str> {
        self.why_over()
    }

    fn state(&self) -> Value {
        let Some(state) = Coordinator::state(self) else { return json!({ "loaded": false }) };
        let (nodes, bytes) = state.size();
        json!({
            "loaded": true,
            "epoch": state.epoch(),
            "revision": state.revision(),
            "nodes": nodes,
            "bytes": bytes,
            "waiting": state.waiting(),
            "sessions": self.sessions.len(),
        })
    }

    fn state_for(&self, link: LinkId) -> Value {
        let sessions = self.sessions.range((link, 0)..=(link, u64::MAX)).count();
        json!({ "sessions": sessions })
    }
}
