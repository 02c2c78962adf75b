//! One turn of one link: a bounded number of its messages, given to its service.

use super::book::Action;
use super::core::{Bound, Core, describe};
use super::run::Served;
use super::service::LinkId;
use channel::ReceiveError;
use rustix::io::Errno;

/// Messages that one link may have handled before the others have their turn.
const MESSAGES_PER_TURN: usize = 16;

/// Handles some of a link's messages; whether there were any.
pub fn serve_link(core: &mut Core, services: &mut [Served], message: &mut Vec<u8>, id: LinkId) -> bool {
    for count in 0..MESSAGES_PER_TURN {
        let now = core.now;
        // Thrown out by its own last message, or its answers wait: no more of it.
        if core.doomed.iter().any(|(doomed, _)| *doomed == id) {
            return true;
        }
        let Some(link) = core.links.get_mut(&id) else { return count > 0 };
        if link.is_stalled() || core.leaving.is_some() {
            return count > 0;
        }
        match link.receiver.try_receive(message) {
            Ok(Some(_)) => {}
            Ok(None) => return count > 0,
            Err(ReceiveError::Closed) => {
                core.doomed.push((id, "it is gone".into()));
                return true;
            }
            Err(error) => {
                core.doomed.push((id, describe(&error)));
                return true;
            }
        }
        match link.book.take(message, now) {
            Ok(action) => {
                let service = link.service;
                if let Some(served) = services.get_mut(service) {
                    act(core, served, service, id, action);
                }
            }
            Err(corruption) => {
                core.doomed.push((id, format!("it sent what no consumer sends: {corruption}")));
                return true;
            }
        }
    }
    true
}

fn act(core: &mut Core, served: &mut Served, service: usize, id: LinkId, action: Action<'_>) {
    let now = core.now;
    let mut ctx = Bound { core, service };
    match action {
        Action::Open(to, info) => served.service.open(&mut ctx, to, &info),
        Action::Restore(to, capsule) => served.service.restore(&mut ctx, to, &capsule),
        Action::Request(to, payload) => served.service.request(&mut ctx, to, payload),
        Action::Control(to, payload) => served.service.control(&mut ctx, to, payload),
        Action::Tree(to, kind, payload) => served.service.tree(&mut ctx, to, kind, payload),
        Action::Credit(session) => served.service.credit(&mut ctx, id, session),
        Action::Nothing => {}
        Action::Interrupt(tag) => served.service.interrupt(&mut ctx, id, tag),
        Action::Forget { tags, closed } => {
            for tag in tags {
                served.service.cancel(&mut ctx, id, tag);
            }
            if let Some(session) = closed {
                served.service.close(&mut ctx, id, session);
            }
        }
        Action::State(to) => {
            let state = serde_json::to_vec(&served.service.state_for(id)).map_err(|_| Errno::IO);
            if let Some(link) = core.links.get_mut(&id) {
                let sent = link.respond(to, state.as_deref().map_err(|errno| *errno), &[], now);
                core.sent(id, sent);
            }
        }
        Action::Refuse(to, errno) => {
            if let Some(link) = core.links.get_mut(&id) {
                let sent = link.respond(to, Err(errno), &[], now);
                core.sent(id, sent);
            }
        }
    }
}
