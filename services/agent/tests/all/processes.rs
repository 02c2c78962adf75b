//! The command and further processes.

use crate::node::{Node, boot};
use streams::Heard;
use wire::guest::{
    Ending, Event, ExecEnd, ExecOptions, Exited, Message, Purpose, STREAM_WINDOW_BYTES, Shutdown, exec,
    output,
};

fn exited(ending: Ending) -> Message {
    Message::Event(Event::Exited(Exited { ending, out_of_memory: false }))
}

fn sh(text: &str) -> ExecOptions {
    ExecOptions { command: vec!["sh".into(), "-c".into(), text.into()], ..ExecOptions::default() }
}

/// The bytes that a process wrote to each of its outputs, and how it ended.
fn outcome(node: &mut Node, stream: u32) -> (Vec<u8>, Vec<u8>, ExecEnd) {
    let (mut out, mut error) = (Vec::new(), Vec::new());
    loop {
        let message = node.data(stream);
        match message.split_first().expect("a tag") {
            (&exec::STDOUT, bytes) => out.extend_from_slice(bytes),
            (&exec::STDERR, bytes) => error.extend_from_slice(bytes),
            (&exec::ENDED, bytes) => {
                let end = serde_json::from_slice(bytes).expect("an end");
                node.closed(stream);
                return (out, error, end);
            }
            (tag, _) => panic!("a message of tag {tag}"),
        }
    }
}

fn code(code: i32) -> ExecEnd {
    ExecEnd::Ended(Ending::Code(code))
}

