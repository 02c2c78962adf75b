//! The first moments of a server: whether a domain has set defaults is known by its frontend, which
//! may come later than the first question by another entrance. Such a question waits for it, a
//! little.

use crate::service::Directory;
use crate::tenant::TenantId;
use session::{Context, LinkId, ReplyTo};
use std::time::{Duration, Instant};
use wire::directory::file;
use wire::service::SESSION_NONE;

/// How long after its start a server reckons with domains that an earlier one has served: their
/// frontends hear of a new server from the daemon, all at once.
const NEW_FOR: Duration = Duration::from_secs(1);
/// How long a domain's questions wait for its frontend, at most.
const FRONTEND_COMES_WITHIN: Duration = Duration::from_millis(250);
/// How long they wait once it is there: what it has to hand back, it hands back first of all.
const FRONTEND_SAYS_WITHIN: Duration = Duration::from_millis(50);

/// A question that waits.
#[derive(Debug)]
pub struct Early {
    tenant: TenantId,
    to: ReplyTo,
    payload: Vec<u8>,
}

impl Directory {
    /// Until when a domain that is met at `now` for the first time may yet be told its defaults;
    /// `None`: it can have set none, or this server is no successor any more.
    pub(crate) fn settles(&self, now: Instant, may_control: bool) -> Option<Instant> {
        let new = self.started.is_some_and(|started| now.saturating_duration_since(started) < NEW_FOR);
        (new && may_control).then_some(now + FRONTEND_COMES_WITHIN)
    }

    /// A domain's frontend is there.
    pub(crate) fn frontend_came(&mut self, now: Instant, tenant: TenantId) {
        if let Some(until) = self.tenants.get_mut(&tenant).and_then(|tenant| tenant.settles.as_mut()) {
            *until = (*until).min(now + FRONTEND_SAYS_WITHIN);
        }
    }

    /// Keeps a question in session 0 if its domain's defaults may yet come. False: it is to be
    /// answered now.
    pub(crate) fn keep_early(
        &mut self,
        now: Instant,
        to: ReplyTo,
        tenant_id: TenantId,
        payload: &[u8],
    ) -> bool {
        let asks = matches!(to.file, file::QUERY | file::MESSAGE | file::ADDRESSES | file::NAMES);
        let Some(tenant) = self.tenants.get_mut(&tenant_id) else { return false };
        let waits = asks && to.session == SESSION_NONE && tenant.settles.is_some_and(|until| now < until);
        if !waits || !tenant.may_wait(&self.admitted) {
            return false;
        }
        tenant.waiting += 1;
        self.early.push(Early { tenant: tenant_id, to, payload: payload.to_vec() });
        true
    }

    /// When the first of those that wait has waited long enough.
    pub(crate) fn settling_deadline(&self) -> Option<Instant> {
        let until = |early: &Early| self.tenants.get(&early.tenant).and_then(|tenant| tenant.settles);
        self.early.iter().filter_map(until).min()
    }

    /// The defaults of a domain are known, or nobody can know them any more: its questions go on.
    pub(crate) fn settle(&mut self, ctx: &mut dyn Context, tenant: TenantId) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.settles = None;
        }
        for early in self.take_early(|early| early.tenant == tenant) {
            self.take_request(ctx, early.to, &early.payload);
        }
    }

    /// Lets those go on that have waited long enough.
    pub(crate) fn settle_due(&mut self, ctx: &mut dyn Context) {
        let now = ctx.now();
        let due = |early: &Early| {
            let tenant = self.tenants.get(&early.tenant);
            tenant.is_none_or(|tenant| tenant.settles.is_none_or(|until| until <= now))
        };
        let tenants: Vec<_> =
            self.early.iter().filter(|early| due(early)).map(|early| early.tenant).collect();
        tenants.into_iter().for_each(|tenant| self.settle(ctx, tenant));
    }

    /// Nobody waits for these questions any more: one, or with `None` all of a link.
    pub(crate) fn forget_early(&mut self, link: LinkId, tag: Option<u64>) {
        self.take_early(|early| early.to.link == link && tag.is_none_or(|tag| early.to.tag == tag));
    }

    fn take_early(&mut self, which: impl Fn(&Early) -> bool) -> Vec<Early> {
        let taken: Vec<_> = self.early.extract_if(.., |early| which(early)).collect();
        for early in &taken {
            if let Some(tenant) = self.tenants.get_mut(&early.tenant) {
                tenant.waiting = tenant.waiting.saturating_sub(1);
            }
        }
        taken
    }
}
