//! How a machine ends, for each way in which QEMU or a guest can misbehave, and what goes through
//! it meanwhile.

use crate::harness::{Ended, Place, order};
use machine::{Accel, Patience, Word};
use rustix::process::Signal;

/// Enough for a fake that answers at once, on a busy machine.
const SOON: Patience = Patience { pong_ms: 30_000, ping_every_ms: 200, qemu_ms: 30_000, off_ms: 30_000 };

fn play_out(part: &str, patience: Patience) -> Ended {
    let place = Place::new();
    let order = order(&place.fake(part), &place.path("kernel"));
    place.start(&order, patience).wait()
}

fn told(ended: &Ended) -> (Word, i32) {
    (ended.word(), ended.code)
}

#[test]
fn a_qemu_that_is_not_there_is_told_so() {
    let place = Place::new();
    let order = order(&place.path("no-qemu"), &place.path("kernel"));
    let ended = place.start(&order, SOON).wait();
    assert_eq!(told(&ended), (Word::NoQemu, 125));
    assert!(ended.message().contains("no-qemu: No such file"), "{ended:?}");
    assert!(ended.errors.contains("machine: no-qemu: can't start"), "{ended:?}");
}

#[test]
fn a_qemu_that_refuses_an_option_has_its_words_told() {
    let place = Place::new();
    let qemu = place.script("echo 'qemu: -device pvpanic-pci: no such device' >&2; exit 1");
    let ended = place.start(&order(&qemu, &place.path("kernel")), SOON).wait();
    assert_eq!(told(&ended), (Word::NoQemu, 125));
    assert_eq!(ended.message(), "exit status: 1: qemu: -device pvpanic-pci: no such device");
}

#[test]
fn a_qemu_that_is_too_old_is_told_so_whether_it_starts_or_not() {
    let place = Place::new();
    let qemu = place.script(
        "[ \"$1\" = --version ] && echo 'QEMU emulator version 5.2.0 (Debian 1:5.2)' && exit; exit 1",
    );
    let ended = place.start(&order(&qemu, &place.path("kernel")), SOON).wait();
    assert_eq!(told(&ended), (Word::NoQemu, 125));
    assert_eq!(ended.message(), "QEMU 5.2.0 is too old: 6.2 or later is needed");
    let ended = play_out("old", SOON);
    assert_eq!(
        (told(&ended), ended.message()),
        ((Word::NoQemu, 125), "QEMU 5.2.0 is too old: 6.2 or later is needed")
    );
}

#[test]
fn kvm_that_does_not_work_is_told_where_it_was_asked_for() {
    let place = Place::new();
    let qemu = place.script("echo 'Could not access KVM kernel module' >&2; exit 1");
    let mut order = order(&qemu, &place.path("kernel"));
    order.accel = Accel::Kvm;
    let ended = place.start(&order, SOON).wait();
    assert_eq!(told(&ended), (Word::NoKvm, 125));
    assert!(ended.message().contains("accel = \"auto\""), "{ended:?}");
}

#[test]
fn an_order_that_is_lost_or_wrong_is_told_so() {
    let place = Place::new();
    let ended = place.start_as_is(SOON).wait();
    assert_eq!(told(&ended), (Word::LostDaemonFiles, 125));
    assert!(ended.message().contains("order.json"), "{ended:?}");
    let mut no_kernel = order(&place.path("qemu"), &place.path("elsewhere"));
    let ended = place.start(&no_kernel, SOON).wait();
    assert!(ended.message().contains("elsewhere"), "{ended:?}");
    no_kernel.cpus = 0;
    let ended = place.start(&no_kernel, SOON).wait();
    assert!(told(&ended) == (Word::LostDaemonFiles, 125) && ended.message().contains("`cpus`"), "{ended:?}");
}

