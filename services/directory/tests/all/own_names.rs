//! Names of the sockets that a domain mounts.

use crate::stage::{Stage, settings};
use crate::upstream::{Upstream, a, asked_name, bytes, reply};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

#[test]
fn a_domains_own_names_are_answered_to_it_alone_and_asked_of_nobody() {
    // Whoever asks it hears the same address for every name.
    let upstream = Upstream::start(|query, _| {
        let mut message = reply(query);
        message.add_answer(a(asked_name(query), 30, 7));
        vec![bytes(&message)]
    });
    let own = BTreeMap::from([("cache.internal".to_owned(), Ipv4Addr::new(127, 64, 1, 2))]);
    let names = BTreeMap::from([("a".to_owned(), own)]);
    let stage = Stage::set(&wire::directory::Settings { names, ..settings(&[upstream.address]) });
    let mut link = stage.link("a");
    for name in ["cache.internal", "Cache.Internal."] {
        let answer = link.query(&format!("A {name}")).expect("an address");
        assert!(answer.to_ascii_lowercase().ends_with("cache.internal. 5 a 127.64.1.2\n"), "{answer}");
    }
    // It has no other addresses, and none is looked for.
    assert_eq!(link.query("AAAA cache.internal"), Err(Errno::NODATA));
    let pointer = "2.1.64.127.in-addr.arpa. 5 PTR cache.internal.\n";
    assert_eq!(link.query("127.64.1.2").as_deref(), Ok(pointer));
    // Neither below it, nor for another domain.
    for (domain, name) in [("a", "x.cache.internal"), ("b", "cache.internal")] {
        let answer = stage.link(domain).query(&format!("A {name}")).expect("the upstream's");
        assert!(answer.ends_with("192.0.2.7\n"), "{domain} {name}: {answer}");
    }
}
