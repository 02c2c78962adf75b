//! Reading logs: the last so many lines, from a moment on, and what is written meanwhile, across
//! rotations.

use super::{MAX_FILES, MAX_LINE_BYTES, Record, Stream, file};
use crate::clock::{TEXT_BYTES, rfc3339};
use crate::error::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Longest text line of a log: time, stream, tag and a piece of output. A longer one is not ours,
/// and is skipped.
const MAX_TEXT_BYTES: u64 = (MAX_LINE_BYTES + 64) as u64;
/// How much is read at a time when looking for the last lines.
const BLOCK_BYTES: u64 = 64 * 1024;

/// The records that are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Only so many of the last ones.
    pub tail: Option<u64>,
    /// Whether later ones are wanted as they come.
    pub follow: bool,
    /// Only those from this moment on.
    pub since: Option<SystemTime>,
    /// Only those before this moment.
    pub until: Option<SystemTime>,
}

/// A place in a domain's logs.
///
/// [`LogReader::next_record`] never waits. With `follow`, `None` means "not yet": wait for
/// [`LogReader::descriptor`] to become readable (or call [`LogReader::wait`]) and ask again. The
/// end of the domain is not the end of its log: who follows decides. Without `follow` it ends with
/// what had been written when it was opened, however fast the domain writes meanwhile.
#[derive(Debug)]
pub struct LogReader {
    log: PathBuf,
    current: Option<BufReader<File>>,
    /// A record whose end was not there yet.
    unfinished: Vec<u8>,
    since: Option<String>,
    until: Option<String>,
    watch: Option<OwnedFd>,
    /// Where reading ends without `follow`.
    end: Option<End>,
    /// Whether there was a file at any time: one that is not there yet is waited for.
    found: bool,
}

/// The end of a log when it was opened: the youngest file, and its length.
#[derive(Debug)]
struct End {
    file: Metadata,
    /// Bytes of that file that have been read, once it is the current one.
    position: Option<u64>,
}

impl End {
    /// How many bytes may be read from `current` at the most.
    fn left(&mut self, current: &mut BufReader<File>) -> io::Result<u64> {
        let position = match self.position {
            Some(position) => position,
            None if same(&current.get_ref().metadata()?, &self.file) => current.stream_position()?,
            None => return Ok(u64::MAX),
        };
        self.position = Some(position);
        Ok(self.file.len().saturating_sub(position))
    }

    fn read(&mut self, bytes: usize) {
        if let Some(position) = &mut self.position {
            *position += bytes as u64;
        }
    }
}

/// Why waiting for more ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// There may be more, or the time is over.
    More,
    /// Nobody reads any more what is passed on.
    ReaderGone,
    /// The log was removed: its domain was taken down.
    LogGone,
}

impl LogReader {
    pub(crate) fn open(log: &Path, query: &LogQuery) -> Result<Self> {
        let watch = if query.follow { Some(watch(log)?) } else { None };
        let mut reader = Self {
            log: log.to_owned(),
            current: None,
            unfinished: Vec::new(),
            since: query.since.map(rfc3339),
            until: query.until.map(rfc3339),
            watch,
            end: None,
            found: false,
        };
        if !query.follow {
            let file = metadata(log).at("read log", log)?;
            reader.end = file.map(|file| End { file, position: None });
        }
        reader.current = match query.tail {
            Some(lines) => tail(log, lines).at("read log", log)?,
            None => reader.oldest().at("open log", log)?,
        }
        .map(BufReader::new);
        reader.found = reader.current.is_some();
        Ok(reader)
    }

