//! The agent over a socket pair in place of its port: the node's side is played here, with the
//! streams that the machine process uses.

mod members;
mod node;
mod processes;
mod services;

use node::{Node, boot};
use wire::guest::{Ending, Event, Exited, Hello, Message, Shutdown, VERSION, kind};

#[test]
fn it_says_hello_first_and_answers_each_ping() {
    let mut node = Node::start();
    let Message::Hello(Hello { version, interrupts, .. }) = node.next() else { panic!("no hello") };
    assert_eq!((version, interrupts), (VERSION, false));
    node.say(&Message::Ping(*b"are you?"));
    assert_eq!(node.next(), Message::Pong(*b"are you?"));
}

#[test]
fn a_guest_without_a_command_starts_and_ends_when_told() {
    let mut node = Node::booted(boot(&[]));
    assert_eq!(node.next(), Message::Event(Event::Started {}));
    node.say(&Message::Shutdown(Shutdown { signal: 15 }));
    let exited = Exited { ending: Ending::Code(0), out_of_memory: false };
    assert_eq!(node.next(), Message::Event(Event::Exited(exited)));
    assert!(node.ended().success());
}

#[test]
fn nonsense_on_the_port_ends_the_agent_with_the_rule() {
    let frames: [(&[u8], &str); 6] = [
        (b"\xff\xff\xff\xff\x05\0\0\0\x02\0\0\0", "announces 4294967295 bytes"),
        (b"\0\0\0\0\x63\0\0\0\0\0\0\0", "of kind 99"),
        (b"\0\0\0\0\x05\0\0\0\x03\0\0\0", "stream 3, which is not open"),
        (b"\0\0\0\0\x09\0\0\0\x03\0\0\0", "what an agent says"),
        (b"\x02\0\0\0\x02\0\0\0\0\0\0\0{}", "not understood"),
        (b"\x15\0\0\0\x04\0\0\0\x01\0\0\0{\"purpose\":\"control\"}", "before what the guest is to be"),
    ];
    for (bytes, rule) in frames {
        let mut node = Node::start();
        node.write(bytes);
        let (status, said) = node.last_words();
        assert!(!status.success() && said.contains(rule), "{said} has no {rule}");
    }
}

#[test]
fn a_node_of_another_version_and_one_that_boots_twice_are_refused() {
    let mut node = Node::start();
    node.say(&Message::Boot(Box::new(wire::guest::Boot { version: 9, ..boot(&[]) })));
    assert!(node.last_words().1.contains("speaks version 9"));
    let mut node = Node::booted(boot(&[]));
    node.say(&Message::Boot(Box::new(boot(&[]))));
    assert!(node.last_words().1.contains("for a second time"));
}

#[test]
fn a_port_that_closes_ends_the_agent() {
    let node = Node::start();
    let (status, said) = node.hung_up();
    assert!(!status.success() && said.contains("closed its side"), "{said}");
}

#[test]
fn the_kinds_that_an_agent_may_hear_are_those_of_a_node() {
    for kind in [kind::HELLO, kind::EVENT, kind::PONG] {
        let mut node = Node::start();
        let payload: &[u8] = match kind {
            kind::PONG => b"12345678",
            kind::EVENT => b"{\"event\":\"started\"}",
            _ => b"{\"version\":1,\"program\":\"\",\"kernel\":\"\",\"interrupts\":true}",
        };
        let length = u32::try_from(payload.len()).unwrap();
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(payload);
        node.write(&bytes);
        assert!(!node.last_words().0.success());
    }
}
