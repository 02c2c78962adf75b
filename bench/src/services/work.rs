//! The work of a client: the same operations in every view, by the clients of the suite of views.
//!
//! A worker says `ready`; it is given a [`Task`] as JSON, works, and answers with a [`Tale`]. The
//! end of its input ends it.

use super::arms::{FILE_BYTES, LISTED, REQUEST_BYTES, Work};
use super::server::PAUSE;
use crate::core_line;
use crate::histogram::Latencies;
use crate::talk::{next_line, say};
use conformance::views::direct::Direct;
use conformance::views::mount::Mount;
use conformance::views::ninep::Ninep;
use conformance::views::{Done, Opened, View};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io::{self, BufRead, PipeReader, PipeWriter, Read, Write};
use std::path::PathBuf;
use sys::clock::clock_ns;

/// Records that are asked for at once.
const BURST: usize = 512;
/// Bytes of a listing that are taken at once, as the kernel does.
const LIST_BYTES: u32 = 32 << 10;
/// `O_WRONLY`, `O_RDWR` and `O_DIRECT` of open(2).
const WRITE: u32 = 1;
const BOTH: u32 = 2;
const UNCACHED: u32 = 0o40_000;

/// Where a client finds its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Below a folder, past the page cache where that is said.
    Mount {
        /// The folder.
        folder: PathBuf,
        /// Whether files are opened with `O_DIRECT`.
        is_uncached: bool,
    },
    /// At a Unix socket, by 9P2000.L.
    Ninep {
        /// The socket.
        socket: PathBuf,
        /// The tree that is attached.
        tree: String,
    },
    /// Over channels.
    Direct,
    /// Pipes of the worker's own.
    Pipe,
    /// Memory of the worker's own.
    Memory,
}

/// The names of what the work is done with, in a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// The file of [`FILE_BYTES`].
    pub file: String,
    /// The folder of [`LISTED`] files.
    pub folder: String,
    /// The folder of the service that is asked.
    pub service: String,
}

/// The task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Where.
    pub place: Place,
    /// With what.
    pub names: Names,
    /// The work to do there.
    pub work: Work,
    /// How long before the measured window, in ns.
    pub warm_up_ns: u64,
    /// The measured window, in ns.
    pub window_ns: u64,
}

/// The account of the work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tale {
    /// How long each operation of the window took; of a stream's records nothing is noted.
    pub latencies: Latencies,
    /// Operations within the window.
    pub operations: u64,
    /// How long they took in all, in ns.
    pub window_ns: u64,
}

/// Leads a client's conversation until its input ends.
///
/// # Errors
/// Where the input is no conversation, or an operation fails.
pub fn converse(input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    say(output, "ready")?;
    let mut views = Vec::new();
    while let Some(line) = next_line(input)? {
        let task: Task = serde_json::from_str(&line).map_err(io::Error::other)?;
        let tale = perform(&task, &mut views)?;
        say(output, &serde_json::to_string(&tale).map_err(io::Error::other)?)?;
    }
    Ok(())
}

/// The views that a worker has, by their places.
type Views = Vec<(Place, Box<dyn View>)>;

fn view_of<'v>(place: &Place, views: &'v mut Views) -> io::Result<&'v mut dyn View> {
    let at = match views.iter().position(|(known, _)| known == place) {
        Some(at) => at,
        None => {
            views.push((place.clone(), connect(place)?));
            views.len() - 1
        }
    };
    let view = views.get_mut(at).ok_or_else(|| io::Error::other("a view is lost"))?;
    Ok(view.1.as_mut())
}

fn connect(place: &Place) -> io::Result<Box<dyn View>> {
    Ok(match place {
        Place::Mount { folder, .. } => Box::new(Mount::new(folder)),
        Place::Ninep { socket, tree } => Box::new(Ninep::attach(socket, tree)?.with_listings_of(LIST_BYTES)),
        Place::Direct => {
            let direct = Direct::connect(&session::Control::path()).map_err(io::Error::other)?;
            Box::new(direct.with_listings_of(LIST_BYTES))
        }
        Place::Pipe | Place::Memory => return Err(io::Error::other("no view: there are no files")),
    })
}

