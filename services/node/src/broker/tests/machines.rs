//! Machines: who is one, what it says, and what it is told.

use super::*;
use std::sync::Mutex;
use wire::control::GuestState;
use wire::guest::MAX_CHANNELS;

const FILE: &str = r#"
name = "shop"
[domain.edge]
kind = "vm"
[domain.web]
kind = "container"
command = ["true"]
[service.frames]
kind = "channel"
domain = "edge"
allow = [{ domains = ["web", "edge"], verbs = ["open"] }]
[service.sound]
kind = "channel"
domain = "web"
allow = [{ domains = ["edge", "web"], verbs = ["open"] }]
"#;

fn shop(make: MakeChannel) -> Broker {
    let broker = Broker::new(make);
    broker.set_topology("shop", Some(topology(FILE)));
    broker
}

fn machine(id: u64) -> Request {
    Request::Machine { id, accel: "tcg\u{1b}[2J".into(), qemu: "7.2.22".into() }
}

fn guest(state: GuestState, message: &str) -> Request {
    Request::Guest { state, message: message.into() }
}

/// Sends a request that gets no answer.
fn tell(broker: &Broker, member: &(MemberId, Mail), request: Request) {
    broker.request(member.0, request, None, |_| Value::Null);
}

#[test]
fn only_the_first_process_of_a_vm_is_its_machine_and_one_at_a_time() {
    let broker = shop(no_channel);
    let mut program = join(&broker, "edge", Role::Program, false);
    refused(&ask(&broker, &mut program, machine(1)), Errno::PERM);
    let mut web = join(&broker, "web", Role::Program, true);
    refused(&ask(&broker, &mut web, machine(1)), Errno::PERM);
    let mut frontend = join(&broker, "edge", Role::Frontend, true);
    refused(&ask(&broker, &mut frontend, machine(1)), Errno::PERM);
    assert_eq!(broker.machine("shop", "edge"), None);

    let mut first = join(&broker, "edge", Role::Program, true);
    assert_eq!(ask(&broker, &mut first, machine(4)), Reply::Machine { id: 4 });
    let known = broker.machine("shop", "edge").unwrap();
    assert_eq!((known.accel.as_str(), known.guest()), ("tcg [2J", "booting"));
    let mut second = join(&broker, "edge", Role::Program, true);
    refused(&ask(&broker, &mut second, machine(5)), Errno::BUSY);
    // Nor does it say anything of a guest that is not its own.
    refused(&ask(&broker, &mut second, guest(GuestState::Started, "")), Errno::PERM);
    broker.leave(first.0);
    assert_eq!(ask(&broker, &mut second, machine(6)), Reply::Machine { id: 6 });
}

#[test]
fn what_a_machine_says_of_its_guest_is_known_also_after_it_came_back() {
    let broker = shop(no_channel);
    let mut first = join(&broker, "edge", Role::Program, true);
    ask(&broker, &mut first, machine(1));
    tell(&broker, &first, guest(GuestState::Booting, ""));
    assert_eq!(broker.machine("shop", "edge").unwrap().guest(), "booting");
    tell(&broker, &first, guest(GuestState::Started, ""));
    tell(&broker, &first, guest(GuestState::FrontendDown, &format!("killed\n{}", "x".repeat(600))));
    assert!(first.1.try_recv().is_err(), "nothing of this is answered");
    let known = broker.machine("shop", "edge").unwrap();
    assert_eq!((known.guest(), known.frontend_ends), ("running", 1));
    assert!(known.message.starts_with("killed x") && known.message.len() == 512, "{}", known.message);
    broker.leave(first.0);
    let mut again = join(&broker, "edge", Role::Program, true);
    ask(&broker, &mut again, machine(2));
    let known = broker.machine("shop", "edge").unwrap();
    assert_eq!((known.guest(), known.frontend_ends), ("running", 1));
    broker.forget_machine("shop", "edge");
    assert_eq!(broker.machine("shop", "edge"), None, "the next incarnation has another one");
}

