//! A service of each behaviour, spoken to as a frontend does, introduced by a stand-in for the
//! daemon.

use serde_json::{Value, json};
use service::{
    Call, Control, Errno, Error, Folder, Handle, Later, Listing, Node, ROOT, Service, StreamOptions, ready,
};
use session::{Answers, Caller, ControlError, Incoming};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testing::FakeDaemon;
use wire::control::{Event, ServedService};
use wire::service::{Entry, Export, Kind, List, OpenInfo, RECORD_OVERHEAD_BYTES, Range, root_of};

/// Far longer than anything takes; who waits in vain fails the test.
const TIMEOUT: Duration = Duration::from_secs(30);

fn soon() -> Instant {
    Instant::now() + TIMEOUT
}

/// A running service, and one consumer of it.
struct Stage {
    _folder: TempDir,
    daemon: FakeDaemon,
    handle: Handle,
    server: JoinHandle<Result<(), Error>>,
    caller: Caller,
    answers: Answers,
    export: Export,
}

impl Stage {
    /// Serves what `build` declares, in a thread of its own, where its functions may be bound to.
    fn new(settings: Value, build: impl FnOnce() -> Service<u32> + Send + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let service = ServedService { name: "gauge".into(), kind: "program".into(), settings };
        let daemon = FakeDaemon::start(folder.path(), &["sensor", "hall"], vec![service]);
        daemon.allow("hall", &["read", "write"]);
        let control = Control::connect(&daemon.socket("sensor")).expect("connected");
        let (told, handles) = channel();
        let server = std::thread::spawn(move || {
            let service = build();
            told.send(service.handle()).expect("the test waits");
            service.run_at(control)
        });
        let handle = handles.recv().expect("a service");
        let mut control = Control::connect(&daemon.socket("hall")).expect("connected");
        let end = loop {
            match control.connect_service("gauge", "device", 0, soon()) {
                Ok((_, end)) => break end,
                Err(ControlError::Refused { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        let (caller, mut answers) = session::open(end).expect("a link");
        let Incoming::Hello(export) = answers.next(Some(soon())).expect("greeted") else {
            panic!("no greeting")
        };
        Self { _folder: folder, daemon, handle, server, caller, answers, export }
    }

    fn file(&self, name: &str) -> u32 {
        let found = self.export.files.iter().find(|file| file.name.as_deref() == Some(name));
        found.unwrap_or_else(|| panic!("no file {name}")).id
    }

    /// The answer to a tag; what comes before it is none of this call's business.
    fn answer(&mut self, tag: u64) -> Result<Vec<u8>, Errno> {
        loop {
            if let Incoming::Answer(answer) = self.answers.next(Some(soon())).expect("answered")
                && answer.tag == tag
            {
                return answer.result.map(<[u8]>::to_vec);
            }
        }
    }

    fn open(&mut self, session: u64, file: u32, flags: u32, capsule: &[u8]) -> Result<Vec<u8>, Errno> {
        let info =
            OpenInfo { uid: 7, pid: 9, flags, capsule: capsule.to_vec(), entrance: "device".into(), gid: 8 };
        let tag = self.caller.tag();
        self.caller.open((session, tag), file, &info, Some(soon())).expect("sent");
        self.answer(tag)
    }

    fn request(&mut self, session: u64, file: u32, line: &[u8]) -> Result<Vec<u8>, Errno> {
        let tag = self.caller.tag();
        self.caller.request((session, tag), file, line, false, Some(soon())).expect("sent");
        self.answer(tag)
    }

    fn ask(&mut self, kind: Kind, session: u64, file: u32, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let tag = self.caller.tag();
        self.caller.ask(kind, (session, tag), file, payload, Some(soon())).expect("sent");
        self.answer(tag)
    }

    fn ioctl(&mut self, session: u64, number: u32, data: &[u8]) -> Result<Vec<u8>, Errno> {
        let tag = self.caller.tag();
        self.caller.control((session, tag), number, data, Some(soon())).expect("sent");
        self.answer(tag)
    }

    fn credit(&self, session: u64, records: usize, bytes: usize) {
        let bytes = u32::try_from(records * (bytes + RECORD_OVERHEAD_BYTES)).expect("few");
        self.caller.credit(session, bytes, Some(soon())).expect("sent");
    }

    /// The next record, and the capsule after it.
    fn record(&mut self) -> (Vec<u8>, Vec<u8>) {
        match self.answers.next(Some(soon())).expect("a record") {
            Incoming::Record { record, capsule, .. } => (record.to_vec(), capsule.to_vec()),
            other => panic!("{other:?} is no record"),
        }
    }

    fn end(self) {
        self.handle.stop();
        self.server.join().expect("no panic").expect("ended as asked");
    }
}

fn gauge(build: impl FnOnce(&mut Service<u32>)) -> Service<u32> {
    let mut service = Service::new("gauge", 20).expect("a service");
    build(&mut service);
    service
}

fn number(line: &[u8]) -> Result<u32, Errno> {
    str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(Errno::INVAL)
}

#[test]
fn texts_controls_and_sessions_answer_with_bytes_or_an_errno() {
    let mut stage = Stage::new(json!({ "unit": "celsius" }), || {
        gauge(|service| {
            service.on_settings(|_, settings| {
                settings["unit"].is_string().then_some(()).ok_or("no `unit`".into())
            });
            service
                .text("reading", "read", |degrees, call| Ok(format!("{degrees} {}\n", call.caller().domain)));
            service.control("ctl", "write", |degrees, _, line| {
                *degrees = number(line)?;
                Ok(())
            });
            let convert = service.session("convert", "read", |_, call, line| {
                call.keep(line)?;
                Ok(format!("{}\n", number(line)? * 9 / 5 + 32))
            });
            convert
                .opened(|_, call| {
                    let who = call.caller().process.map(|process| process.uid);
                    if call.capsule() == b"bad" || who != Some(7) { Err(Errno::KEYEXPIRED) } else { Ok(()) }
                })
                .ioctl(|_, _, number, data| if number == 5 { Ok(data.to_vec()) } else { Err(Errno::NOTTY) });
        })
    });
    let (reading, ctl, convert) = (stage.file("reading"), stage.file("ctl"), stage.file("convert"));
    assert_eq!(stage.export.version, 1, "the oldest version that has all of it");
    assert_eq!(stage.request(0, reading, b""), Ok(b"20 hall\n".to_vec()));
    assert_eq!(stage.request(0, reading, b"line"), Err(Errno::INVAL));
    assert_eq!(stage.request(0, ctl, b"21"), Ok(Vec::new()));
    assert_eq!(stage.request(0, ctl, b"warm"), Err(Errno::INVAL));
    assert_eq!(stage.request(0, ctl, b""), Ok(Vec::new()), "a control that nobody reads is empty");
    assert_eq!(stage.request(0, reading, b""), Ok(b"21 hall\n".to_vec()));
    assert_eq!(stage.open(1, convert, 2, b"bad"), Err(Errno::KEYEXPIRED));
    assert_eq!(stage.open(1, convert, 2, b""), Ok(Vec::new()));
    assert_eq!(stage.request(1, convert, b"100"), Ok(b"212\n".to_vec()));
    assert_eq!(stage.ioctl(1, 5, b"data"), Ok(b"data".to_vec()));
    assert_eq!(stage.ioctl(1, 6, b"data"), Err(Errno::NOTTY));
    assert_eq!(stage.ask(Kind::ReadAt, 1, 0, &Range { offset: 0, bytes: 9 }.encode()), Err(Errno::BADF));
    assert_eq!(stage.ask(Kind::Lookup, 0, reading, b"name"), Err(Errno::NOTDIR));
    assert_eq!(stage.daemon.state()["services"]["gauge"]["state"]["sessions"], 1);
    stage.end();
}

#[test]
fn a_stream_is_read_within_its_credit_and_goes_on_after_what_was_had() {
    let mut stage = Stage::new(json!({}), || {
        gauge(|service| {
            let samples =
                service.stream("samples", "read", StreamOptions { history: 3, ..StreamOptions::default() });
            service.control("ctl", "write", move |_, _, line| samples.publish(line));
        })
    });
    let (samples, ctl) = (stage.file("samples"), stage.file("ctl"));
    assert_eq!(stage.request(0, ctl, b"before"), Ok(Vec::new()));
    assert_eq!(stage.open(1, samples, 0, b""), Ok(Vec::new()));
    stage.credit(1, 1, 3);
    for record in [b"one", b"two"] {
        stage.caller.request((0, stage.caller.tag()), ctl, record, false, Some(soon())).expect("sent");
    }
    let mut had = Vec::new();
    let mut answered = 0;
    while answered < 2 || had.is_empty() {
        match stage.answers.next(Some(soon())).expect("said") {
            Incoming::Record { record, capsule, .. } => had.push((record.to_vec(), capsule.to_vec())),
            Incoming::Answer(answer) => answered += usize::from(answer.result.is_ok()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(had.len(), 1, "no more than the credit is for");
    assert_eq!(had[0].0, b"one");
    // Another reader comes with what the first one had, and gets the same next record.
    assert_eq!(stage.open(2, samples, 0, &had[0].1), Ok(Vec::new()));
    stage.credit(2, 1, 3);
    assert_eq!(stage.record().0, b"two");
    assert_eq!(stage.open(3, samples, 0, b"short"), Err(Errno::INVAL));
    stage.caller.close(2, Some(soon())).expect("sent");
    // A reader that falls out of the history loses the oldest records, which are counted.
    for _ in 0..4 {
        assert_eq!(stage.request(0, ctl, b"new"), Ok(Vec::new()));
    }
    stage.credit(1, 1, 3);
    assert_eq!(stage.record().0, b"new");
    let state = stage.daemon.state();
    let streams = &state["services"]["gauge"]["state"]["streams"]["samples"];
    assert_eq!(
        (&streams["published"], &streams["dropped"], &streams["readers"]),
        (&json!(7), &json!(2), &json!(1))
    );
    stage.end();
}

#[test]
fn answers_come_later_from_other_threads_and_never_to_the_wrong_call() {
    let (ask, asked): (_, Receiver<Later>) = channel();
    let mut stage = Stage::new(json!({}), move || {
        gauge(|service| {
            let mut kept = None;
            service.control("again", "read", move |_, call, _| {
                if kept.is_none() {
                    let (reply, later) = call.later()?;
                    later.answer(Ok("once"));
                    kept = Some(reply);
                }
                kept.clone().ok_or(Errno::IO)
            });
            service.session("ask", "read", move |_, call, _| {
                let (reply, later) = call.later()?;
                ask.send(later).expect("the test waits");
                Ok(reply)
            });
        })
    });
    let file = stage.file("ask");
    let later = |stage: &Stage, tag| {
        stage.caller.request((0, tag), file, b"x", false, Some(soon())).expect("sent");
        asked.recv_timeout(TIMEOUT).expect("asked")
    };
    let (first, second) = (later(&stage, 1), later(&stage, 2));
    second.answer(Ok("second"));
    assert_eq!(stage.answer(2), Ok(b"second".to_vec()));
    // Nobody waits for the first one any more, and its tag is used again.
    stage.caller.cancel(1, Some(soon())).expect("sent");
    let again = later(&stage, 1);
    assert!(first.is_cancelled() && !again.is_cancelled());
    first.answer(Ok("too late"));
    again.answer(Ok("again"));
    assert_eq!(stage.answer(1), Ok(b"again".to_vec()));
    let control = stage.file("again");
    assert_eq!(stage.request(0, control, b"x"), Ok(b"once".to_vec()));
    assert_eq!(stage.request(0, control, b"x"), Err(Errno::IO), "a promise of another call");
    drop(later(&stage, 3));
    assert_eq!(stage.answer(3), Err(Errno::IO), "who forgets to answer has failed");
    stage.end();
}

/// One file of a thousand bytes, and a text.
struct Shelf;

impl Folder for Shelf {
    fn lookup(&mut self, call: &mut Call<'_>, folder: u32, name: &[u8]) -> Result<Node, Errno> {
        match (folder, name) {
            (ROOT, b"book") => self.stat(call, 1),
            (ROOT, b"title") => self.stat(call, 2),
            _ => Err(Errno::NOENT),
        }
    }
    fn list(&mut self, _: &mut Call<'_>, _: u32, after: u64, into: &mut Listing) -> Result<(), Errno> {
        let entries = [(1, &b"book"[..], Node::file(1, 1000)), (2, b"title", Node::text(2))];
        for (place, name, node) in entries.iter().filter(|(place, ..)| *place > after) {
            if !into.add(*place, name, node) {
                break;
            }
        }
        Ok(())
    }
    fn stat(&mut self, _: &mut Call<'_>, node: u32) -> Result<Node, Errno> {
        match node {
            ROOT => Ok(Node::folder(ROOT)),
            1 => Ok(Node::file(1, 1000)),
            2 => Ok(Node::text(2)),
            _ => Err(Errno::STALE),
        }
    }
    fn read(&mut self, _: &mut Call<'_>, _: u32, offset: u64, _: usize) -> Result<Vec<u8>, Errno> {
        // More than was asked for: the rest is cut.
        Ok(vec![b'x'; 1000_usize.saturating_sub(usize::try_from(offset).unwrap_or(1000))])
    }
    fn ask(&mut self, _: &mut Call<'_>, node: u32, _: &[u8]) -> Result<Vec<u8>, Errno> {
        if node == 2 { Ok(b"a title\n".to_vec()) } else { Err(Errno::INVAL) }
    }
}

#[test]
fn a_folder_answers_what_it_can_and_refuses_the_rest_by_name() {
    let mut stage = Stage::new(json!({}), || {
        gauge(|service| {
            service.folder("shelf", "read", Some("write"), Shelf);
        })
    });
    let shelf = stage.file("shelf");
    let node = stage.ask(Kind::Lookup, 0, shelf, b"book").expect("found");
    let book = wire::service::Node::decode(&node).expect("a node");
    assert_eq!((root_of(book.number), book.size), (shelf, 1000));
    assert_eq!(stage.ask(Kind::Lookup, 0, shelf, b"none"), Err(Errno::NOENT));
    // Part by part, as large as one entry.
    let mut names = Vec::new();
    let mut after = 0;
    loop {
        let part = stage.ask(Kind::List, 0, shelf, &List { after, bytes: 64 }.encode()).expect("listed");
        let mut rest = &part[..];
        let Some(entry) = Entry::take(&mut rest).expect("an entry") else { break };
        after = entry.place;
        names.push(entry.name.to_vec());
    }
    assert_eq!(names, [b"book".to_vec(), b"title".to_vec()]);
    assert_eq!(stage.ask(Kind::List, 0, shelf, &List { after: 0, bytes: 8 }.encode()), Err(Errno::INVAL));
    assert_eq!(stage.open(1, book.number, 0, b""), Ok(Vec::new()));
    let read = |offset| Range { offset, bytes: 10 }.encode();
    assert_eq!(stage.ask(Kind::ReadAt, 1, 0, &read(995)), Ok(b"xxxxx".to_vec()));
    assert_eq!(stage.ask(Kind::ReadAt, 1, 0, &read(0)), Ok(vec![b'x'; 10]));
    assert_eq!(stage.ask(Kind::WriteAt, 1, 0, &[0; 9]), Err(Errno::BADF), "it was opened for reading");
    assert_eq!(stage.open(2, shelf, 0, b""), Err(Errno::ISDIR));
    let title = stage.ask(Kind::Lookup, 0, shelf, b"title").expect("found");
    let title = wire::service::Node::decode(&title).expect("a node").number;
    assert_eq!(stage.request(0, title, b""), Ok(b"a title\n".to_vec()));
    let mut unlink = vec![3, 0, 4, 0];
    unlink.extend_from_slice(&[0; 16]);
    unlink.extend_from_slice(b"book");
    assert_eq!(stage.ask(Kind::Change, 0, shelf, &unlink), Err(Errno::OPNOTSUPP));
    stage.end();
}

#[test]
fn a_device_reads_writes_and_says_when_it_is_ready() {
    let mut stage = Stage::new(json!({}), || {
        gauge(|service| {
            let device = service.device("port", "read");
            device.opened(|_, call| {
                call.ready(ready::WRITE);
                Ok(())
            });
            device.read(|degrees, _, _| Ok(degrees.to_string()));
            device.written(|degrees, call, data| {
                *degrees = number(data)?;
                call.handle().ready(call.session(), ready::READ);
                Ok(data.len())
            });
        })
    });
    let port = stage.file("port");
    assert_eq!(stage.export.version, 3);
    assert_eq!(stage.open(1, port, 2, b""), Ok(Vec::new()));
    let tag = stage.caller.tag();
    let write = [&[0; 8][..], b"123"].concat();
    stage.caller.ask(Kind::WriteAt, (1, tag), 0, &write, Some(soon())).expect("sent");
    assert_eq!(stage.answer(tag), Ok(vec![3, 0, 0, 0]));
    // It was said from another thread's way in, after the answer.
    let said = loop {
        if let Incoming::Ready { ready, .. } = stage.answers.next(Some(soon())).expect("said") {
            break ready;
        }
    };
    assert_eq!(said, ready::READ);
    assert_eq!(stage.ask(Kind::ReadAt, 1, 0, &Range { offset: 0, bytes: 2 }.encode()), Ok(b"12".to_vec()));
    assert_eq!(stage.ask(Kind::Sync, 1, 0, b""), Err(Errno::INVAL));
    stage.end();
}

#[test]
fn a_mistake_of_a_declaration_is_told_before_anything_is_offered() {
    type Mistake = fn(&mut Service<u32>);
    let mistakes: [(Mistake, &str); 5] = [
        (
            |service| drop(service.stream("a/b", "read", StreamOptions::default())),
            "a name has 1 to 255 bytes",
        ),
        (
            |service| drop(service.stream("samples", "Read", StreamOptions::default())),
            "the verb \"Read\" has to be",
        ),
        (
            |service| {
                service.text("a", "read", |_, _| Ok("")).closed(|_, _| ());
            },
            "a Text has no `closed`",
        ),
        (
            |service| {
                service.text("a", "read", |_, _| Ok(""));
                service.text("a", "read", |_, _| Ok(""));
            },
            "there is a file of this name already",
        ),
        (
            |service| {
                for at in 0..=service::MAX_FILES {
                    service.text(&at.to_string(), "read", |_, _| Ok(""));
                }
            },
            "at most 255 files",
        ),
    ];
    for (mistake, words) in mistakes {
        let ended = gauge(mistake).run().expect_err("refused").to_string();
        assert!(ended.starts_with("service gauge: file ") && ended.contains(words), "{ended}");
    }
}

#[test]
fn settings_that_cant_be_used_are_refused_and_new_ones_are_told() {
    let mut stage = Stage::new(json!({ "degrees": 5 }), || {
        gauge(|service| {
            service.on_settings(|degrees, settings| {
                let told = settings["degrees"].as_u64().and_then(|told| u32::try_from(told).ok());
                *degrees = told.ok_or("`degrees` is no number")?;
                Ok(())
            });
            service.text("reading", "read", |degrees, _| Ok(degrees.to_string()));
        })
    });
    let reading = stage.file("reading");
    assert_eq!(stage.request(0, reading, b""), Ok(b"5".to_vec()));
    for settings in [json!({ "degrees": 6 }), json!({})] {
        stage.daemon.tell_server(Event::Settings { service: "gauge".into(), settings });
    }
    // The state goes the same way as the settings, so they have been heard when it is there.
    let _state = stage.daemon.state();
    assert_eq!(stage.request(0, reading, b""), Ok(b"6".to_vec()));
    stage.end();
}