#[test]
fn a_qemu_that_dies_or_hangs_or_raves_is_told_apart() {
    let ended = play_out("dies", SOON);
    assert_eq!(told(&ended), (Word::QemuDied, 125));
    assert!(ended.message().starts_with("exit status: 7: "), "{ended:?}");
    assert!(ended.message().ends_with("something is terribly wrong"), "{ended:?}");
    let ended = play_out("killed", SOON);
    assert!(told(&ended) == (Word::QemuDied, 125) && ended.message().contains("signal: 9"), "{ended:?}");
    let hasty = Patience { qemu_ms: 500, ..SOON };
    for part in ["mute", "silent-monitor", "closes-its-monitor"] {
        assert_eq!(told(&play_out(part, hasty)), (Word::QemuHung, 125), "{part}");
    }
    let ended = play_out("nonsense", SOON);
    assert!(
        told(&ended) == (Word::QemuHung, 125) && ended.message().ends_with("no JSON: what?"),
        "{ended:?}"
    );
}

#[test]
fn a_guest_that_never_speaks_or_no_more_is_ended() {
    let place = Place::new();
    let mut order = order(&place.fake("says-nothing"), &place.path("kernel"));
    order.boot_ms = 300;
    let ended = place.start(&order, SOON).wait();
    assert_eq!(told(&ended), (Word::Silent, 125));
    assert!(ended.message().contains("within 300ms (`boot_timeout`)"), "{ended:?}");
    let ended = play_out("stops-answering", Patience { pong_ms: 300, ..SOON });
    assert_eq!(told(&ended), (Word::Hung, 125));
}

#[test]
fn a_guest_that_breaks_a_rule_is_ended_and_the_rule_told() {
    let ended = play_out("babbles", SOON);
    assert_eq!(told(&ended), (Word::BrokeProtocol, 125));
    assert!(ended.message().contains("a frame announces 4294967295 bytes"), "{ended:?}");
    let ended = play_out("releases-what-it-has-not", SOON);
    assert!(told(&ended) == (Word::BrokeProtocol, 125) && ended.message().contains("channel 5"), "{ended:?}");
}

#[test]
fn a_guest_that_resets_panics_or_fails_is_told_apart() {
    let ended = play_out("resets", SOON);
    assert_eq!((told(&ended), ended.message()), ((Word::Rebooted, 125), "the last line"));
    assert!(ended.errors.contains("console: [ 1.0] one\n"), "{ended:?}");
    let ended = play_out("panics", SOON);
    assert_eq!(told(&ended), (Word::Panicked, 125));
    assert_eq!(ended.message(), "Kernel panic - not syncing: Attempted to kill init!");
    let ended = play_out("fails", SOON);
    assert_eq!((told(&ended), ended.message()), ((Word::Failed, 125), "there is no user  [31mnobody"));
}

#[test]
fn a_command_ends_as_it_ends_and_its_output_is_ours() {
    let ended = play_out("exits", SOON);
    assert_eq!(told(&ended), (Word::Exited, 3));
    assert!(ended.output.contains("to the output\n") && !ended.output.contains("errors"), "{ended:?}");
    assert!(ended.errors.contains("to the errors\n") && !ended.errors.contains("to the output"), "{ended:?}");
    let ended = play_out("is-out-of-memory", SOON);
    assert!(
        told(&ended) == (Word::Exited, 137) && ended.outcome.as_ref().unwrap().out_of_memory,
        "{ended:?}"
    );
    let ended = play_out("does-not-switch-off", Patience { off_ms: 300, ..SOON });
    assert_eq!(told(&ended), (Word::Exited, 4));
}

#[test]
fn a_machine_that_is_asked_to_end_is_stopped_or_killed() {
    for (part, begun, shutdown_ms, expected) in [
        ("stops", "notes", 30_000, (Word::Stopped, 0)),
        ("does-not-stop", "notes", 300, (Word::Killed, 137)),
        ("mute", "machine.sock", 30_000, (Word::Stopped, 0)),
    ] {
        let place = Place::new();
        let mut order = order(&place.fake(part), &place.path("kernel"));
        order.shutdown_ms = shutdown_ms;
        let running = place.start(&order, SOON);
        place.wait_for(begun);
        running.signal(Signal::TERM);
        assert_eq!(told(&running.wait()), expected, "{part}");
    }
}

#[test]
fn a_machine_that_is_asked_twice_is_killed() {
    let place = Place::new();
    let running = place.start(&order(&place.fake("does-not-stop"), &place.path("kernel")), SOON);
    place.wait_for("notes");
    // Two that are told apart: the same one twice may be taken for one.
    running.signal(Signal::TERM);
    running.signal(Signal::INT);
    assert_eq!(told(&running.wait()), (Word::Killed, 137));
}
