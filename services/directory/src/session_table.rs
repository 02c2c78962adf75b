//! Links, sessions, and the files that control and list them.

use crate::command::{self, Command};
use crate::failure::Failure;
use crate::service::{Directory, search_text};
use crate::settings::{Effective, Format, Overrides, seal, unseal};
use crate::tenant::{Tenant, TenantId};
use session::{Context, LinkId, ReplyTo};
use std::fmt::Write as _;
use wire::control::Consumer;
use wire::directory::{file, ioctl, verb};
use wire::service::{OpenInfo, SESSION_NONE};

/// The entrance of frontends: who comes through it keeps the domain's defaults for the next server.
/// The daemon lets no program of a domain take it.
const KEEPER: &str = "device";

/// One consumer's channel.
#[derive(Debug)]
pub struct Link {
    /// The domain whose channel it is.
    pub tenant: TenantId,
    /// The entrance that it came through, as the daemon says.
    pub entrance: String,
    /// Whether the domain holds the verb `control`.
    pub may_control: bool,
}

/// One open session.
#[derive(Debug)]
pub struct Session {
    /// Its number, unique in its domain: `ctl` and `sessions` speak of it so.
    pub number: u64,
    /// Of which domain.
    pub tenant: TenantId,
    /// On which file.
    pub file: u32,
    /// The settings that it has made.
    pub overrides: Overrides,
    /// The user that opened it, as the frontend says.
    pub uid: u32,
    /// The process that opened it.
    pub pid: u32,
}

fn holds(verbs: &[String], wanted: &str) -> bool {
    verbs.iter().any(|verb| verb == wanted)
}

impl Directory {
    /// A new channel of a domain. A frontend that comes later than the defaults were set is told
    /// them.
    pub(crate) fn add_link(&mut self, ctx: &mut dyn Context, link: LinkId, consumer: &Consumer) {
        let known = self.tenants.iter().find(|(_, t)| t.dc == consumer.dc && t.domain == consumer.domain);
        let id = known.map(|(&id, _)| id).unwrap_or_else(|| {
            self.last_tenant += 1;
            TenantId(self.last_tenant)
        });
        let may_control = holds(&consumer.verbs, verb::CONTROL);
        let settles = self.settles(ctx.now(), may_control);
        let tenant = self
            .tenants
            .entry(id)
            .or_insert_with(|| Tenant::new(&consumer.dc, &consumer.domain, &self.admitted, settles));
        tenant.links += 1;
        if tenant.told && consumer.entrance == KEEPER {
            ctx.capsule(link, SESSION_NONE, &seal(SESSION_NONE, &tenant.defaults));
        }
        if consumer.entrance == KEEPER {
            self.frontend_came(ctx.now(), id);
        }
        self.links.insert(link, Link { tenant: id, entrance: consumer.entrance.clone(), may_control });
    }

    /// A channel is gone, and with the domain's last one all that the service knows of the domain.
    pub(crate) fn remove_link(&mut self, ctx: &mut dyn Context, link: LinkId) {
        for tag in self.tags_of(link) {
            self.forget_request(ctx, link, tag);
        }
        self.forget_early(link, None);
        let Some(gone) = self.links.remove(&link) else { return };
        let before = self.sessions.len();
        self.sessions.retain(|(of, _), _| *of != link);
        let closed = before - self.sessions.len();
        if let Some(tenant) = self.tenants.get_mut(&gone.tenant) {
            tenant.sessions = tenant.sessions.saturating_sub(closed);
            tenant.links = tenant.links.saturating_sub(1);
            if tenant.links == 0 {
                self.tenants.remove(&gone.tenant);
                self.forget_tenant(ctx, gone.tenant);
            }
        }
    }

    /// Takes a change of a domain's verbs: without `control`, the defaults that it set by it are
    /// gone, and so are upstreams of its own choice in sessions.
    pub(crate) fn take_verbs(&mut self, ctx: &mut dyn Context, link: LinkId, verbs: &[String]) {
        let Some(entry) = self.links.get_mut(&link) else { return };
        entry.may_control = holds(verbs, verb::CONTROL);
        if entry.may_control {
            return;
        }
        let id = entry.tenant;
        if let Some(tenant) = self.tenants.get_mut(&id).filter(|tenant| tenant.told) {
            (tenant.defaults, tenant.told) = (Overrides::default(), false);
            self.tell_keepers(ctx, id, None, &[]);
        }
        let mine = self.sessions.iter_mut().filter(|((of, _), _)| *of == link);
        for (&(_, number), session) in mine.filter(|(_, session)| session.overrides.upstreams.is_some()) {
            session.overrides.upstreams = None;
            ctx.capsule(link, number, &seal(session.number, &session.overrides));
        }
    }