#[test]
fn the_commands_output_and_code_come_out_and_then_the_agent_ends() {
    let mut node = Node::booted(boot(&["sh", "-c", "echo out $COLOUR; echo err >&2; exit 7"]));
    let stream = node.opened(&Purpose::Output {});
    let (mut out, mut error) = (Vec::new(), Vec::new());
    let end = loop {
        match node.heard() {
            Heard::Data { bytes, .. } => match bytes.split_first().expect("a tag") {
                (&output::STDOUT, bytes) => out.extend_from_slice(bytes),
                (&output::STDERR, bytes) => error.extend_from_slice(bytes),
                (tag, _) => panic!("a message of tag {tag}"),
            },
            Heard::Other(Message::Event(Event::Started {})) => {}
            Heard::Closed { stream: of, .. } => assert_eq!(of, stream),
            Heard::Other(message) => break message,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((&out[..], &error[..]), (&b"out blue\n"[..], &b"err\n"[..]));
    assert_eq!(end, exited(Ending::Code(7)));
    assert!(node.ended().success());
}

/// The answer comes while the agent leaves, in some of these rounds.
#[test]
fn the_nodes_answer_to_the_end_of_the_commands_output_is_no_broken_rule() {
    for _ in 0..20 {
        let mut node = Node::booted(boot(&["sh", "-c", "echo out"]));
        let stream = node.opened(&Purpose::Output {});
        node.find(|heard| matches!(heard, Heard::Closed { stream: of, .. } if *of == stream).then_some(()));
        node.answer_close(stream);
        let (status, said) = node.last_words();
        assert!(status.success(), "{said}");
    }
}

#[test]
fn a_command_that_can_not_be_executed_is_a_guest_that_failed() {
    let mut node = Node::booted(boot(&["/no/such/program"]));
    let why = node.find(|heard| match heard {
        Heard::Other(Message::Event(Event::Failed { message })) => Some(message.clone()),
        Heard::Other(Message::Event(event)) => panic!("{event:?}"),
        _ => None,
    });
    assert!(why.contains("/no/such/program"), "{why}");
    assert!(node.ended().success());
}

#[test]
fn a_shutdown_sends_the_signal_and_waits() {
    let mut node = Node::booted(boot(&[
        "sh",
        "-c",
        "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done",
    ]));
    let stream = node.opened(&Purpose::Output {});
    assert_eq!(node.data(stream), b"\x01up\n");
    node.say(&Message::Shutdown(Shutdown { signal: 15 }));
    assert_eq!(node.data(stream), b"\x01bye\n");
    node.find(|heard| (*heard == Heard::Other(exited(Ending::Code(3)))).then_some(()));
    assert!(node.ended().success());
}

#[test]
fn a_command_that_a_signal_ends_says_which() {
    let mut node = Node::booted(boot(&["sh", "-c", "kill -9 $$"]));
    node.find(|heard| (*heard == Heard::Other(exited(Ending::Signal(9)))).then_some(()));
}

#[test]
fn further_processes_have_streams_codes_users_and_the_domains_environment() {
    let mut node = Node::booted(boot(&[]));
    let stream = node.exec(sh("echo $COLOUR $PATH; echo err >&2; exit 5"));
    let (out, error, end) = outcome(&mut node, stream);
    let out = String::from_utf8(out).unwrap();
    assert!(out.starts_with("blue /usr/local/sbin:"), "{out}");
    assert_eq!((&error[..], end), (&b"err\n"[..], code(5)));

    let options =
        ExecOptions { user: Some("7:8".into()), workdir: Some("/usr".into()), ..sh("id -u; id -g; pwd") };
    let stream = node.exec(options);
    assert_eq!(outcome(&mut node, stream), (b"7\n8\n/usr\n".to_vec(), vec![], code(0)));

    let stream = node.exec(sh("ulimit -Sn; cat /proc/self/oom_score_adj"));
    assert_eq!(outcome(&mut node, stream).0, b"1024\n0\n");

    let stream = node.exec(sh("kill -15 $$"));
    assert_eq!(outcome(&mut node, stream).2, ExecEnd::Ended(Ending::Signal(15)));
}

#[test]
fn what_can_not_be_executed_has_the_codes_of_a_shell() {
    let mut node = Node::booted(boot(&[]));
    let passwd = "/etc/passwd";
    for (command, wanted) in [("/no/such/program", 127), (passwd, 126), ("no-such-program", 127)] {
        let stream = node.exec(ExecOptions { command: vec![command.into()], ..ExecOptions::default() });
        let ExecEnd::Failed { error, code } = outcome(&mut node, stream).2 else { panic!("{command} ran") };
        assert_eq!(code, wanted, "{error}");
        assert!(error.contains(command), "{error}");
    }
    for options in
        [ExecOptions { user: Some("nobody-of-that-name".into()), ..sh("true") }, ExecOptions::default()]
    {
        let stream = node.exec(options);
        assert!(matches!(outcome(&mut node, stream).2, ExecEnd::Failed { code: 125, .. }));
    }
}

#[test]
fn input_of_any_length_comes_back_through_a_cat() {
    let mut node = Node::booted(boot(&[]));
    let stream = node.exec(ExecOptions { interactive: true, ..sh("cat") });
    let all: Vec<u8> = (0..3 * STREAM_WINDOW_BYTES).map(|at| (at % 251) as u8).collect();
    let mut back = Vec::new();
    for piece in all.chunks(30_000) {
        let message = [&[exec::STDIN], piece].concat();
        while node.room(stream).is_some_and(|room| room < message.len()) {
            back.extend_from_slice(&node.data(stream)[1..]);
        }
        node.send(stream, &message);
    }
    while back.len() < all.len() {
        back.extend_from_slice(&node.data(stream)[1..]);
    }
    assert!(back == all);
    node.send(stream, &[exec::STDIN]);
    assert_eq!(outcome(&mut node, stream), (vec![], vec![], code(0)));
}

#[test]
fn who_does_not_read_stops_that_process_and_no_other() {
    let mut node = Node::booted(boot(&[]));
    let loud = node.exec(sh("while :; do echo much; done"));
    // Nothing of it is consumed, so its window is used up in the end.
    let mut taken = 0;
    while taken + 32 * 1024 < STREAM_WINDOW_BYTES {
        taken += node.find(|heard| match heard {
            Heard::Data { stream, bytes, .. } if *stream == loud => Some(bytes.len() + 12),
            _ => None,
        });
    }
    let stream = node.exec(sh("echo quiet"));
    assert_eq!(outcome(&mut node, stream), (b"quiet\n".to_vec(), vec![], code(0)));
    node.say(&Message::Ping([1; 8]));
    node.find(|heard| (*heard == Heard::Other(Message::Pong([1; 8]))).then_some(()));
    // The end of the stream is the end of the process.
    node.close(loud);
    node.closed(loud);
}

#[test]
fn a_process_is_signalled_and_dies_with_its_stream() {
    let mut node = Node::booted(boot(&[]));
    let stream = node.exec(sh("trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done"));
    assert_eq!(node.data(stream), b"\x01up\n");
    node.send(stream, &[exec::SIGNAL, 10]);
    assert_eq!(outcome(&mut node, stream).2, code(9));

    let stream = node.exec(sh("echo $$; exec sleep 1000"));
    let line = node.data(stream)[1..].to_vec();
    let pid: u32 = String::from_utf8(line).unwrap().trim().parse().unwrap();
    let handle = sys::process::pidfd_open(pid).unwrap();
    node.close(stream);
    let mut set = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut set, Some(&patience)), Ok(1), "it lives on");
}

#[test]
fn a_terminal_has_a_size_an_end_of_input_and_one_output() {
    let mut node = Node::booted(boot(&[]));
    let options =
        ExecOptions { tty: true, interactive: true, ..sh("tty; read line; stty size; cat; echo ended >&2") };
    let stream = node.exec(options);
    let mut out = Vec::new();
    while !out.ends_with(b"\n") {
        out.extend_from_slice(&node.data(stream)[1..]);
    }
    assert!(out.starts_with(b"/dev/pts/"), "{out:?}");
    node.send(stream, &[exec::SIZE, 100, 0, 40, 0]);
    node.send(stream, b"\x00go\n");
    node.send(stream, b"\x00and back\n");
    node.send(stream, &[exec::STDIN]);
    let (out, error, end) = outcome(&mut node, stream);
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.contains("40 100\r\n") && out.contains("and back\r\n") && out.contains("ended\r\n"),
        "{out:?}"
    );
    assert_eq!((error, end), (vec![], code(0)));
}

#[test]
fn orphans_are_reaped_and_end_nothing() {
    let mut node = Node::booted(boot(&[]));
    let stream = node.exec(sh("(sleep 0.1 &) ; echo done"));
    assert_eq!(outcome(&mut node, stream), (b"done\n".to_vec(), vec![], code(0)));
    let stream = node.exec(sh("sleep 0.3; ps -o stat= --ppid $PPID | grep -c Z"));
    assert_eq!(outcome(&mut node, stream).0, b"0\n");
}
