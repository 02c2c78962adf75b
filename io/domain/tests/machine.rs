//! A domain of kind `vm`, with a shell in the place of the machine process and this test in the
//! place of its guest.

mod ground;

use domain::{DomainSpec, Ending, ExecOptions, Kind, Machine, Running};
use ground::{Ground, ground};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv,
    send, socket_with,
};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Output, Stdio};
use std::time::Duration;
use wire::guest::{ExecOptions as Asked, MAX_PAYLOAD_BYTES, exec};

fn spec(ground: &Ground, script: &str) -> DomainSpec {
    DomainSpec {
        kind: Kind::Vm,
        machine: Some(Machine { order: serde_json::json!({ "cpus": 3 }), kvm: true }),
        ..ground.shell("d", script)
    }
}

#[test]
fn a_machine_finds_its_order_and_says_how_it_ended() {
    let Some(ground) = ground() else { return };
    let script = r#"grep -o '"cpus": 3' /run/machine/order.json; ls /run/machine; touch /usr/x || echo read-only
        [ -e /dev/kvm ] && : < /dev/kvm && echo opened kvm
        grep CapEff /proc/self/status
        echo '{"outcome":"panicked","message":"Kernel panic","out_of_memory":true}' > /run/machine/outcome.json; exit 125"#;
    let exit = ground.run(&spec(&ground, script));
    let output = ground.output("d");
    // What is said to the one stream and to the other is in the order in which somebody read them.
    assert!(output.contains("\"cpus\": 3\n") && output.contains("order.json\n"), "{output}");
    assert!(output.contains("read-only\n") && output.contains("CapEff:\t0000000000000000"), "{output}");
    assert_eq!(output.contains("opened kvm"), std::path::Path::new("/dev/kvm").exists(), "{output}");
    assert_eq!((exit.ending, exit.out_of_memory), (Ending::Code(125), true));
    let outcome = exit.outcome.expect("an outcome");
    assert_eq!((outcome.outcome.as_str(), outcome.message.as_str()), ("panicked", "Kernel panic"));
    // The next incarnation knows nothing of it.
    let exit = ground.run(&spec(&ground, "exit 3"));
    assert_eq!((exit.ending, exit.outcome), (Ending::Code(3), None));
}

#[test]
fn only_a_vm_has_a_machine_and_a_vm_has_one() {
    let Some(ground) = ground() else { return };
    let without = DomainSpec { machine: None, ..spec(&ground, "true") };
    let container = DomainSpec { kind: Kind::Container, ..spec(&ground, "true") };
    for wrong in [without, container] {
        let refusal = domain::create(&ground.layout, &wrong, &[]).expect_err("refused").to_string();
        assert!(refusal.contains("machine"), "{refusal}");
    }
}

/// A machine that runs, and the socket at which this test takes what `exec` asks.
struct Stage {
    ground: Ground,
    running: Running,
    listener: OwnedFd,
}

fn stage() -> Option<Stage> {
    let ground = ground()?;
    let running = domain::create(&ground.layout, &spec(&ground, "echo up; sleep 1000"), &[]).expect("create");
    let running = running.start().expect("start");
    ground.wait_for_line("d", "up");
    let at = ground.layout.domain("dc", "d").expect("paths").machine().join("machine.sock");
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("socket");
    bind(&listener, &SocketAddrUnix::new(at).expect("address")).expect("bind");
    listen(&listener, 1).expect("listen");
    Some(Stage { ground, running, listener })
}

impl Stage {
    fn exec(&self, options: &ExecOptions) -> (Child, OwnedFd, Asked) {
        let mut command = domain::exec_command(&self.ground.layout, "dc", "d", options).expect("exec");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if options.interactive {
            command.stdin(Stdio::piped());
        }
        let child = command.spawn().expect("run");
        let socket = accept(&self.listener).expect("accept");
        let asked = serde_json::from_slice(&hear(&socket)).expect("what to run");
        (child, socket, asked)
    }
}

fn hear(socket: &OwnedFd) -> Vec<u8> {
    let mut message = vec![0; MAX_PAYLOAD_BYTES];
    let (length, _) = recv(socket, message.as_mut_slice(), RecvFlags::empty()).expect("hear");
    message.truncate(length);
    message
}

