//! The messages between a server and its node's daemon.

use super::core::{Bound, Source, describe};
use super::link::Link;
use super::run::{Role, ServeError, Served, Server};
use super::service::LinkId;
use crate::control::{ControlError, LOOK_AGAIN, Notice, PacketError};
use channel::End;
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use wire::control::{Consumer, Event, ServedService};
use wire::service::Export;

/// Kind of the services that programs serve.
const PROGRAM: &str = "program";
/// Most consumers of one server; a node has fewer domains times entrances.
const MAX_LINKS: usize = 4096;

impl Server<'_> {
    /// Takes what the daemon says.
    pub(super) fn hear_daemon(&mut self) -> Result<(), ServeError> {
        loop {
            match self.control.next_notice() {
                Ok(Some(notice)) => {
                    self.noticed(notice)?;
                    self.throw_out();
                }
                Ok(None) => return Ok(()),
                Err(error) if error.is_gone() => {
                    tracing::warn!(error = describe(&error), "the node's daemon is gone; serving on");
                    self.core.unwatch_source(&self.control);
                    self.await_daemon();
                    return Ok(());
                }
                Err(error) => tracing::warn!(error = describe(&error), "a packet of the daemon was dropped"),
            }
        }
    }

    fn noticed(&mut self, notice: Notice) -> Result<(), ServeError> {
        match notice {
            Notice::Attach { service, channel, consumer, end, memory } => {
                self.attach(&service, (channel, consumer), end, memory)
            }
            Notice::Serving(services) => return self.place(services),
            // Of a program's service there is another server now, or none is wanted here: it has
            // nothing to go on for.
            Notice::Refused { errno, message } if self.services.is_empty() || self.role != Role::Host => {
                return Err(ControlError::Refused { errno, message }.into());
            }
            Notice::Refused { message, .. } => {
                tracing::error!(message, "the daemon does not take this server back");
            }
            Notice::Event(Event::Settings { service, settings }) => self.settings(&service, settings),
            Notice::Event(Event::Verbs { service, domain, verbs }) => self.verbs(&service, &domain, &verbs),
            Notice::Event(Event::Inspect { id }) => self.report(id),
            Notice::Event(Event::Withdrawn { service, message }) => {
                if self.role == Role::Program(service) {
                    return Err(ControlError::Withdrawn(message).into());
                }
            }
            Notice::Event(Event::Leave { service }) => self.leave(&service),
            // To frontends, machines and endpoints only.
            Notice::Introduced { .. }
            | Notice::Bound(_)
            | Notice::Answer { .. }
            | Notice::Event(
                Event::Introduced { .. }
                | Event::Rights { .. }
                | Event::Moved { .. }
                | Event::Revoked { .. }
                | Event::Unbound { .. }
                | Event::Migrate { .. }
                | Event::Superseded { .. }
                | Event::Service { .. }
                | Event::Services { .. }
                | Event::Attach { .. }
                | Event::Frontend { .. },
            ) => {}
        }
        Ok(())
    }

    /// Makes the services that are new here, and gives the others their settings.
    fn place(&mut self, told: Vec<ServedService>) -> Result<(), ServeError> {
        self.core.leaving = None;
        self.stands_by = false;
        for told in told {
            let known = self.services.iter().find(|served| served.told.name == told.name);
            if let Some(known) = known {
                if known.told.settings != told.settings {
                    self.settings(&told.name, told.settings);
                }
                continue;
            }
            let fail =
                |reason| ServeError::Service { name: told.name.clone(), kind: told.kind.clone(), reason };
            if !self.has_place() {
                return Err(fail("this server has too many services already".into()));
            }
            let offers = self.role != Role::Host;
            if offers && told.kind != PROGRAM {
                return Err(fail(format!("only a service of kind {PROGRAM:?} is served by a program")));
            }
            let mut service = (self.make)(&told).map_err(fail)?;
            let number = self.services.len();
            let mut ctx = Bound { core: &mut self.core, service: number };
            service.start(&mut ctx);
            if offers {
                // It was made before its settings were known; its files may depend on them.
                let told = service.settings(&mut ctx, &told.settings);
                told.map_err(|reason| fail(format!("its settings can't be used: {reason}")))?;
            }
            let hello = hello(&service.export()).map_err(fail)?;
            tracing::info!(service = told.name, kind = told.kind, "serving");
            self.services.push(Served { told, hello, service });
        }
        Ok(())
    }

    fn attach(
        &mut self,
        service: &str,
        (channel, consumer): (u64, Consumer),
        end: End,
        memory: Option<OwnedFd>,
    ) {
        let found = self.services.iter().position(|served| served.told.name == service);
        let Some(number) = found else {
            tracing::warn!(service, channel, "a consumer of a service that is not served here was sent away");
            return;
        };
        if self.core.links.len() >= MAX_LINKS {
            tracing::warn!(domain = consumer.domain, channel, "no more consumers than {MAX_LINKS}");
            return;
        }
        let Some(served) = self.services.get_mut(number) else { return };
        self.last_link += 1;
        let id = LinkId(self.last_link);
        let link = Link::open((id, channel, number), consumer, end, &served.service.export());
        let mut link = match link {
            Ok(link) => link,
            Err(error) => {
                tracing::warn!(channel, error = describe(&error), "a consumer's channel can't be opened");
                return;
            }
        };
        let watched = self
            .core
            .watch_source(link.receiver.descriptors().doorbell, Source::Data(id))
            .and_then(|()| self.core.watch_source(link.room_doorbell(), Source::Room(id)));
        if let Err(error) = watched {
            tracing::error!(channel, %error, "a consumer's doorbells can't be watched");
            return;
        }
        link.memory = memory;
        let greeted = link.hello(&served.hello, self.core.now);
        let consumer = link.consumer.clone();
        // Not worth a line at the usual level: programs come and go as often as they like, and a
        // log is bounded.
        tracing::debug!(
            domain = consumer.domain,
            entrance = consumer.entrance,
            channel,
            "a consumer is attached"
        );
        self.core.links.insert(id, link);
        served.service.attach(&mut Bound { core: &mut self.core, service: number }, id, &consumer);
        self.core.sent(id, greeted);
        self.wake(id);
    }

    fn settings(&mut self, service: &str, settings: Value) {
        let found = self.services.iter_mut().enumerate().find(|(_, served)| served.told.name == service);
        let Some((number, served)) = found else { return };
        let mut ctx = Bound { core: &mut self.core, service: number };
        match served.service.settings(&mut ctx, &settings) {
            Ok(()) => served.told.settings = settings,
            Err(reason) => {
                tracing::error!(service, reason, "the new settings can't be used; the old ones stay")
            }
        }
    }

    fn verbs(&mut self, service: &str, domain: &str, verbs: &[String]) {
        let found = self.services.iter_mut().enumerate().find(|(_, served)| served.told.name == service);
        let Some((number, served)) = found else { return };
        let export = served.service.export();
        let of_domain = self.core.links.values_mut();
        let of_domain = of_domain.filter(|link| link.service == number && link.consumer.domain == domain);
        let ids: Vec<LinkId> = of_domain
            .map(|link| {
                link.book.allow(&export, verbs);
                link.consumer.verbs = verbs.to_vec();
                link.id
            })
            .collect();
        for id in ids {
            served.service.verbs(&mut Bound { core: &mut self.core, service: number }, id, verbs);
        }
    }

    /// Answers [`Event::Inspect`]. An answer that the daemon does not take is not kept: it asks
    /// again.
    fn report(&mut self, id: u64) {
        let sent = match self.control.report_state(id, self.state(true)) {
            Err(ControlError::Packet(PacketError::TooLong(_))) => {
                self.control.report_state(id, self.state(false))
            }
            other => other,
        };
        if let Err(error) = sent {
            tracing::warn!(error = describe(&error), "the state could not be reported");
        }
    }

    /// The server's corner of the state tree, with each link or only how many there are.
    fn state(&self, with_links: bool) -> Value {
        let services = self.services.iter().enumerate().map(|(number, served)| {
            let links = self.core.links.values().filter(|link| link.service == number);
            let links = if with_links { links.map(link_state).collect() } else { json!(links.count()) };
            let state = json!({ "kind": served.told.kind, "links": links, "state": served.service.state() });
            (served.told.name.clone(), state)
        });
        json!({ "services": services.collect::<serde_json::Map<_, _>>() })
    }

    /// Begins to look for the next daemon.
    fn await_daemon(&mut self) {
        self.folder = self.control.watch_for_daemon();
        if let Some(folder) = &self.folder
            && let Err(error) = self.core.watch_source(folder, Source::Folder)
        {
            tracing::debug!(%error, "can't watch for the daemon, will look again");
        }
        self.find_daemon();
    }

    /// Connects to the next daemon if it is there.
    pub(super) fn find_daemon(&mut self) {
        if let Some(folder) = &self.folder {
            folder.drain();
        }
        let serving = self.serves();
        match self.control.try_reconnect().and_then(|there| {
            if there { self.role.announce(&mut self.control, serving).map(|()| true) } else { Ok(false) }
        }) {
            Ok(true) => match self.core.watch_source(&self.control, Source::Control) {
                Ok(()) => {
                    tracing::info!("the node's daemon is back");
                    self.folder = None;
                    self.look_for_daemon = None;
                    return;
                }
                Err(error) => tracing::error!(%error, "the control socket can't be watched"),
            },
            Ok(false) => {}
            Err(ControlError::NoPath) => {
                self.look_for_daemon = None;
                return;
            }
            Err(error) => tracing::debug!(error = describe(&error), "the daemon can't be reached yet"),
        }
        self.look_for_daemon = Some(self.core.now + LOOK_AGAIN);
    }
}

fn hello(export: &Export) -> Result<Vec<u8>, String> {
    serde_json::to_vec(export).map_err(|error| format!("its export can't be written: {error}"))
}

fn link_state(link: &Link) -> Value {
    json!({
        "channel": link.channel,
        "domain": link.consumer.domain,
        "entrance": link.consumer.entrance,
        "sessions": link.book.sessions(),
        "outstanding": link.book.outstanding(),
        "queued_bytes": link.queued_bytes(),
    })
}