fn perform(task: &Task, views: &mut Views) -> io::Result<Tale> {
    match (&task.place, task.work) {
        (Place::Memory, Work::Call) => cache_line(task),
        (Place::Memory, work) => memory(task, work.bytes()),
        (Place::Pipe, Work::Call) => call_by_pipes(task),
        (Place::Pipe, Work::Wake) => wake_by_pipes(task),
        (Place::Pipe, work) => stream_by_pipe(task, work.bytes()),
        _ => {
            let view = view_of(&task.place, views)?;
            Client { task, view }.perform()
        }
    }
}

/// One task in a view.
struct Client<'c> {
    task: &'c Task,
    view: &'c mut dyn View,
}

fn failed(what: &str, name: &str) -> impl FnOnce(i32) -> io::Error {
    let doing = format!("{what} {name}");
    move |errno| io::Error::other(format!("{doing}: {}", io::Error::from_raw_os_error(errno)))
}

impl Client<'_> {
    fn perform(&mut self) -> io::Result<Tale> {
        let (task, names) = (self.task, &self.task.names);
        match task.work {
            Work::Open => {
                let flags = self.flags(0);
                repeat(task, || {
                    let file = self.view.open(&names.file, flags).map_err(failed("opening", &names.file))?;
                    self.view.close(file);
                    Ok(())
                })
            }
            Work::Stat => repeat(task, || {
                let found = self.view.stat(&names.file).map_err(failed("looking at", &names.file))?;
                right(found.size == FILE_BYTES as u64, "a file of another size")
            }),
            Work::Read(bytes) => {
                let file = self.open(&names.file, 0)?;
                let tale =
                    repeat(task, || self.read_all(file, bytes).map_err(failed("reading", &names.file)));
                self.view.close(file);
                tale
            }
            Work::Write(bytes) => {
                let file = self.open(&names.file, BOTH)?;
                let data = vec![7; bytes];
                let tale = repeat(task, || {
                    let taken = self.view.write(file, 0, &data).map_err(failed("writing", &names.file))?;
                    right(taken == bytes, "fewer bytes were written")
                });
                self.view.close(file);
                tale
            }
            Work::List => repeat(task, || {
                let found = self.view.list(&names.folder).map_err(failed("listing", &names.folder))?;
                right(found.len() == LISTED, "another number of names")
            }),
            Work::Call => self.call(),
            Work::Stream(bytes) => self.stream(bytes),
            Work::Wake => self.wake(),
        }
    }

    fn flags(&self, flags: u32) -> u32 {
        match self.task.place {
            Place::Mount { is_uncached: true, .. } => flags | UNCACHED,
            _ => flags,
        }
    }

    fn open(&mut self, name: &str, flags: u32) -> io::Result<Opened> {
        let flags = self.flags(flags);
        self.view.open(name, flags).map_err(failed("opening", name))
    }

    fn of_service(&mut self, name: &str, flags: u32) -> io::Result<Opened> {
        let path = format!("{}/{name}", self.task.names.service);
        self.open(&path, flags)
    }

    /// Reads so many bytes from the beginning; a view may give fewer at once.
    fn read_all(&mut self, file: Opened, bytes: usize) -> Done<()> {
        let mut done = 0;
        while done < bytes {
            match self.view.read(file, done as u64, bytes - done)?.len() {
                0 => return Err(END_OF_FILE),
                count => done += count,
            }
        }
        Ok(())
    }

    fn call(&mut self) -> io::Result<Tale> {
        let file = self.of_service("ask", BOTH)?;
        let mut request = vec![b'q'; REQUEST_BYTES];
        request[REQUEST_BYTES - 1] = b'\n';
        let tale = repeat(self.task, || {
            self.view.write(file, 0, &request).map_err(failed("asking", "ask"))?;
            let answer = self.view.read(file, 0, REQUEST_BYTES).map_err(failed("reading", "ask"))?;
            right(answer == request[..REQUEST_BYTES - 1], "another answer")
        });
        self.view.close(file);
        tale
    }

    fn stream(&mut self, bytes: usize) -> io::Result<Tale> {
        let (records, ctl) = (self.of_service("records", 0)?, self.of_service("ctl", WRITE)?);
        let order = format!("burst {BURST} {bytes}\n");
        let mut tale = Tale { latencies: Latencies::new(), operations: 0, window_ns: 0 };
        let begin = clock_ns() + self.task.warm_up_ns;
        while tale.window_ns < self.task.window_ns {
            let before = clock_ns();
            self.view.write(ctl, 0, order.as_bytes()).map_err(failed("writing", "ctl"))?;
            for _ in 0..BURST {
                let record = self.view.read(records, 0, bytes).map_err(failed("reading", "records"))?;
                right(record.len() == bytes, "a record of another length")?;
            }
            if before >= begin {
                tale.operations += BURST as u64;
                tale.window_ns += clock_ns() - before;
            }
        }
        self.view.close(records);
        self.view.close(ctl);
        Ok(tale)
    }

    fn wake(&mut self) -> io::Result<Tale> {
        let (records, ctl) = (self.of_service("records", 0)?, self.of_service("ctl", WRITE)?);
        let tale = latencies(self.task, || {
            self.view.write(ctl, 0, b"wake\n").map_err(failed("writing", "ctl"))?;
            let record = self.view.read(records, 0, 8).map_err(failed("reading", "records"))?;
            since(&record)
        });
        self.view.close(records);
        self.view.close(ctl);
        tale
    }
}