fn say(socket: &OwnedFd, kind: u8, rest: &[u8]) {
    let message: Vec<u8> = std::iter::once(kind).chain(rest.iter().copied()).collect();
    send(socket, &message, SendFlags::NOSIGNAL).expect("say");
}

fn options(command: &[&str], interactive: bool) -> ExecOptions {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    ExecOptions { command, interactive, ..ExecOptions::default() }
}

fn end(child: Child) -> Output {
    child.wait_with_output().expect("wait")
}

#[test]
fn a_command_in_a_guest_has_its_streams_and_its_exit_code() {
    let Some(stage) = stage() else { return };
    let mut wanted = options(&["cat", "-n"], true);
    wanted.user = Some("nobody".into());
    wanted.environment = vec![("A".into(), "b".into())];
    let (mut child, socket, asked) = stage.exec(&wanted);
    assert_eq!((asked.command.len(), asked.user.as_deref(), asked.interactive), (2, Some("nobody"), true));
    assert_eq!(asked.environment, [("A".to_owned(), "b".to_owned())]);
    let mut input = child.stdin.take().expect("input");
    input.write_all(b"line").expect("write");
    assert_eq!(hear(&socket), [&[exec::STDIN][..], b"line"].concat());
    drop(input);
    assert_eq!(hear(&socket), [exec::STDIN], "the end of the input");
    say(&socket, exec::STDERR, b"oh");
    let long = vec![b'x'; 60_000];
    say(&socket, exec::STDOUT, &long);
    say(&socket, exec::ENDED, br#"{"code":42}"#);
    let output = end(child);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(42), &b"oh"[..]));
    assert_eq!(output.stdout, long, "everything is written before the end");
    stage.running.stop(Some(Duration::ZERO)).expect("stop");
}

#[test]
fn what_never_ran_and_what_a_signal_ended_are_told_apart() {
    let Some(stage) = stage() else { return };
    let (child, socket, asked) = stage.exec(&options(&["nonsense"], false));
    assert!(!asked.interactive);
    say(&socket, exec::ENDED, br#"{"error":"nonsense: not\u001b found","code":127}"#);
    let output = end(child);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(127) && said.contains("nonsense: not  found"), "{said}");
    let (child, socket, _) = stage.exec(&options(&["sleep"], false));
    say(&socket, exec::ENDED, br#"{"signal":9}"#);
    assert_eq!(end(child).status.code(), Some(137));
    let (child, socket, _) = stage.exec(&options(&["sleep"], false));
    drop(socket);
    let output = end(child);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(125) && said.contains("has ended"), "{said}");
    stage.running.stop(Some(Duration::ZERO)).expect("stop");
}

#[test]
fn a_signal_goes_to_the_command_and_a_reader_that_is_gone_as_well() {
    let Some(stage) = stage() else { return };
    let (mut child, socket, _) = stage.exec(&options(&["sleep"], false));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .expect("signal");
    assert_eq!(hear(&socket), [exec::SIGNAL, 2]);
    drop(child.stdout.take());
    say(&socket, exec::STDOUT, b"to nobody");
    assert_eq!(hear(&socket), [exec::SIGNAL, 13]);
    say(&socket, exec::ENDED, br#"{"signal":13}"#);
    let status = end(child).status;
    assert_eq!((status.code(), status.signal()), (Some(141), None));
    stage.running.stop(Some(Duration::ZERO)).expect("stop");
}

#[test]
fn a_machine_that_does_not_listen_yet_is_said_to_be_so() {
    let Some(ground) = ground() else { return };
    let running = domain::create(&ground.layout, &spec(&ground, "echo up; sleep 1000"), &[]).expect("create");
    let running = running.start().expect("start");
    ground.wait_for_line("d", "up");
    let mut command =
        domain::exec_command(&ground.layout, "dc", "d", &options(&["true"], false)).expect("exec");
    let output = command.output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(125) && said.contains("still starting"), "{said}");
    running.stop(Some(Duration::ZERO)).expect("stop");
}