    /// The next record, if there is one now.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn next_record(&mut self) -> Result<Option<Record>> {
        while let Some(line) = self.next_line().at("read log", self.log.clone())? {
            let record = parse(&line).filter(|record| self.is_wanted(record));
            if record.is_some() {
                return Ok(record);
            }
        }
        Ok(None)
    }

    fn is_wanted(&self, record: &Record) -> bool {
        self.since.as_ref().is_none_or(|since| record.time >= *since)
            && self.until.as_ref().is_none_or(|until| record.time < *until)
    }

    /// Readable when there may be more; `None` without `follow`.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Waits until there may be more, or for `timeout`, and tells which.
    ///
    /// # Errors
    /// `Unsupported` without `follow`.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        let Some(watch) = &self.watch else { return self.nothing_to_follow() };
        let ready =
            poll_for(&mut [PollFd::new(watch, PollFlags::IN)], timeout).at("follow log", &self.log)?;
        self.forget_events();
        Ok(ready > 0)
    }

    /// As [`LogReader::wait`], for a caller that passes the records on to `out`: it also ends when
    /// nobody can read that any more (a pipe without a reader, a socket or a terminal that has hung
    /// up), and when the log is removed.
    ///
    /// # Errors
    /// `Unsupported` without `follow`.
    pub fn wait_for(&mut self, timeout: Duration, out: impl AsFd) -> Result<Waited> {
        let Some(watch) = &self.watch else { return self.nothing_to_follow().map(|_| Waited::More) };
        // Asked for nothing, `out` tells of its end alone.
        let mut polled = [PollFd::new(watch, PollFlags::IN), PollFd::new(&out, PollFlags::empty())];
        poll_for(&mut polled, timeout).at("follow log", &self.log)?;
        let is_read = polled[1].revents().is_empty();
        self.forget_events();
        if !is_read {
            return Ok(Waited::ReaderGone);
        }
        Ok(if self.is_removed().at("follow log", &self.log)? { Waited::LogGone } else { Waited::More })
    }

    /// Whether the log was there and is no more, with all that was set aside of it. What was read
    /// last may have been written before that, so nothing of an open file is lost: it is read to
    /// its end first.
    fn is_removed(&mut self) -> io::Result<bool> {
        let folder = self.log.parent().unwrap_or(Path::new("/"));
        if metadata(folder)?.is_some() && (!self.found || self.oldest()?.is_some()) {
            return Ok(false);
        }
        let Some(reader) = &mut self.current else { return Ok(true) };
        Ok(reader.stream_position()? >= reader.get_ref().metadata()?.len())
    }

    fn nothing_to_follow(&self) -> Result<bool> {
        Err(io::Error::from(io::ErrorKind::Unsupported)).at("follow log", &self.log)
    }

    fn forget_events(&self) {
        let Some(watch) = &self.watch else { return };
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watch, &mut buffer);
        // Which file changed does not matter; the end of the queue is the error EAGAIN.
        while events.next().is_ok() {}
    }

    /// One text line, without its line feed; keeps the beginning of an unfinished one for the next
    /// call.
    fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.forget_events();
        loop {
            if self.current.is_none() {
                self.current = self.oldest()?.map(BufReader::new);
            }
            let Some(reader) = &mut self.current else { return Ok(None) };
            self.found = true;
            let mut room = MAX_TEXT_BYTES.saturating_sub(self.unfinished.len() as u64);
            if let Some(end) = &mut self.end {
                room = room.min(end.left(reader)?);
            }
            if room == 0 {
                return Ok(None);
            }
            let read = reader.by_ref().take(room).read_until(b'\n', &mut self.unfinished)?;
            if let Some(end) = &mut self.end {
                end.read(read);
            }
            if self.unfinished.last() == Some(&b'\n') || self.unfinished.len() as u64 >= MAX_TEXT_BYTES {
                self.unfinished.pop_if(|b| *b == b'\n');
                return Ok(Some(std::mem::take(&mut self.unfinished)));
            }
            if read == 0 && !self.advance()? {
                return Ok(None);
            }
        }
    }

    /// At the end of a file: goes on to the next younger one if this one was set aside.
    fn advance(&mut self) -> io::Result<bool> {
        let Some(reader) = &mut self.current else { return Ok(false) };
        let mine = reader.get_ref().metadata()?;
        if metadata(&self.log)?.is_some_and(|m| same(&m, &mine)) {
            return Ok(false);
        }
        // The writer may have added to it between our last read and the renaming.
        if reader.stream_position()? < mine.len() {
            return Ok(true);
        }
        let ages = (1..MAX_FILES).map(|age| Ok((age, metadata(&file(&self.log, age))?)));
        let ages: Vec<(u32, Option<Metadata>)> = ages.collect::<io::Result<_>>()?;
        let found = ages.into_iter().find(|(_, m)| m.as_ref().is_some_and(|m| same(m, &mine)));
        let next = match found {
            Some((age, _)) => open_if_there(&file(&self.log, age - 1))?,
            None => self.oldest()?,
        };
        self.unfinished.clear();
        let moved = next.is_some();
        if moved {
            self.current = next.map(BufReader::new);
        }
        Ok(moved)
    }

    fn oldest(&self) -> io::Result<Option<File>> {
        for age in (0..MAX_FILES).rev() {
            if let Some(file) = open_if_there(&file(&self.log, age))? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}

/// As poll(2); a signal ends it early.
fn poll_for(polled: &mut [PollFd<'_>], timeout: Duration) -> io::Result<usize> {
    let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(polled, Some(&timeout)) {
        Ok(ready) => Ok(ready),
        Err(Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

fn watch(log: &Path) -> Result<OwnedFd> {
    let dir = log.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(dir).at("create", dir)?;
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
        .doing("watch the log (inotify; see /proc/sys/fs/inotify/max_user_instances)")?;
    let events = inotify::WatchFlags::MODIFY
        | inotify::WatchFlags::CREATE
        | inotify::WatchFlags::MOVED_TO
        | inotify::WatchFlags::DELETE
        | inotify::WatchFlags::DELETE_SELF;
    inotify::add_watch(&watch, dir, events).at("watch", dir)?;
    Ok(watch)
}

fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

fn open_if_there(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The file that holds the first of the last `lines` lines, at that line.
fn tail(log: &Path, lines: u64) -> io::Result<Option<File>> {
    let mut wanted = lines;
    let mut oldest = None;
    for age in 0..MAX_FILES {
        let Some(mut file) = open_if_there(&file(log, age))? else {
            // Rotation leaves no gap but for the moment in which the current file is made anew.
            if age == 0 { continue } else { break }
        };
        let found = seek_back(&mut file, &mut wanted)?;
        oldest = Some(file);
        if found {
            break;
        }
    }
    Ok(oldest)
}

/// Puts the file's position `wanted` lines before its end; otherwise at its start, with `wanted`
/// less by the lines that it has.
fn seek_back(file: &mut File, wanted: &mut u64) -> io::Result<bool> {
    let mut end = file.seek(SeekFrom::End(0))?;
    if *wanted == 0 || end == 0 {
        return Ok(*wanted == 0);
    }
    let mut block = Vec::new();
    let mut last = true;
    while end > 0 {
        let start = end.saturating_sub(BLOCK_BYTES);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        file.by_ref().take(end - start).read_to_end(&mut block)?;
        for (offset, _) in block.iter().enumerate().rev().filter(|(_, b)| **b == b'\n') {
            // The line feed at the very end ends the last line and starts none.
            if std::mem::take(&mut last) && start + offset as u64 + 1 == end {
                continue;
            }
            *wanted -= 1;
            if *wanted == 0 {
                file.seek(SeekFrom::Start(start + offset as u64 + 1))?;
                return Ok(true);
            }
        }
        end = start;
    }
    file.seek(SeekFrom::Start(0))?;
    *wanted -= 1;
    Ok(*wanted == 0)
}

fn parse(line: &[u8]) -> Option<Record> {
    let (time, rest) = (line.get(..TEXT_BYTES)?, line.get(TEXT_BYTES + 1..)?);
    let mut words = rest.splitn(3, |&b| b == b' ');
    let stream = Stream::named(std::str::from_utf8(words.next()?).ok()?)?;
    let partial = words.next()? == b"P";
    let line = String::from_utf8_lossy(words.next()?).into_owned();
    Some(Record { time: std::str::from_utf8(time).ok()?.to_owned(), stream, partial, line })
}

#[cfg(test)]
mod tests {
    use super::super::LogWriter;
    use super::*;
    use crate::spec::LogLimits;

    fn writer(dir: &Path, max_bytes: u64, files: u32) -> (PathBuf, LogWriter) {
        let log = dir.join("sub/d.log");
        let writer = LogWriter::open(&log, LogLimits { max_bytes, files }).expect("open");
        (log, writer)
    }

    fn lines(log: &Path, query: &LogQuery) -> Vec<String> {
        let mut reader = LogReader::open(log, query).expect("open");
        std::iter::from_fn(|| reader.next_record().expect("read")).map(|r| r.line).collect()
    }

    #[test]
    fn lines_come_back_with_stream_and_time() {
        let dir = tempfile::tempdir().expect("dir");
        let (log, mut writer) = writer(dir.path(), 1 << 20, 2);
        writer.output(Stream::Stdout, b"one\ntw");
        writer.output(Stream::Stderr, b"oops\xff\n");
        writer.output(Stream::Stdout, b"o\n\nend");
        writer.finish();
        let mut reader = LogReader::open(&log, &LogQuery::default()).expect("open");
        let records: Vec<Record> = std::iter::from_fn(|| reader.next_record().expect("read")).collect();
        let seen: Vec<(Stream, &str)> = records.iter().map(|r| (r.stream, r.line.as_str())).collect();
        let (out, err) = (Stream::Stdout, Stream::Stderr);
        assert_eq!(seen, [(out, "one"), (err, "oops\u{fffd}"), (out, "two"), (out, ""), (out, "end")]);
        assert!(records.is_sorted_by(|a, b| a.time <= b.time));
    }

    /// Nothing is written any more, and who waits for more learns nevertheless that nobody reads
    /// what it passes on.
    #[test]
    fn who_follows_is_told_when_its_own_reader_has_gone() {
        let dir = tempfile::tempdir().expect("dir");
        let (log, mut writer) = writer(dir.path(), 4096, 2);
        writer.output(Stream::Stdout, b"one\n");
        let query = LogQuery { follow: true, ..LogQuery::default() };
        let long = Duration::from_secs(60);
        let (read, write) = std::io::pipe().expect("a pipe");
        let (here, there) = std::os::unix::net::UnixStream::pair().expect("two sockets");
        let file = File::create(dir.path().join("out")).expect("a file");
        for (out, reader) in [
            (OwnedFd::from(write), Some(OwnedFd::from(read))),
            (here.into(), Some(there.into())),
            (file.into(), None),
        ] {
            let mut follower = LogReader::open(&log, &query).expect("open");
            assert_eq!(follower.next_record().expect("read").map(|r| r.line).as_deref(), Some("one"));
            assert_eq!(
                follower.wait_for(Duration::ZERO, &out).expect("wait"),
                Waited::More,
                "it can be read"
            );
            if reader.is_some() {
                drop(reader);
                assert_eq!(follower.wait_for(long, &out).expect("wait"), Waited::ReaderGone);
            }
        }
    }

    /// `logs -f` once went on for ever after `down`: the watched folder was gone, and nobody
    /// looked.
    #[test]
    fn following_ends_when_the_log_is_removed_and_all_was_read() {
        let dir = tempfile::tempdir().expect("dir");
        let (log, mut writer) = writer(dir.path(), 4096, 2);
        writer.output(Stream::Stdout, b"one\n");
        let mut follower =
            LogReader::open(&log, &LogQuery { follow: true, ..LogQuery::default() }).expect("open");
        assert_eq!(follower.next_record().expect("read").map(|r| r.line).as_deref(), Some("one"));
        writer.output(Stream::Stdout, b"last\n");
        std::fs::remove_dir_all(log.parent().expect("a folder")).expect("removed");
        let out = File::create(dir.path().join("out")).expect("a file");
        let long = Duration::from_secs(60);
        assert_eq!(follower.wait_for(long, &out).expect("wait"), Waited::More, "one line is left");
        assert_eq!(follower.next_record().expect("read").map(|r| r.line).as_deref(), Some("last"));
        assert_eq!(follower.wait_for(Duration::ZERO, &out).expect("wait"), Waited::LogGone);
    }

    /// `logs -n 3` of a domain that writes faster than it is read once printed more than a thousand
    /// lines.
    #[test]
    fn what_is_written_meanwhile_is_not_among_the_last_lines() {
        let dir = tempfile::tempdir().expect("dir");
        let (log, mut writer) = writer(dir.path(), 1 << 20, 2);
        for (tail, wanted) in [(Some(3), "7 8 9"), (None, "0 1 2 3 4 5 6 7 8 9")] {
            (0..10).for_each(|i| writer.output(Stream::Stdout, format!("{i}\n").as_bytes()));
            let mut reader = LogReader::open(&log, &LogQuery { tail, ..LogQuery::default() }).expect("open");
            let seen = std::iter::from_fn(|| {
                writer.output(Stream::Stdout, b"more\n");
                reader.next_record().expect("read").map(|record| record.line)
            });
            assert_eq!(seen.take(20).collect::<Vec<_>>().join(" "), wanted);
            std::fs::write(&log, "").expect("emptied");
        }
    }

    #[test]
    fn only_what_lies_between_two_moments_is_wanted() {
        let dir = tempfile::tempdir().expect("dir");
        let (log, mut writer) = writer(dir.path(), 1 << 20, 2);
        writer.output(Stream::Stdout, b"one\n");
        let between = SystemTime::now() + Duration::from_secs(3600);
        let none = Vec::<String>::new();
        let query = LogQuery { until: Some(between), ..LogQuery::default() };
        assert_eq!(lines(&log, &query), ["one"]);
        assert_eq!(lines(&log, &LogQuery { since: Some(between), ..LogQuery::default() }), none);
        let before = Some(SystemTime::UNIX_EPOCH);
        assert_eq!(lines(&log, &LogQuery { until: before, ..LogQuery::default() }), none);
    }

    #[test]
    fn a_huge_line_is_split_and_can_be_put_together_again() {
        let dir = tempfile::tempdir().expect("dir");
        let (log, mut writer) = writer(dir.path(), 1 << 20, 2);
        let long: Vec<u8> = (0..3 * MAX_LINE_BYTES + 5).map(|i| b'a' + (i % 23) as u8).collect();
        long.chunks(1000).for_each(|c| writer.output(Stream::Stdout, c));
        writer.output(Stream::Stdout, b"\nnext\n");
        let mut reader = LogReader::open(&log, &LogQuery::default()).expect("open");
        let mut joined = String::new();
        loop {
            let record = reader.next_record().expect("read").expect("a record");
            joined.push_str(&record.line);
            if !record.partial {
                break;
            }
        }
        assert_eq!(joined.as_bytes(), long);
        assert_eq!(reader.next_record().expect("read").map(|r| r.line).as_deref(), Some("next"));
    }

    #[test]
    fn rotation_bounds_the_disk_and_tail_looks_across_files() {
        let dir = tempfile::tempdir().expect("dir");
        let (log, mut writer) = writer(dir.path(), 4096, 3);
        for i in 0..1000 {
            writer.output(Stream::Stdout, format!("line {i}\n").as_bytes());
        }
        let sizes: Vec<u64> = std::fs::read_dir(log.parent().expect("parent"))
            .expect("list")
            .map(|e| e.expect("entry").metadata().expect("metadata").len())
            .collect();
        assert_eq!(sizes.len(), 3);
        assert!(sizes.iter().all(|&s| s <= 4096), "{sizes:?}");
        for tail in [0, 1, 7, 90, 150] {
            let got = lines(&log, &LogQuery { tail: Some(tail), ..LogQuery::default() });
            let wanted: Vec<String> = (1000 - tail..1000).map(|i| format!("line {i}")).collect();
            assert_eq!(got, wanted, "tail {tail}");
        }
        let all = lines(&log, &LogQuery { tail: Some(100_000), ..LogQuery::default() });
        assert_eq!(all, lines(&log, &LogQuery::default()));
        assert_eq!(all.last().map(String::as_str), Some("line 999"));
    }

    #[test]
    fn following_sees_everything_across_rotations() {
        let dir = tempfile::tempdir().expect("dir");
        let (log, mut writer) = writer(dir.path(), 4096, 3);
        let mut reader =
            LogReader::open(&log, &LogQuery { follow: true, ..LogQuery::default() }).expect("open");
        let mut seen = 0;
        for i in 0..2000 {
            writer.output(Stream::Stdout, format!("line {i}\n").as_bytes());
            if i % 37 == 0 {
                assert!(reader.wait(Duration::from_secs(10)).expect("wait"), "no event after a write");
                while let Some(record) = reader.next_record().expect("read") {
                    assert_eq!(record.line, format!("line {seen}"));
                    seen += 1;
                }
                assert_eq!(seen, i + 1);
            }
        }
    }

    #[test]
    fn since_leaves_out_what_was_before() {
        let dir = tempfile::tempdir().expect("dir");
        let (log, mut writer) = writer(dir.path(), 1 << 20, 1);
        writer.output(Stream::Stdout, b"old\n");
        let since = SystemTime::now() + Duration::from_nanos(1);
        while SystemTime::now() <= since {}
        writer.output(Stream::Stdout, b"new\n");
        assert_eq!(lines(&log, &LogQuery { since: Some(since), ..LogQuery::default() }), ["new"]);
        assert!(lines(&dir.path().join("absent.log"), &LogQuery::default()).is_empty());
    }
}
