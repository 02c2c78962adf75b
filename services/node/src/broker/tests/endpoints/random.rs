//! Random requests of members in random order: the invariants hold, nothing is handed out twice,
//! and nothing is left.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use wire::control::GrantAccess;

/// Domains of the members.
const DOMAINS: [&str; 4] = ["planner", "camera", "camera", "desk"];
const NAMES: [&str; 6] = ["", "planner", "camera", "motor", "copier", "nobody"];
/// Files that follow each other.
const FILES: usize = 4;

/// Numbers that a hostile member might have seen, or made up.
#[derive(Debug, Clone)]
struct Ask {
    member: usize,
    what: u8,
    a: usize,
    b: usize,
    c: u64,
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let one = (0..DOMAINS.len(), 0..14_u8, 0..8_usize, 0..8_usize, 0..6_u64);
    prop::collection::vec(one.prop_map(|(member, what, a, b, c)| Ask { member, what, a, b, c }), 1..80)
}

fn file(number: usize) -> Option<Arc<Topology>> {
    let none = FILE.replace(r#"{ endpoints = ["camera"], verbs = ["send", "notify"] }, "#, "");
    match number % FILES {
        0 => Some(topology(&format!("{FILE}{LIMITS}"))),
        1 => Some(topology(&format!(
            "{none}{}",
            LIMITS.replace("pairs = 2", "pairs = 5").replace("endpoints = 4", "endpoints = 9")
        ))),
        2 => Some(topology(
            &FILE.replace("[endpoint.motor]\ndomain = \"camera\"", "[endpoint.motor]\ndomain = \"desk\""),
        )),
        _ => None,
    }
}

/// Everything that somebody was told.
#[derive(Default)]
struct Seen {
    addresses: Vec<EndpointAddress>,
    tokens: Vec<String>,
    buffers: Vec<u64>,
    grants: Vec<u64>,
    /// Addresses that were handed out anew.
    new: BTreeSet<EndpointAddress>,
}

fn request(seen: &Seen, ask: &Ask) -> Request {
    let address = |at: usize| {
        seen.addresses
            .get(at)
            .copied()
            .unwrap_or(EndpointAddress { slot: u32::try_from(at).unwrap(), generation: 1 })
    };
    let number = |of: &[u64], at: usize| of.get(at).copied().unwrap_or(at as u64);
    let endpoint = address(ask.a).slot;
    let name = NAMES[ask.b % NAMES.len()].to_owned();
    let access = if ask.c.is_multiple_of(2) { GrantAccess::Read } else { GrantAccess::Write };
    let place = u32::try_from(ask.c).unwrap();
    match ask.what {
        0..=2 => Request::Bind { id: 1, name, token: String::new(), peers: Vec::new() },
        3 => Request::Bind {
            id: 1,
            name,
            token: seen.tokens.get(ask.a).cloned().unwrap_or_default(),
            peers: seen.addresses.clone(),
        },
        4 => Request::Unbind { id: 1, endpoint },
        5 | 6 => Request::Introduce { id: 1, endpoint, to: Whom::Name(name), wait_ms: 0 },
        7 => Request::Introduce { id: 1, endpoint, to: Whom::Address(address(ask.b)), wait_ms: 0 },
        8 => Request::Buffer {
            id: 1,
            endpoint,
            bytes: ask.c * 20_000,
            replaces: number(&seen.buffers, ask.b) * (ask.c % 2),
        },
        9 => Request::Free { id: 1, endpoint, buffer: number(&seen.buffers, ask.b) },
        10 => Request::Grant {
            id: 1,
            endpoint,
            buffer: number(&seen.buffers, ask.b),
            to: address(ask.c as usize),
            access,
            place: 2 + place,
            grant: 0,
        },
        11 => Request::Grant {
            id: 1,
            endpoint,
            buffer: number(&seen.buffers, ask.b),
            to: address(ask.c as usize),
            access,
            place: 9 + place,
            grant: number(&seen.grants, ask.b),
        },
        12 => Request::Revoke { id: 1, endpoint, grant: number(&seen.grants, ask.b) },
        _ => Request::Borrow { id: 1, endpoint, grant: number(&seen.grants, ask.b) },
    }
}

fn hear(seen: &mut Seen, request: &Request, reply: &Reply) {
    match reply {
        Reply::Bound { address, token, .. } => {
            if matches!(request, Request::Bind { token, .. } if token.is_empty()) {
                assert!(seen.new.insert(*address), "{address:?} was handed out before");
            }
            seen.addresses.push(*address);
            seen.tokens.push(token.clone());
        }
        Reply::Buffer { buffer, .. } => seen.buffers.push(*buffer),
        Reply::Granted { grant, .. } => seen.grants.push(*grant),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn what_must_be_true_is_true(lives in prop::collection::vec(asks(), 1..4)) {
        let kept = Kept::default();
        let mut seen = Seen::default();
        for asks in lives {
            let broker = shop_with(FILE, no_channel, kept.clone());
            let mut members: Vec<_> = DOMAINS.iter().map(|domain| program(&broker, domain)).collect();
            for (number, ask) in asks.iter().enumerate() {
                if ask.what == 3 && ask.c == 5 {
                    broker.set_topology("shop", file(number));
                } else if ask.what == 4 && ask.c == 5 {
                    broker.leave(members[ask.member].0);
                    members[ask.member] = program(&broker, DOMAINS[ask.member]);
                }
                let request = request(&seen, ask);
                let (id, mail) = &mut members[ask.member];
                broker.request(*id, request.clone(), None, |_| Value::Null);
                while let Ok(packet) = mail.try_recv() {
                    hear(&mut seen, &request, &packet.reply);
                    broker.has_read(*id);
                }
                broker.lock().endpoints.check();
            }
            members.iter().for_each(|member| broker.leave(member.0));
            let inner = broker.lock();
            inner.endpoints.check();
            prop_assert_eq!(inner.ipc_use("shop"), 0);
        }
    }
}
