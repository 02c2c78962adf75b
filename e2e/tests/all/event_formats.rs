//! Filters over events that are no JSON: CBOR, and fields at declared places.

use crate::events::{Program, await_subscribers, channel, pid_of, topology};
use e2e::{Node, node, wait};

const CHANNELS: &str = "channels = { boxed = { format = \"cbor\" }, \
                        raw = { format = \"layout temperature:f32@0 zone:text[8]@4\", subscribers = { attic = { filter = 'zone == \"b\"' } } } }";

/// Reads two events of a channel that pass a filter.
fn subscriber(node: &Node, domain: &str, channel: &str, filter: &str) -> Program {
    let mut program = Program::python(
        node,
        domain,
        &format!(
            r#"
import os
sub = os.open("/srv/events/{channel}/sub", os.O_RDWR)
os.write(sub, b'{filter}\n')
print("ready")
for n in range(2): print(os.read(sub, 65536).hex())
"#
        ),
    );
    assert_eq!(program.line(), "ready");
    program
}

#[test]
fn filters_read_cbor_and_declared_layouts_whatever_is_published() {
    let Some(node) = Node::start() else { return };
    // What does not fit the format is refused before anything is touched.
    for (from, to, why) in [
        ("text[8]@4", "text[8]@70000", "ends behind the longest event"),
        ("zone == \"b\"", "zoo == \"b\"", "no field `zoo`: it has temperature, zone"),
    ] {
        let run = node.up(&topology(&CHANNELS.replace(from, to)));
        assert!(run.code != 0 && run.err.contains(why), "{to}: {run:?}");
    }
    node.up_ok(&topology(CHANNELS));
    wait::until("the service is up", || node.shell("panel", "cat /srv/events/raw/stats").code == 0);

    let boxed = subscriber(&node, "panel", "boxed", "filter n > 2 && zone.name == \"b\"");
    let hot = subscriber(&node, "panel", "raw", "filter temperature > 30");
    let of_b = subscriber(&node, "attic", "raw", "start");
    await_subscribers(&node, "boxed", 1);
    await_subscribers(&node, "raw", 2);
    let stats = node.shell(
        "panel",
        "exec 3<>/srv/events/raw/sub; echo 'filter pressure > 3' >&3; cat /srv/events/raw/stats",
    );
    assert!(stats.out.contains("no field `pressure`: it has temperature, zone"), "{stats:?}");
    let published = Program::python(
        &node,
        "sensor",
        r#"
import os, struct
boxed = os.open("/srv/events/boxed/pub", os.O_WRONLY)
def event(n, zone): return bytes([0xa2, 0x61, 0x6e, n, 0x64]) + b"zone" + bytes([0xbf, 0x64]) + b"name" + bytes([0x61]) + zone + bytes([0xff])
bombs = [b"\x9f" * 60000, b"\xa1\x61n" * 20000, b"\xc1" * 60000, b"\xa2\x61n\x05\x64zone\xbb" + b"\xff" * 8, b"", b'{"n": 5}', bytes(64512)]
for bomb in bombs + [event(3, b"b"), event(2, b"b"), event(4, b"a")] + bombs + [event(9, b"b")]:
    if bomb: os.write(boxed, bomb)
raw = os.open("/srv/events/raw/pub", os.O_WRONLY)
for temperature, zone in [(31, b"a"), (29, b"b"), (-1, b"a"), (float("nan"), b"\xff\xfe"), (31.5, b"b")]:
    os.write(raw, struct.pack("<f8s", temperature, zone))
    os.write(raw, struct.pack("<f", 30))
print("published")
"#,
    );
    assert_eq!(published.end(), ["published"]);
    let hex = |n: u8| format!("a2616e{n:02x}647a6f6e65bf646e616d656162ff");
    assert_eq!(boxed.end(), [hex(3), hex(9)]);
    let raw = |temperature: f32, zone: u8| {
        let bytes = [&temperature.to_le_bytes()[..], &[zone, 0, 0, 0, 0, 0, 0, 0]].concat();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!(hot.end(), [raw(31.0, b'a'), raw(31.5, b'b')]);
    assert_eq!(of_b.end(), [raw(29.0, b'b'), raw(31.5, b'b')]);
    assert_eq!(channel(&node, "raw")["unreadable"], 5, "five were too short for the layout");

    // Whoever makes a channel says its format; a successor has it.
    node.shell_ok("sensor", "mkdir /srv/events/mine; echo 'format layout n:u16be@0' > /srv/events/mine/ctl");
    let refused = node.shell("sensor", "echo 'format layout n:u9@0' > /srv/events/mine/ctl");
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(node.shell_ok("sensor", "cat /srv/events/mine/stats").contains("`u9` is no type"));
    node::kill(pid_of(&node, "bus", "pid"));
    node.shell_ok("sensor", "printf '\\001\\000' > /srv/events/mine/pub");
    assert!(
        node.shell_ok("sensor", "cat /srv/events/mine/ctl").contains("format layout n:u16be@0\n"),
        "the format outlives the service"
    );
    let old = Program::shell(
        &node,
        "panel",
        "exec 3<>/srv/events/mine/sub; printf 'replay all\\nfilter n == 256\\n' >&3; head -c 2 <&3 | od -An -tx1",
    );
    assert_eq!(old.end(), [" 01 00"]);
}
