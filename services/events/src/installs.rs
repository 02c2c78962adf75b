//! Modules that subscribers hand over. They are checked and begun on a thread of their own, one
//! after the other: a hostile one may take long, and no event waits for it.

use crate::installer::{For, Order, TOKEN};
use crate::library::{Bytes, name_of};
use crate::service::Events;
use crate::session_table::{Session, SessionKey};
use publication::{NamedModule, SubscriptionId};
use rustix::io::Errno;
use session::{Context, Interest, LinkId, ReplyTo};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use wire::events::module::{NAME_PREFIX, PER_DOMAIN_MAX, PER_SERVICE_MAX};
use wire::service::OpenInfo;

impl Events {
    pub(crate) fn watch_installer(&mut self, ctx: &mut dyn Context) {
        if let Err(error) = ctx.watch(self.installer.bell.as_fd(), TOKEN, Interest::Read) {
            tracing::error!(%error, "no module can be installed");
        }
    }

    /// A module was written to a subscription. It is answered now, if the channel has the module
    /// already, or when it was checked.
    pub(crate) fn take_module(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        (serial, id): (u32, SubscriptionId),
        bytes: &[u8],
    ) {
        if let Err(refusal) = self.may_filter(serial, to.link) {
            return self.spoken(ctx, to, (serial, id), Err(refusal));
        }
        if self.installer.is_asked_by((to.link, to.session)) {
            let refusal = (Errno::BUSY, "the module before is still being checked".to_owned());
            return self.spoken(ctx, to, (serial, id), Err(refusal));
        }
        let name = name_of(bytes);
        let what = For::Subscription(id);
        let ordered = self.order_module(to, serial, (name, bytes.into()), what);
        match ordered {
            Ok(true) => {}
            Ok(false) => self.spoken(ctx, to, (serial, id), Ok(())),
            Err(refusal) => self.spoken(ctx, to, (serial, id), Err(refusal)),
        }
    }

    /// Whether it was ordered; not, if it is there and the subscription has it.
    fn order_module(
        &mut self,
        to: ReplyTo,
        serial: u32,
        (name, bytes): (String, Bytes),
        what: For,
    ) -> Result<bool, (Errno, String)> {
        let gone = || (Errno::STALE, "the channel is gone".to_owned());
        let owner = self.links.get(&to.link).map(|link| link.owner).ok_or_else(gone)?;
        self.check_quota(owner, (to.link, to.session), serial, &name)?;
        let open = self.channels.get_mut(&serial).ok_or_else(gone)?;
        if let For::Subscription(id) = what
            && open.channel.share_filter(id, &name)
        {
            self.library.keep(owner, &name, &bytes);
            return Ok(false);
        }
        if let Some(order) = self.installer.find(owner, serial, &name) {
            order.waiting.push((to, what));
            return Ok(true);
        }
        self.installer
            .order(Order { serial, owner, name, bytes, waiting: vec![(to, what)] })
            .map(|()| true)
            .map_err(|error| (Errno::AGAIN, format!("no module can be checked: {error}")))
    }

    /// Each module takes memory, and time of each publication.
    fn check_quota(
        &self,
        owner: u64,
        asking: SessionKey,
        serial: u32,
        name: &str,
    ) -> Result<(), (Errno, String)> {
        let is_of_owner = |key: &SessionKey| self.links.get(&key.0).is_some_and(|link| link.owner == owner);
        let mut own: BTreeSet<(u32, &str)> = BTreeSet::new();
        for (key, session) in &self.sessions {
            let &Session::Subscriber { serial, id } = session else { continue };
            if *key == asking || !is_of_owner(key) {
                continue;
            }
            let filter = self.channels.get(&serial).and_then(|open| open.channel.terms(id).1);
            own.extend(
                filter.filter(|(text, ..)| text.starts_with(NAME_PREFIX)).map(|(text, ..)| (serial, text)),
            );
        }
        let ordered = self.installer.orders.values();
        own.extend(ordered.filter(|it| it.owner == owner).map(|it| (it.serial, it.name.as_str())));
        own.insert((serial, name));
        if own.len() > PER_DOMAIN_MAX {
            return Err((Errno::DQUOT, format!("a domain has {PER_DOMAIN_MAX} modules at the most")));
        }
        let installed = self.channels.values().flat_map(|open| open.channel.filters());
        let all = installed.filter(|it| it.usage.is_some()).count() + self.installer.orders.len();
        if all >= PER_SERVICE_MAX {
            return Err((Errno::NOSPC, format!("the service has {PER_SERVICE_MAX} modules at the most")));
        }
        Ok(())
    }