    /// Opens a session; its capsule.
    pub(crate) fn open_session(&mut self, to: ReplyTo, info: &OpenInfo) -> Result<Vec<u8>, Failure> {
        let link = self.links.get(&to.link).ok_or(Failure::NotAllowed)?;
        let tenant_id = link.tenant;
        let tenant = self.tenants.get_mut(&tenant_id).ok_or(Failure::NotAllowed)?;
        if tenant.sessions >= self.admitted.settings.sessions_per_domain as usize {
            return Err(Failure::TooManySessions);
        }
        let (wanted, overrides) = match info.capsule.as_slice() {
            [] => (None, tenant.defaults.clone()),
            capsule => unseal(capsule).map(|(number, overrides)| (Some(number), overrides))?,
        };
        if overrides.upstreams.is_some() && !link.may_control {
            return Err(Failure::NotAllowed);
        }
        let sessions = &self.sessions;
        let taken = |n: u64| sessions.values().any(|other| other.tenant == tenant_id && other.number == n);
        let number = tenant.session_number(wanted, taken);
        tenant.sessions += 1;
        let (file, uid, pid) = (to.file, info.uid, info.pid);
        let capsule = seal(number, &overrides);
        let session = Session { number, tenant: tenant_id, file, overrides, uid, pid };
        self.sessions.insert((to.link, to.session), session);
        Ok(capsule)
    }

    /// A consumer hands back the domain's defaults, as an earlier server sealed them. They count if
    /// this server has not heard of any yet; else whoever kept the older ones is told the present
    /// ones. What it takes to set them by a line is what it takes here.
    pub(crate) fn restore_defaults(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        capsule: &[u8],
    ) -> Result<(), Failure> {
        let link = self.links.get(&to.link).filter(|link| link.may_control).ok_or(Failure::NotAllowed)?;
        let (number, overrides) = unseal(capsule)?;
        if number != SESSION_NONE {
            return Err(Failure::Malformed);
        }
        let id = link.tenant;
        let tenant = self.tenants.get_mut(&id).ok_or(Failure::NotAllowed)?;
        if !tenant.told {
            (tenant.defaults, tenant.told) = (overrides, true);
        }
        let capsule = seal(SESSION_NONE, &tenant.defaults);
        self.tell_keepers(ctx, id, Some(to.link), &capsule);
        self.settle(ctx, id);
        Ok(())
    }

    /// Gives the capsule of session 0 to the domain's frontend, and to `also`, who asked for the
    /// change.
    fn tell_keepers(&self, ctx: &mut dyn Context, tenant: TenantId, also: Option<LinkId>, capsule: &[u8]) {
        for (&id, link) in self.links.iter().filter(|(_, link)| link.tenant == tenant) {
            if link.entrance == KEEPER || also == Some(id) {
                ctx.capsule(id, SESSION_NONE, capsule);
            }
        }
    }

    /// Closes a session.
    pub(crate) fn close_session(&mut self, link: LinkId, session: u64) {
        if let Some(session) = self.sessions.remove(&(link, session))
            && let Some(tenant) = self.tenants.get_mut(&session.tenant)
        {
            tenant.sessions = tenant.sessions.saturating_sub(1);
        }
    }

    /// Changes one session and seals it anew.
    fn change_session(
        &mut self,
        ctx: &mut dyn Context,
        (link, session): (LinkId, u64),
        change: impl FnOnce(&mut Overrides) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let entry = self.sessions.get_mut(&(link, session)).ok_or(Failure::Malformed)?;
        change(&mut entry.overrides)?;
        ctx.capsule(link, session, &seal(entry.number, &entry.overrides));
        Ok(())
    }

    /// A control line on `query`: concerns the session that it was written to.
    pub(crate) fn control_own_session(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        line: &str,
    ) -> Result<(), Failure> {
        let Command::Set(change) = command::parse(line)? else { return Err(Failure::Malformed) };
        if to.session == SESSION_NONE {
            return Err(Failure::Malformed);
        }
        if change.needs_control() && !self.may_control(to.link) {
            return Err(Failure::NotAllowed);
        }
        self.change_session(ctx, (to.link, to.session), |overrides| change.apply(overrides))
    }