/// `ENODATA`: the file ends before it should.
const END_OF_FILE: i32 = 61;

fn right(holds: bool, else_found: &str) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::Error::other(else_found.to_owned())) }
}

/// How long ago the instant of a record is, in ns.
fn since(record: &[u8]) -> io::Result<u64> {
    let bytes = record.try_into().map_err(|_| io::Error::other("a record without its instant"))?;
    Ok(clock_ns().saturating_sub(u64::from_le_bytes(bytes)))
}

/// Does something again and again, and notes how long each time took.
fn repeat(task: &Task, mut act: impl FnMut() -> io::Result<()>) -> io::Result<Tale> {
    latencies(task, || {
        let before = clock_ns();
        act()?;
        Ok(clock_ns() - before)
    })
}

/// Does something again and again that says itself how long it took.
fn latencies(task: &Task, mut act: impl FnMut() -> io::Result<u64>) -> io::Result<Tale> {
    let begin = clock_ns() + task.warm_up_ns;
    let mut tale = Tale { latencies: Latencies::new(), operations: 0, window_ns: 0 };
    loop {
        let before = clock_ns();
        let took = act()?;
        if before < begin {
            continue;
        }
        tale.latencies.record(took);
        tale.operations += 1;
        tale.window_ns = clock_ns() - begin;
        if tale.window_ns >= task.window_ns {
            return Ok(tale);
        }
    }
}

fn memory(task: &Task, bytes: usize) -> io::Result<Tale> {
    let (from, mut to) = (vec![7_u8; bytes], vec![0_u8; bytes]);
    repeat(task, || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        Ok(())
    })
}

/// Round trips of a cache line, each the mean of some thousands.
fn cache_line(task: &Task) -> io::Result<Tale> {
    latencies(task, || match core_line::round_trip_ns() {
        Some(ns) => Ok(ns as u64),
        None => Err(io::Error::other("there is one processor only")),
    })
}

/// Two pipes to a thread, which is given its ends of them.
fn with_thread(
    far: impl FnOnce(PipeReader, PipeWriter) -> io::Result<()> + Send,
    near: impl FnOnce(PipeReader, PipeWriter) -> io::Result<Tale>,
) -> io::Result<Tale> {
    let ((there, to_there), (back, to_back)) = (io::pipe()?, io::pipe()?);
    std::thread::scope(|scope| {
        // It ends with an error when the near ends are closed.
        scope.spawn(move || far(there, to_back));
        near(back, to_there)
    })
}

