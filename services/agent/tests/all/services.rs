//! The frontend in the guest, and its successor.

use crate::node::{Node, boot};
use streams::Heard;
use wire::guest::{Boot, Event, Message, Purpose};

fn order() -> serde_json::Value {
    serde_json::to_value(frontend::LaunchOrder::new("shop", "edge")).expect("no test goes on without")
}

fn open(node: &mut Node) -> (u32, u32) {
    let entrances = node.open(Purpose::Entrances {});
    let stream = node.open(Purpose::Frontend { order: order(), entrances });
    (stream, entrances)
}

fn find(node: &mut Node, wanted: &Event) {
    node.find(|heard| (*heard == Heard::Other(Message::Event(wanted.clone()))).then_some(()));
}

/// Whether this machine lets the agent make a mount.
fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && frontend::open_device().is_ok();
    if !can {
        println!("skipped: a mount of the frontend's needs root and /dev/fuse");
    }
    can
}

#[test]
fn the_command_waits_for_the_frontend_and_a_dead_one_has_a_successor() {
    if !can_mount() {
        return;
    }
    let mut node = Node::booted(Boot { services: true, ..boot(&["sleep", "1000"]) });
    let (stream, entrances) = open(&mut node);
    assert_eq!(node.data(stream), b"{\"op\":\"services\",\"id\":1}");
    node.say(&Message::Ping([2; 8]));
    assert_eq!(node.next(), Message::Pong([2; 8]), "nothing has started yet");
    node.send(stream, b"{\"reply\":\"services\",\"id\":1,\"services\":[]}");
    find(&mut node, &Event::Frontend { up: true, message: None });
    node.opened(&Purpose::Output {});
    find(&mut node, &Event::Started {});

    node.send(stream, b"die");
    let why = node.find(|heard| match heard {
        Heard::Other(Message::Event(Event::Frontend { up: false, message })) => message.clone(),
        _ => None,
    });
    assert!(why.contains("signal 6"), "{why}");
    node.closed(stream);
    node.closed(entrances);

    let (stream, _) = open(&mut node);
    assert_eq!(node.data(stream), b"{\"op\":\"services\",\"id\":2}", "it is a successor");
    node.send(stream, b"{\"reply\":\"services\",\"id\":2,\"services\":[]}");
    find(&mut node, &Event::Frontend { up: true, message: None });

    // One that is there makes way.
    let (again, _) = open(&mut node);
    node.closed(stream);
    assert_eq!(node.data(again), b"{\"op\":\"services\",\"id\":2}");
}

#[test]
fn a_frontend_without_its_entrances_breaks_a_rule() {
    let mut node = Node::booted(Boot { services: true, ..boot(&[]) });
    node.open(Purpose::Frontend { order: order(), entrances: 1 });
    assert!(node.last_words().1.contains("without its entrances"));
}