    /// Has the module of a subscription that is opened again checked, if it is not there: then the
    /// opening is answered when it is. Whether it waits. `given` are the bytes of a module that the
    /// file gives.
    pub(crate) fn opens_later(
        &mut self,
        to: ReplyTo,
        serial: u32,
        info: &OpenInfo,
        name: &str,
        given: Option<Bytes>,
    ) -> bool {
        let owner = self.links.get(&to.link).map(|link| link.owner);
        let bytes = given.or_else(|| owner.and_then(|owner| self.library.find(owner, name)));
        let there =
            self.channels.get(&serial).is_some_and(|open| open.channel.filters().any(|it| it.text == name));
        let Some(bytes) = bytes.filter(|_| !there) else { return false };
        let ordered = self.order_module(to, serial, (name.to_owned(), bytes), For::Opening(info.clone()));
        if let Err((_, reason)) = &ordered {
            self.note_refusal(to.link, reason);
        }
        ordered.unwrap_or(false)
    }

    /// Modules were checked.
    pub(crate) fn take_modules(&mut self, ctx: &mut dyn Context) {
        for (order, result) in self.installer.done() {
            let Order { serial, owner, name, bytes, waiting } = order;
            let mut checked = result.map(|module| Some(NamedModule::new(name.clone(), module)));
            for (to, what) in waiting {
                match (what, &mut checked) {
                    (For::Subscription(id), checked) => {
                        let here = self.sessions.get(&(to.link, to.session));
                        if here != Some(&Session::Subscriber { serial, id }) {
                            ctx.answer(to, Err(Errno::BADF), &[]);
                            continue;
                        }
                        let said = match checked {
                            Ok(module) => self.set_module((serial, id), &name, module),
                            Err(error) => Err((Errno::INVAL, error.to_string())),
                        };
                        if said.is_ok() {
                            self.library.keep(owner, &name, &bytes);
                        }
                        self.spoken(ctx, to, (serial, id), said);
                    }
                    (For::Opening(info), Ok(module)) => {
                        self.arrived = module.take();
                        self.open_now(ctx, to, &info);
                        *module = self.arrived.take();
                    }
                    (For::Opening(_), Err(error)) => {
                        self.note_refusal(to.link, &error.to_string());
                        ctx.answer(to, Err(Errno::USERS), &[]);
                    }
                }
            }
        }
    }

    /// Gives a subscription a module that was checked; those after the first have the same.
    fn set_module(
        &mut self,
        (serial, id): (u32, SubscriptionId),
        name: &str,
        module: &mut Option<NamedModule>,
    ) -> Result<(), (Errno, String)> {
        let gone = || (Errno::STALE, "the channel is gone".to_owned());
        let open = self.channels.get_mut(&serial).ok_or_else(gone)?;
        if open.channel.share_filter(id, name) {
            return Ok(());
        }
        let again = || (Errno::AGAIN, "the module is gone again: write it once more".to_owned());
        let module = module.take().ok_or_else(again)?;
        open.channel.set_filter(id, Some(module)).map_err(|error| (Errno::USERS, error.to_string()))
    }

    /// Ends the subscriptions whose module has failed: what they read next is `ECANCELED`, and
    /// `stats` tells their domain why.
    pub(crate) fn end_failed(&mut self, ctx: &mut dyn Context, serial: u32) {
        let Some(open) = self.channels.get(&serial) else { return };
        let failed = open.channel.failed().into_iter();
        let failed: Vec<(SessionKey, String)> = failed
            .filter_map(|(id, reason)| Some((open.channel.subscription_at(id.place())?.1, reason)))
            .collect();
        let at = open.channel.sequences().1.saturating_sub(1);
        for (key, reason) in failed {
            self.note_refusal(key.0, &format!("the module was switched off near event {at}: {reason}"));
            ctx.end(key.0, key.1, Some(Errno::CANCELED));
            self.end_session(ctx, key, true);
        }
    }

    pub(crate) fn forget_orders(&mut self, link: LinkId, tag: Option<u64>) {
        self.installer.forget(|to| to.link == link && tag.is_none_or(|tag| to.tag == tag));
    }
}
