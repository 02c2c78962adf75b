//! Memory that a domain has with a service: who is given it, and who is not.

use super::programs::{FILE, offer};
use super::*;

/// A broker whose domain `web` has a memory with the service; nobody else has one.
fn lab() -> Broker {
    let broker = Broker::new(no_channel);
    broker.set_topology("shop", Some(topology(FILE)));
    let memory = |name: &str| sys::memfd::sealed(name, 4096).unwrap();
    let of = BTreeMap::from([("thermometer".to_owned(), memory("memory"))]);
    // No FUSE session, so the kernel registers nothing there.
    broker.has_memories("shop", "web", Memories::new(memory("fuse"), of));
    broker
}

fn back(service: &str) -> Request {
    Request::MapMemory { id: 9, service: service.into() }
}

/// Connects a consumer; the server is told of it with so many descriptors.
fn attached(
    broker: &Broker,
    server: &mut (MemberId, Mail),
    role: Role,
    entrance: &str,
) -> (bool, bool, usize) {
    let mut member = join(broker, "web", role, false);
    let reply = ask(broker, &mut member, connect("thermometer", entrance));
    let Reply::Connected { memory, .. } = reply else { panic!("{reply:?}") };
    let told = server.1.try_recv().expect("the server is told");
    let Reply::Event(Event::Attach { memory: attached, .. }) = told.reply else { panic!("{told:?}") };
    (memory, attached, told.descriptors.len())
}

#[test]
fn the_memory_goes_to_the_server_with_the_frontends_channel_and_with_no_other() {
    let broker = lab();
    let mut gauge = join(&broker, "gauge", Role::Program, false);
    ask(&broker, &mut gauge, offer());
    assert_eq!(attached(&broker, &mut gauge, Role::Frontend, "device"), (true, true, 1));
    assert_eq!(attached(&broker, &mut gauge, Role::Program, "api"), (false, false, 0));
    broker.forget_memories("shop", "web");
    assert_eq!(attached(&broker, &mut gauge, Role::Frontend, "device"), (false, false, 0));
}

#[test]
fn only_a_frontend_has_memory_put_behind_its_files_and_only_its_own_domains() {
    let broker = lab();
    refused(&ask(&broker, &mut join(&broker, "web", Role::Program, false), back("thermometer")), Errno::PERM);
    let mut frontend = join(&broker, "web", Role::Frontend, false);
    refused(&ask(&broker, &mut frontend, back("other")), Errno::NXIO);
    refused(
        &ask(&broker, &mut join(&broker, "other", Role::Frontend, false), back("thermometer")),
        Errno::NXIO,
    );
    // The kernel's own word, with what can be done about it.
    let reply = ask(&broker, &mut frontend, back("thermometer"));
    refused(&reply, Errno::NOTTY);
    let Reply::Refused { message, .. } = reply else { return };
    assert!(message.contains("Linux 6.9") && message.contains("read"), "{message}");
}

#[test]
fn a_frontend_that_asks_again_and_again_is_given_one_number() {
    let broker = lab();
    let mut frontend = join(&broker, "web", Role::Frontend, false);
    let of_web = ("shop".to_owned(), "web".to_owned());
    broker.lock().memories.get_mut(&of_web).unwrap().registered.insert("thermometer".into(), 7);
    for _ in 0..3 {
        assert_eq!(ask(&broker, &mut frontend, back("thermometer")), Reply::Backed { id: 9, backing: 7 });
    }
}