    fn may_control(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.may_control)
    }

    /// A request on one of the files that are no questions.
    pub(crate) fn take_file_request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        let Some(tenant) = self.links.get(&to.link).map(|link| link.tenant) else { return };
        let text = match (to.file, payload) {
            (file::STATUS, []) => Ok(self.tenants.get(&tenant).map(Tenant::status).unwrap_or_default()),
            (file::SESSIONS, []) => Ok(self.sessions_text(tenant)),
            (file::CTL, []) => Ok(self.ctl_text(tenant)),
            (file::CTL, line) => self.control_domain(ctx, to.link, tenant, line).map(|()| "ok\n".into()),
            _ => Err(Failure::Malformed),
        };
        match text {
            Ok(text) => ctx.answer(to, Ok(text.as_bytes()), &[]),
            Err(failure) => self.refuse(ctx, to, tenant, failure),
        }
    }

    /// A line on `ctl`: concerns the whole domain. The loop has checked the verb `control`.
    fn control_domain(
        &mut self,
        ctx: &mut dyn Context,
        link: LinkId,
        id: TenantId,
        line: &[u8],
    ) -> Result<(), Failure> {
        let line = std::str::from_utf8(line).map_err(|_| Failure::Malformed)?;
        let tenant = self.tenants.get_mut(&id).ok_or(Failure::NotAllowed)?;
        match command::parse(line)? {
            Command::Set(change) => {
                change.apply(&mut tenant.defaults)?;
                tenant.told = true;
                let capsule = seal(SESSION_NONE, &tenant.defaults);
                self.tell_keepers(ctx, id, Some(link), &capsule);
                self.settle(ctx, id);
                Ok(())
            }
            Command::Flush => {
                tenant.cache.flush();
                Ok(())
            }
            Command::Session(number, change) => {
                let mut all = self.sessions.iter();
                let found = all.find(|(_, session)| session.tenant == id && session.number == number);
                let place = found.map(|(&place, _)| place).ok_or(Failure::NoSuchSession)?;
                self.change_session(ctx, place, |overrides| change.apply(overrides))
            }
        }
    }

    fn ctl_text(&self, tenant: TenantId) -> String {
        let mut text = String::with_capacity(128);
        if let Some(tenant) = self.tenants.get(&tenant) {
            Effective::new(&tenant.defaults, &self.admitted).lines(&mut text);
        }
        text
    }

    fn sessions_text(&self, tenant: TenantId) -> String {
        let mut mine: Vec<_> = self.sessions.iter().filter(|(_, session)| session.tenant == tenant).collect();
        mine.sort_by_key(|(_, session)| session.number);
        let mut text = String::with_capacity(mine.len() * 128);
        for ((link, _), session) in mine {
            let effective = Effective::new(&session.overrides, &self.admitted);
            let entrance = self.links.get(link).map_or("", |link| link.entrance.as_str());
            let upstreams = session.overrides.upstreams.as_deref().map_or("none".into(), |own| {
                own.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            });
            let _ = writeln!(
                text,
                "{} file={} uid={} pid={} entrance={entrance} timeout={}ms retries={} upstream={upstreams} \
                 search={} format={} trace={}",
                session.number,
                file_name(session.file),
                session.uid,
                session.pid,
                effective.timeout_ms(),
                effective.retries(),
                search_text(effective.search()),
                if effective.format() == Format::Json { "json" } else { "text" },
                if effective.trace() { "on" } else { "off" },
            );
        }
        text
    }

    /// An `ioctl` on a session of `query`.
    pub(crate) fn take_ioctl(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        data: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let session = self.sessions.get(&(to.link, to.session)).ok_or(Failure::Malformed)?;
        if session.file != file::QUERY {
            return Err(Failure::NoSuchControl);
        }
        let effective = Effective::new(&session.overrides, &self.admitted);
        let (place, control) = ((to.link, to.session), self.may_control(to.link));
        let nothing = |done: Result<(), Failure>| done.map(|()| Vec::new());
        match (to.file, data) {
            (ioctl::GET_SETTINGS, []) => Ok(effective.to_struct().to_vec()),
            (ioctl::GET_SESSION, []) => Ok(session.number.to_ne_bytes().to_vec()),
            (ioctl::SET_SETTINGS, data) => nothing(self.change_session(ctx, place, |o| o.set_struct(data))),
            (ioctl::ADD_UPSTREAM, _) if !control => Err(Failure::NotAllowed),
            (ioctl::ADD_UPSTREAM, data) => {
                nothing(self.change_session(ctx, place, |o| o.add_upstream_struct(data)))
            }
            (ioctl::ADD_SEARCH, data) => {
                let list = effective.search().clone();
                nothing(self.change_session(ctx, place, |o| o.add_search_struct(data, &list)))
            }
            (ioctl::CLEAR_UPSTREAMS, []) => nothing(self.change_session(ctx, place, |o| {
                o.upstreams = None;
                Ok(())
            })),
            (ioctl::CLEAR_SEARCH, []) => nothing(self.change_session(ctx, place, |o| {
                o.search = Some([].into());
                Ok(())
            })),
            (ioctl::GET_SETTINGS | ioctl::GET_SESSION | ioctl::CLEAR_UPSTREAMS | ioctl::CLEAR_SEARCH, _) => {
                Err(Failure::Malformed)
            }
            _ => Err(Failure::NoSuchControl),
        }
    }
}

const fn file_name(file: u32) -> &'static str {
    match file {
        file::QUERY => "query",
        file::CTL => "ctl",
        file::STATUS => "status",
        file::SESSIONS => "sessions",
        file::MESSAGE => "message",
        file::ADDRESSES => "addresses",
        file::NAMES => "names",
        _ => "unknown",
    }
}