fn call_by_pipes(task: &Task) -> io::Result<Tale> {
    let echo = |mut from: PipeReader, mut to: PipeWriter| {
        let mut request = [0; REQUEST_BYTES];
        loop {
            from.read_exact(&mut request)?;
            to.write_all(&request)?;
        }
    };
    with_thread(echo, |mut from, mut to| {
        let mut request = [7; REQUEST_BYTES];
        repeat(task, || {
            to.write_all(&request)?;
            from.read_exact(&mut request)
        })
    })
}

fn wake_by_pipes(task: &Task) -> io::Result<Tale> {
    let publish = |mut from: PipeReader, mut to: PipeWriter| {
        loop {
            from.read_exact(&mut [0])?;
            // tidy(sleep): the reader has to be asleep, which nothing tells.
            std::thread::sleep(PAUSE);
            to.write_all(&clock_ns().to_le_bytes())?;
        }
    };
    with_thread(publish, |mut from, mut to| {
        latencies(task, || {
            to.write_all(&[1])?;
            let mut record = [0; 8];
            from.read_exact(&mut record)?;
            since(&record)
        })
    })
}

fn stream_by_pipe(task: &Task, bytes: usize) -> io::Result<Tale> {
    let publish = |_: PipeReader, mut to: PipeWriter| {
        let record = vec![7; bytes];
        loop {
            to.write_all(&record)?;
        }
    };
    with_thread(publish, |mut from, _to| {
        let mut record = vec![0; bytes];
        let tale = repeat(task, || from.read_exact(&mut record))?;
        Ok(Tale { latencies: Latencies::new(), ..tale })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_does_each_work_of_files_and_of_its_own_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("data"), vec![1; FILE_BYTES]).expect("written");
        std::fs::create_dir(folder.path().join("many")).expect("made");
        for number in 0..LISTED {
            std::fs::write(folder.path().join(format!("many/{number}")), "").expect("written");
        }
        let mount = Place::Mount { folder: folder.path().into(), is_uncached: false };
        let (files, pipes, memory) = (
            [Work::Open, Work::Stat, Work::Read(64), Work::Read(FILE_BYTES), Work::Write(4096), Work::List],
            [Work::Call, Work::Stream(64), Work::Wake],
            [Work::Read(64), Work::Write(FILE_BYTES)],
        );
        let works = files.iter().map(|work| (&mount, work));
        let works = works.chain(pipes.iter().map(|work| (&Place::Pipe, work)));
        for (place, work) in works.chain(memory.iter().map(|work| (&Place::Memory, work))) {
            let task = task(place.clone(), *work);
            let mut output = Vec::new();
            let input = serde_json::to_string(&task).expect("JSON") + "\n";
            converse(&mut input.as_bytes(), &mut output).expect("a good conversation");
            let output = String::from_utf8(output).expect("text");
            let lines: Vec<&str> = output.lines().collect();
            let tale: Tale = serde_json::from_str(lines[1]).expect("a tale");
            assert!(lines[0] == "ready" && tale.operations > 0 && tale.window_ns > 0, "{work:?}: {tale:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_or_too_short_is_told_with_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let mount = Place::Mount { folder: folder.path().into(), is_uncached: false };
        let said =
            |work| perform(&task(mount.clone(), work), &mut Vec::new()).expect_err("refused").to_string();
        assert!(said(Work::Open).contains("opening data: No such file"), "{}", said(Work::Open));
        std::fs::write(folder.path().join("data"), "short").expect("written");
        assert!(said(Work::Read(64)).contains("reading data"), "{}", said(Work::Read(64)));
        assert!(said(Work::Stat).contains("another size"));
    }

    fn task(place: Place, work: Work) -> Task {
        let names = Names { file: "data".into(), folder: "many".into(), service: "kit".into() };
        Task { place, names, work, warm_up_ns: 0, window_ns: 100_000 }
    }
}
