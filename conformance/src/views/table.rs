//! The operations, in their order. Each view does them in a folder of its own where it makes files,
//! and each group begins with what brings its service into a known state.

use std::fmt::Debug;

use super::{Done, Opened, Outcome, View};

const READ: u32 = 0;
const WRITE: u32 = 1;
const BOTH: u32 = 2;
const EXCLUSIVE: u32 = 0o200;
const TRUNCATE: u32 = 0o1000;
const APPEND: u32 = 0o2000;

/// Names in the folder that is listed: more than any view gets at once.
const NAMES: usize = 120;

/// The services that are used.
#[derive(Debug, Clone, Copy)]
pub enum Group {
    /// A service of `views_server`, at `/srv/kit`: texts, controls, sessions, streams, a device.
    Program,
    /// A folder in which the caller may make files, at this path.
    Folder(&'static str),
    /// The directory service, at `/srv/dns`, with the zone of the tests' name server.
    Directory,
    /// Event channels, at `/srv/events`, with a channel `alarms`.
    Events,
    /// The services of the others, with fewer verbs: `kit` may be read, a folder may be looked at.
    Denied(&'static str),
}

/// A view at work, and what came of it.
struct Run<'v> {
    view: &'v mut dyn View,
    group: String,
    outcomes: Vec<Outcome>,
}

/// Does these groups through a view.
pub fn run(view: &mut dyn View, groups: &[Group]) -> Vec<Outcome> {
    let mut run = Run { view, group: String::new(), outcomes: Vec::new() };
    for group in groups {
        run.group = format!("{group:?}");
        match group {
            Group::Program => program(&mut run),
            Group::Folder(path) => folder(&mut run, path),
            Group::Directory => directory(&mut run),
            Group::Events => events(&mut run),
            Group::Denied(path) => denied(&mut run, path),
        }
    }
    run.outcomes
}

fn text(bytes: Vec<u8>) -> String {
    if bytes.len() <= 200 {
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    let sum = bytes.iter().fold(0_u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    format!("{} bytes with the sum {sum:x}", bytes.len())
}

impl Run<'_> {
    /// Notes a result, and returns it.
    fn note<T: Debug>(&mut self, what: &str, result: Done<T>) -> Done<T> {
        let said = match &result {
            Ok(value) => format!("{value:?}"),
            Err(errno) => std::io::Error::from_raw_os_error(*errno).to_string(),
        };
        self.outcomes.push(Outcome { operation: format!("{}: {what}", self.group), result: said });
        result
    }

    fn open(&mut self, what: &str, path: &str, flags: u32) -> Option<Opened> {
        let opened = self.view.open(path, flags);
        let _ = self.note(&format!("open {what}"), opened.map(|_| ()));
        opened.ok()
    }

    /// Opens and closes.
    fn tries(&mut self, what: &str, path: &str, flags: u32) {
        if let Some(file) = self.open(what, path, flags) {
            self.view.close(file);
        }
    }

    fn read(&mut self, what: &str, file: Opened, offset: u64, most: usize) {
        let read = self.view.read(file, offset, most).map(text);
        let _ = self.note(&format!("read {what}"), read);
    }

    fn write(&mut self, what: &str, file: Opened, offset: u64, data: &[u8]) {
        let written = self.view.write(file, offset, data);
        let _ = self.note(&format!("write {what}"), written);
    }

    fn ready(&mut self, what: &str, file: Opened, wanted: &[&str]) {
        let ready = self.view.ready(file, wanted);
        let _ = self.note(&format!("poll {what}"), ready);
    }

    fn stat(&mut self, what: &str, path: &str) {
        let stat = self.view.stat(path);
        let _ = self.note(&format!("stat {what}"), stat);
    }

    fn list(&mut self, what: &str, path: &str) {
        let names = self.view.list(path).map(|mut names| {
            names.sort();
            (names.len(), text(names.join(&b' ')))
        });
        let _ = self.note(&format!("list {what}"), names);
    }

    /// Reads a whole file by pieces.
    fn cat(&mut self, what: &str, path: &str) {
        let Some(file) = self.open(what, path, READ) else { return };
        let mut all = Vec::new();
        let end = loop {
            match self.view.read(file, all.len() as u64, 1000) {
                Ok(piece) if piece.is_empty() => break Ok(()),
                Ok(piece) => all.extend(piece),
                Err(errno) => break Err(errno),
            }
        };
        self.view.close(file);
        let _ = self.note(&format!("cat {what}"), end.map(|()| text(all)));
    }

    /// Opens for writing, writes once, closes.
    fn put(&mut self, what: &str, path: &str, data: &[u8]) {
        let Some(file) = self.open(what, path, WRITE) else { return };
        self.write(what, file, 0, data);
        self.view.close(file);
    }
}

fn program(run: &mut Run<'_>) {
    run.put("a reset", "kit/ctl", b"reset\n");
    run.list("the service", "kit");
    for name in ["reading", "ctl", "ask", "samples", "port", "none", "reading/none", "none/none"] {
        run.stat(name, &format!("kit/{name}"));
    }
    run.tries("none", "kit/none", READ);
    texts(run);
    sessions(run);
    stream(run);
    exchange(run);
    device(run);
}

fn texts(run: &mut Run<'_>) {
    run.cat("a text", "kit/reading");
    run.tries("a text to write", "kit/reading", WRITE);
    run.cat("a long text", "kit/long");
    run.cat("a text that fails", "kit/broken");
    run.put("a command", "kit/ctl", b"set 7\n");
    run.put("two commands", "kit/ctl", b"set 8\nset 9");
    run.cat("a control", "kit/ctl");
    run.cat("the text after it", "kit/reading");
    run.put("a command that is refused", "kit/ctl", b"set warm\n");
    run.put("a good command behind a wrong one", "kit/ctl", b"nonsense\nset 11\n");
    run.put("a command of no UTF-8", "kit/ctl", b"\xff\xfe\n");
    run.put("an empty line", "kit/ctl", b"\n");
    run.cat("a control that was refused", "kit/ctl");
    let Some(file) = run.open("a text by offsets", "kit/reading", READ) else { return };
    run.read("the middle of a text", file, 1, 2);
    run.read("beyond the end of a text", file, 1000, 10);
    run.ready("a text", file, &["in"]);
    run.view.close(file);
}

fn sessions(run: &mut Run<'_>) {
    let Some(file) = run.open("a session", "kit/ask", BOTH) else { return };
    run.ready("a session that was asked nothing", file, &[]);
    run.read("a session that was asked nothing", file, 0, 100);
    run.write("three lines", file, 0, b"double 4\necho hello\ndouble x\n");
    run.ready("an answer", file, &["in"]);
    run.read("the first answer", file, 0, 100);
    run.read("a part of the second", file, 0, 3);
    run.read("the rest of it", file, 0, 100);
    run.read("a refusal", file, 0, 100);
    run.ready("the end", file, &["in"]);
    run.read("the end", file, 0, 100);
    run.ready("after the end", file, &[]);
    run.write("a line without its end", file, 0, b"double 5");
    run.read("its answer", file, 0, 100);
    run.write("a line whose answer is long", file, 0, b"repeat 200000\n");
    let mut all = Vec::new();
    while all.len() < 200_000 {
        match run.view.read(file, 0, 60_000) {
            Ok(piece) if !piece.is_empty() => all.extend(piece),
            other => {
                let _ = run.note("read of a long answer ends early", other.map(text));
                break;
            }
        }
    }
    let _ = run.note("read a long answer", Ok(text(all)));
    // One that waits until somebody else says so; another session is not held up.
    run.write("a line that waits", file, 0, b"wait\n");
    run.ready("while the answer is not there", file, &[]);
    let begun = run.view.begin_read(file, 100);
    let _ = run.note("read that waits, begun", begun);
    if let Some(other) = run.open("another session", "kit/ask", BOTH) {
        run.write("to another session", other, 0, b"echo meanwhile\n");
        run.read("another session", other, 0, 100);
        run.view.close(other);
    }
    run.put("what lets it go on", "kit/ctl", b"release\n");
    let read = run.view.end_read(file).map(text);
    let _ = run.note("read that waited", read);
    run.view.close(file);
    for (what, line) in [("a NUL", &b"echo a\0b\n"[..]), ("a long line", &[b'x'; 70_000])] {
        if let Some(file) = run.open(what, "kit/ask", BOTH) {
            run.write(what, file, 0, line);
            run.view.close(file);
        }
    }
    if let Some(file) = run.open("a session to read", "kit/ask", READ) {
        run.write("to a session that was opened to read", file, 0, b"double 1\n");
        run.view.close(file);
    }
    if let Some(file) = run.open("a session to write", "kit/ask", WRITE) {
        run.write("to a session that was opened to write", file, 0, b"double 1\n");
        run.read("a session that was opened to write", file, 0, 100);
        run.view.close(file);
    }
}

fn stream(run: &mut Run<'_>) {
    let Some(file) = run.open("a stream", "kit/samples", READ) else { return };
    run.ready("an empty stream", file, &[]);
    run.put("three records", "kit/ctl", b"publish one\npublish two\npublish three\n");
    run.ready("a record", file, &["in"]);
    run.read("a record", file, 0, 100);
    run.read("a part of a record", file, 0, 2);
    run.read("the rest of it", file, 0, 100);
    run.read("the third record", file, 0, 100);
    run.ready("a stream that was read", file, &[]);
    run.view.close(file);
    let Some(file) = run.open("a stream once more", "kit/samples", READ) else { return };
    let begun = run.view.begin_read(file, 100_000);
    let _ = run.note("read of a stream that waits, begun", begun);
    run.put("a record", "kit/ctl", b"publish awaited\n");
    let read = run.view.end_read(file).map(text);
    let _ = run.note("read of a stream that waited", read);
    run.put("a large record", "kit/ctl", b"large 65536\n");
    run.read("a large record", file, 0, 65_536);
    run.put("a hundred records", "kit/ctl", b"many 100\n");
    for number in 0..100 {
        run.read(&format!("record {number} of many"), file, 0, 100);
    }
    run.view.close(file);
    run.tries("a stream to write", "kit/samples", WRITE);
}

fn exchange(run: &mut Run<'_>) {
    let Some(file) = run.open("an exchange", "kit/talk", BOTH) else { return };
    run.write("a record", file, 0, b"said");
    run.read("what came of it", file, 0, 100);
    run.write("a record with newlines", file, 0, b"a\nb\n");
    run.read("what came of that", file, 0, 100);
    run.view.close(file);
}

fn device(run: &mut Run<'_>) {
    let Some(file) = run.open("a device", "kit/port", BOTH) else { return };
    run.ready("a device to write", file, &["out"]);
    run.write("to a device", file, 0, b"abcdef");
    run.ready("a device to read", file, &["in"]);
    run.read("a part from a device", file, 0, 4);
    run.read("the rest from a device", file, 0, 4);
    run.write("to a device that refuses", file, 0, b"!");
    run.view.close(file);
}

fn folder(run: &mut Run<'_>, at: &str) {
    let own = format!("{at}/of-{}", run.view.name());
    let made = run.view.make_folder(&own);
    let _ = run.note("mkdir", made);
    let made = run.view.make_folder(&own);
    let _ = run.note("mkdir twice", made);
    let path = |name: &str| format!("{own}/{name}");
    names(run, &own);
    let made = run.view.create(&path("data"), BOTH | EXCLUSIVE, 0o640);
    let _ = run.note("create", made.map(|_| ()));
    if let Ok(file) = made {
        offsets(run, file);
        run.view.close(file);
    }
    let twice = run.view.create(&path("data"), WRITE | EXCLUSIVE, 0o640);
    let _ = run.note("create twice", twice.map(|_| ()));
    run.stat("a file", &path("data"));
    for (what, size, mode) in [
        ("cut", Some(5), None),
        ("grow", Some(50_000), None),
        ("chmod", None, Some(0o600)),
        ("cut to nothing", Some(0), None),
    ] {
        let set = run.view.set(&path("data"), size, mode);
        let _ = run.note(what, set);
        run.stat(what, &path("data"));
        run.cat(what, &path("data"));
    }
    xattrs(run, &own);
    run.put("anew", &path("data"), b"0123456789");
    flags(run, &path("data"));
    wrong(run, &own);
    let linked = run.view.link(&path("data"), &path("second"));
    let _ = run.note("link", linked);
    run.stat("a linked file", &path("data"));
    for (what, from, to) in [
        ("rename", "data", "moved"),
        ("rename of what is gone", "data", "other"),
        ("rename into a folder", "moved", "many/moved"),
        ("rename onto a folder", "many/moved", "many"),
        ("rename of a folder onto a file", "many", "many/moved"),
        ("rename below itself", "many", "many/below"),
    ] {
        let renamed = run.view.rename(&path(from), &path(to));
        let _ = run.note(what, renamed);
    }
    run.list("after renames", &own);
    // What is open and has no name is there until it is closed.
    if let Some(file) = run.open("what loses its name", &path("many/moved"), READ) {
        let unlinked = run.view.unlink(&path("many/moved"));
        let _ = run.note("unlink of an open file", unlinked);
        run.read("without a name", file, 0, 4);
        run.view.close(file);
    }
    run.stat("without a name", &path("many/moved"));
    sweep(run, &own);
}

/// Extended attributes of a file and of a folder, set and removed again.
fn xattrs(run: &mut Run<'_>, own: &str) {
    const CREATE: u32 = 1;
    const REPLACE: u32 = 2;
    let file = format!("{own}/data");
    let none = format!("{own}/none");
    for (what, path, name, value, flags) in [
        ("anew", &file, "user.a", Some(&b"one\0two"[..]), CREATE),
        ("anew twice", &file, "user.a", Some(b"other"), CREATE),
        ("over it", &file, "user.a", Some(b"12"), 0),
        ("in its place", &file, "user.a", Some(b"3"), REPLACE),
        ("in nothing's place", &file, "user.b", Some(b"x"), REPLACE),
        ("to nothing", &file, "user.b", Some(b""), 0),
        ("of a folder", &own.to_owned(), "user.a", Some(b"folder"), 0),
        ("for the system", &file, "system.tombolo", Some(b"x"), 0),
        ("away that is none", &file, "user.none", None, 0),
        ("of what is not there", &none, "user.a", Some(b"x"), 0),
    ] {
        let set = run.view.set_xattr(path, name, value, flags);
        let _ = run.note(&format!("setxattr {what}"), set);
        let value = run.view.xattr(path, name).map(text);
        let _ = run.note(&format!("getxattr {what}"), value);
    }
    for path in [&file, own, &none] {
        let names = run.view.xattrs(path).map(|names| {
            let mut names: Vec<_> = names.split(|&byte| byte == 0).map(<[u8]>::to_vec).map(text).collect();
            names.sort();
            names
        });
        let _ = run.note("listxattr", names);
    }
    for name in ["user.a", "user.b", "user.b"] {
        let removed = run.view.set_xattr(&file, name, None, 0);
        let _ = run.note("removexattr", removed);
    }
    let names = run.view.xattrs(&file).map(text);
    let _ = run.note("listxattr of none", names);
}

/// Many names: of any bytes that text can have here, listed part by part.
fn names(run: &mut Run<'_>, own: &str) {
    let many = format!("{own}/many");
    let made = run.view.make_folder(&many);
    let _ = run.note("mkdir of many", made);
    run.list("nothing", &many);
    let mut faults = Vec::new();
    for number in 0..NAMES {
        match run.view.create(&format!("{many}/name {number:03} \u{e4}\n"), WRITE, 0o644) {
            Ok(file) => run.view.close(file),
            Err(errno) => faults.push((number, errno)),
        }
    }
    let _ = run.note("create many", Ok(faults));
    run.list("many", &many);
    for number in (0..NAMES).step_by(2) {
        if let Err(errno) = run.view.unlink(&format!("{many}/name {number:03} \u{e4}\n")) {
            let _ = run.note(&format!("unlink of name {number}"), Err::<(), _>(errno));
        }
    }
    run.list("half of many", &many);
    let long = "n".repeat(255);
    for (what, name) in [("a long name", long.clone()), ("a longer name", long + "n")] {
        let made = run.view.create(&format!("{many}/{name}"), WRITE, 0o644);
        let _ = run.note(&format!("create {what}"), made.map(|_| ()));
        if let Ok(file) = made {
            run.view.close(file);
        }
        run.stat(what, &format!("{many}/{name}"));
    }
}

fn offsets(run: &mut Run<'_>, file: Opened) {
    run.read("an empty file", file, 0, 10);
    run.write("at 0", file, 0, b"hello, world");
    run.write("in the middle", file, 5, b"!");
    run.write("beyond the end", file, 20, b"far");
    run.read("all", file, 0, 100);
    run.read("the middle", file, 3, 5);
    run.read("at the end", file, 23, 10);
    run.read("beyond the end", file, 500, 10);
    run.read("nothing", file, 0, 0);
    let large: Vec<u8> = (0..100_000_u32).map(|number| (number * 7 % 251) as u8).collect();
    run.write("100,000 bytes at an odd offset", file, 4097, &large);
    run.read("across their beginning", file, 4000, 200);
    run.read("their end", file, 104_000, 200);
    run.ready("a file", file, &[]);
    let synced = run.view.sync(file);
    let _ = run.note("fsync", synced);
}

fn flags(run: &mut Run<'_>, path: &str) {
    if let Some(file) = run.open("to append", path, WRITE | APPEND) {
        run.write("at the end", file, 0, b"+");
        run.write("at the end, elsewhere", file, 3, b"-");
        run.view.close(file);
    }
    run.cat("what was appended", path);
    if let Some(file) = run.open("to read only", path, READ) {
        run.write("to a file that was opened to read", file, 0, b"x");
        run.view.close(file);
    }
    if let Some(file) = run.open("to write only", path, WRITE) {
        run.read("a file that was opened to write", file, 0, 10);
        run.view.close(file);
    }
    run.tries("to truncate", path, WRITE | TRUNCATE);
    run.stat("truncated", path);
}

fn wrong(run: &mut Run<'_>, own: &str) {
    let path = |name: &str| format!("{own}/{name}");
    run.tries("a folder to write", own, WRITE);
    run.tries("what is not there", &path("none"), READ);
    run.tries("below what is not there", &path("none/none"), READ);
    run.tries("below a file", &path("data/none"), READ);
    run.list("a file", &path("data"));
    run.list("what is not there", &path("none"));
    let outcomes = [
        ("mkdir below what is not there", run.view.make_folder(&path("none/x"))),
        ("mkdir below a file", run.view.make_folder(&path("data/x"))),
        ("mkdir over a file", run.view.make_folder(&path("data"))),
        ("rmdir of a file", run.view.remove_folder(&path("data"))),
        ("rmdir of a full folder", run.view.remove_folder(own)),
        ("rmdir of what is not there", run.view.remove_folder(&path("none"))),
        ("unlink of a folder", run.view.unlink(&path("many"))),
        ("unlink of what is not there", run.view.unlink(&path("none"))),
        ("link of a folder", run.view.link(&path("many"), &path("linked"))),
        ("link over a file", run.view.link(&path("data"), &path("data"))),
        ("chmod of what is not there", run.view.set(&path("none"), None, Some(0o600))),
        ("cut of what is not there", run.view.set(&path("none"), Some(0), None)),
    ];
    for (what, outcome) in outcomes {
        let _ = run.note(what, outcome);
    }
}

/// Leaves nothing behind.
fn sweep(run: &mut Run<'_>, own: &str) {
    let many = format!("{own}/many");
    for folder in [&many, own] {
        for name in run.view.list(folder).unwrap_or_default() {
            let name = String::from_utf8_lossy(&name).into_owned();
            let path = format!("{folder}/{name}");
            if path != many
                && let Err(errno) = run.view.unlink(&path)
            {
                let _ = run.note(&format!("sweep {name}"), Err::<(), _>(errno));
            }
        }
        let removed = run.view.remove_folder(folder);
        let _ = run.note("rmdir", removed);
    }
    run.stat("a folder that is gone", own);
}

fn directory(run: &mut Run<'_>) {
    run.list("the service", "dns");
    for name in ["query", "ctl", "status", "sessions"] {
        run.stat(name, &format!("dns/{name}"));
    }
    let Some(file) = run.open("a session", "dns/query", BOTH) else { return };
    let questions: [&[u8]; 9] = [
        b"ctl format json\n",
        b"ctl format text\n",
        b"PTR 192.0.2.3\n",
        b"MX tombolo.example\n",
        b"missing.tombolo.example\n",
        b"AAAA alias3.tombolo.example\n",
        b"ANY tombolo.example\n",
        b"NOTYPE x y z\n",
        b"ctl timeout never\n",
    ];
    for question in questions {
        let line = text(question.to_vec());
        run.write(line.trim(), file, 0, question);
        let read = run.view.read(file, 0, 4096).map(|bytes| without_ttl(&text(bytes)));
        let _ = run.note(&format!("read {}", line.trim()), read);
    }
    run.read("the end", file, 0, 100);
    run.view.close(file);
    run.put("a setting that there is not", "dns/ctl", b"colour blue\n");
    run.tries("a text to write", "dns/status", WRITE);
}

/// Lines without their second field, which counts down.
fn without_ttl(answer: &str) -> Vec<String> {
    let fields = |line: &str| {
        line.split(' ')
            .enumerate()
            .filter(|(at, _)| *at != 1)
            .map(|(_, word)| word.to_owned())
            .collect::<Vec<_>>()
    };
    answer.lines().map(|line| fields(line).join(" ")).collect()
}

fn events(run: &mut Run<'_>) {
    run.list("the service", "events");
    run.list("a channel", "events/alarms");
    for name in ["alarms/pub", "alarms/sub", "alarms/stats", "none", "alarms/none"] {
        run.stat(name, &format!("events/{name}"));
    }
    let Some(reader) = run.open("a subscription", "events/alarms/sub", READ) else { return };
    run.ready("no event", reader, &[]);
    let Some(writer) = run.open("to publish", "events/alarms/pub", WRITE) else { return };
    run.write("an event", writer, 0, b"fire\n");
    run.ready("an event", reader, &["in"]);
    run.read("an event", reader, 0, 65_536);
    run.write("an event that nobody asked for", writer, 0, b"{\"level\": 3}\n");
    run.read("the next", reader, 0, 65_536);
    run.write("an event that is too long", writer, 0, &[b'x'; 60_000]);
    run.cat("the last", "events/alarms/last");
    run.view.close(writer);
    run.view.close(reader);
    let Some(reader) = run.open("a subscription that says what it wants", "events/alarms/sub", BOTH) else {
        return;
    };
    run.write("a wrong filter", reader, 0, b"filter level >\n");
    run.write("a filter", reader, 0, b"filter level > 2\nreplay 1\n");
    run.read("what passes", reader, 0, 65_536);
    run.view.close(reader);
    let outcomes = [
        ("mkdir of a channel", run.view.make_folder("events/made")),
        ("mkdir of it again", run.view.make_folder("events/made")),
        ("mkdir of what is no name", run.view.make_folder("events/no name")),
        ("unlink of a file of a channel", run.view.unlink("events/made/pub")),
        ("rmdir of a channel of the topology", run.view.remove_folder("events/alarms")),
        ("rename of a channel", run.view.rename("events/made", "events/other")),
        ("rmdir", run.view.remove_folder("events/made")),
        ("rmdir again", run.view.remove_folder("events/made")),
    ];
    for (what, outcome) in outcomes {
        let _ = run.note(what, outcome);
    }
}

fn denied(run: &mut Run<'_>, at: &str) {
    run.cat("a text", "kit/reading");
    run.tries("a control to read", "kit/ctl", READ);
    // Where there are no open files, it is the write that is refused.
    let commanded = run.view.open("kit/ctl", WRITE).and_then(|file| {
        let written = run.view.write(file, 0, b"set 99\n");
        run.view.close(file);
        written
    });
    let _ = run.note("a command", commanded);
    run.cat("a text that it would have changed", "kit/reading");
    run.tries("a session", "kit/ask", BOTH);
    run.stat("a control", "kit/ctl");
    run.list("a folder", at);
    let outcomes = [
        ("mkdir", run.view.make_folder(&format!("{at}/x"))),
        ("create", run.view.create(&format!("{at}/x"), WRITE, 0o644).map(drop)),
        ("unlink", run.view.unlink(&format!("{at}/shown"))),
        ("rename", run.view.rename(&format!("{at}/shown"), &format!("{at}/x"))),
        ("chmod", run.view.set(&format!("{at}/shown"), None, Some(0o600))),
        ("cut", run.view.set(&format!("{at}/shown"), Some(0), None)),
    ];
    for (what, outcome) in outcomes {
        let _ = run.note(what, outcome);
    }
    run.cat("a file", &format!("{at}/shown"));
    run.tries("a file to write", &format!("{at}/shown"), WRITE);
    run.tries("a file to truncate", &format!("{at}/shown"), WRITE | TRUNCATE);
    run.cat("a file that was not truncated", &format!("{at}/shown"));
}