#[test]
fn a_frontend_is_ordered_from_the_machine_that_is_there() {
    let broker = shop(no_channel);
    let socket = || rustix::fs::memfd_create("socket", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let order = json!({ "dc": "shop" });
    let sockets = vec![socket(), socket()];
    assert!(!broker.order_frontend("shop", "edge", order.clone(), sockets), "there is no machine");
    let mut machine_of_edge = join(&broker, "edge", Role::Program, true);
    ask(&broker, &mut machine_of_edge, machine(1));
    assert!(broker.order_frontend("shop", "edge", order.clone(), vec![socket(), socket()]));
    let told = machine_of_edge.1.try_recv().unwrap();
    assert_eq!(told.reply, Reply::Event(Event::Frontend { order }));
    assert_eq!(told.descriptors.len(), 2);
}

#[test]
fn who_waits_for_a_machine_hears_of_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let broker = shop(no_channel);
        let waits = {
            let broker = broker.clone();
            tokio::spawn(async move {
                broker
                    .machine_where("shop", "edge", |machine| machine.is_some_and(|m| m.started.is_some()))
                    .await;
            })
        };
        let mut member = join(&broker, "edge", Role::Program, true);
        ask(&broker, &mut member, machine(1));
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        tell(&broker, &member, guest(GuestState::Started, ""));
        waits.await.unwrap();
    });
}

static GUESTS: Mutex<[bool; 2]> = Mutex::new([false; 2]);

fn noting(shape: Shape) -> io::Result<Ends> {
    *GUESTS.lock().unwrap() = shape.guests;
    no_channel(shape)
}

#[test]
fn ends_that_share_no_kernel_are_made_so() {
    let broker = shop(noting);
    let mut edge = join(&broker, "edge", Role::Program, false);
    let mut web = join(&broker, "web", Role::Program, false);
    for (offers, service) in [(&mut edge, "frames"), (&mut web, "sound")] {
        ask(
            &broker,
            offers,
            Request::Offer { id: 3, service: service.into(), stand_by: false, serving: false },
        );
    }
    for (domain, service, guests) in [
        ("web", "frames", [false, true]),
        ("edge", "frames", [true, true]),
        ("edge", "sound", [true, false]),
        ("web", "sound", [false, false]),
    ] {
        let mut opener = join(&broker, domain, Role::Program, false);
        let reply = ask(&broker, &mut opener, connect(service, "api"));
        assert!(matches!(reply, Reply::Connected { .. }), "{reply:?}");
        assert_eq!(*GUESTS.lock().unwrap(), guests, "{domain} opens {service}");
    }
}

#[test]
fn a_guest_has_room_for_so_many_ends_and_whoever_is_one_too_many_is_told() {
    let broker = shop(no_channel);
    let mut edge = join(&broker, "edge", Role::Program, false);
    let mut web = join(&broker, "web", Role::Program, false);
    for (offers, service) in [(&mut edge, "frames"), (&mut web, "sound")] {
        ask(
            &broker,
            offers,
            Request::Offer { id: 3, service: service.into(), stand_by: false, serving: false },
        );
    }
    let mut opener = join(&broker, "web", Role::Program, false);
    for _ in 0..MAX_CHANNELS {
        assert!(matches!(ask(&broker, &mut opener, connect("frames", "api")), Reply::Connected { .. }));
    }
    let full = ask(&broker, &mut opener, connect("frames", "api"));
    refused(&full, Errno::USERS);
    let Reply::Refused { message, .. } = &full else { panic!("{full:?}") };
    assert!(message.contains("virtual machine edge has 32 ends"), "{message}");
    // Its own programs have no room for what they open, nor is anybody else concerned.
    let mut inside = join(&broker, "edge", Role::Program, false);
    refused(&ask(&broker, &mut inside, connect("sound", "api")), Errno::MFILE);
    assert!(matches!(ask(&broker, &mut opener, connect("sound", "api")), Reply::Connected { .. }));
}
