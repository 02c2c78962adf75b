//! The service's face to the loop: its files, and which part takes which call.

use crate::failure::Failure;
use crate::service::Directory;
use serde_json::Value;
use session::{Context, LinkId, Readiness, ReplyTo, Service};
use std::time::Instant;
use wire::control::Consumer;
use wire::directory::{KIND, file, verb};
use wire::service::{Behaviour, Export, FileExport, OpenInfo, VERSION_MIN};

fn shown(id: u32, name: &str, mode: u32, behaviour: Behaviour, verb: &str) -> FileExport {
    FileExport {
        id,
        name: Some(name.into()),
        mode,
        behaviour,
        idempotent: true,
        verb: verb.into(),
        change: None,
    }
}

fn hidden(id: u32) -> FileExport {
    let (behaviour, verb) = (Behaviour::Session, verb::RESOLVE.into());
    FileExport { id, name: None, mode: 0o666, behaviour, idempotent: true, verb, change: None }
}

impl Service for Directory {
    fn export(&self) -> Export {
        let files = vec![
            shown(file::QUERY, "query", 0o666, Behaviour::Session, verb::RESOLVE),
            shown(file::CTL, "ctl", 0o600, Behaviour::Control, verb::CONTROL),
            shown(file::STATUS, "status", 0o444, Behaviour::Text, verb::RESOLVE),
            shown(file::SESSIONS, "sessions", 0o444, Behaviour::Text, verb::RESOLVE),
            hidden(file::MESSAGE),
            hidden(file::ADDRESSES),
            hidden(file::NAMES),
        ];
        Export { version: VERSION_MIN, kind: KIND.into(), files }
    }

    fn start(&mut self, ctx: &mut dyn Context) {
        self.started = Some(ctx.now());
    }

    fn attach(&mut self, ctx: &mut dyn Context, link: LinkId, consumer: &Consumer) {
        self.add_link(ctx, link, consumer);
    }

    fn detach(&mut self, ctx: &mut dyn Context, link: LinkId) {
        self.remove_link(ctx, link);
    }

    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo) {
        match self.open_session(to, info) {
            Ok(capsule) => {
                ctx.answer(to, Ok(b""), &[]);
                ctx.capsule(to.link, to.session, &capsule);
            }
            Err(failure) => ctx.answer(to, Err(failure.errno()), &[]),
        }
    }

    fn restore(&mut self, ctx: &mut dyn Context, to: ReplyTo, capsule: &[u8]) {
        let restored = self.restore_defaults(ctx, to, capsule);
        ctx.answer(to, restored.map(|()| &b""[..]).map_err(Failure::errno), &[]);
    }

    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        self.take_request(ctx, to, payload);
    }

    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        let data = self.take_ioctl(ctx, to, payload);
        ctx.answer(to, data.as_deref().map_err(|failure| failure.errno()), &[]);
    }

    fn cancel(&mut self, ctx: &mut dyn Context, link: LinkId, tag: u64) {
        self.forget_request(ctx, link, tag);
    }

    fn close(&mut self, _: &mut dyn Context, link: LinkId, session: u64) {
        self.close_session(link, session);
    }

    fn settings(&mut self, ctx: &mut dyn Context, settings: &Value) -> Result<(), String> {
        self.take_settings(ctx, settings).map_err(|error| error.to_string())
    }

    fn verbs(&mut self, ctx: &mut dyn Context, link: LinkId, verbs: &[String]) {
        self.take_verbs(ctx, link, verbs);
    }

    fn ready(&mut self, ctx: &mut dyn Context, token: u32, _: Readiness) {
        self.socket_ready(ctx, token);
    }

    fn deadline(&self) -> Option<Instant> {
        self.lookups.deadline().into_iter().chain(self.settling_deadline()).min()
    }

    fn expired(&mut self, ctx: &mut dyn Context) {
        self.settle_due(ctx);
        while let Some(ended) = self.lookup_expired(ctx) {
            self.resume(ctx, ended);
        }
    }

    fn state(&self) -> Value {
        self.full_state()
    }

    fn state_for(&self, link: LinkId) -> Value {
        let tenant = self.links.get(&link).and_then(|link| self.tenants.get(&link.tenant));
        tenant.map_or(Value::Null, crate::tenant::Tenant::state)
    }
}
