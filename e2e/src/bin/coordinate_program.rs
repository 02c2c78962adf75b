//! A program that does all that the crate `coordinate` does, and says "all of it" where each came
//! out as it has to. `coordinate_program hold NAME`: says the token of a lock, and holds it until
//! its input ends.

use coordinate::{Sync, Wait};
use rustix::io::Errno;
use std::io::{self, Write};
use std::time::Duration;

const SOON: Wait = Wait::For(Duration::from_millis(100));
const LONG: Wait = Wait::For(Duration::from_secs(60));

fn refused<T: std::fmt::Debug>(errno: Errno, result: io::Result<T>) {
    let error = result.expect_err("it is refused");
    assert_eq!(Errno::from_io_error(&error), Some(errno), "{error}");
}

fn is_kind<T: std::fmt::Debug>(kind: io::ErrorKind, result: io::Result<T>) {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind(), kind, "{error}");
}

fn keys(sync: &Sync) -> io::Result<()> {
    let most = vec![7; 32 << 10];
    for value in [&b"blue"[..], b"", b" a b ", b"two\nlines\n", b"\xff\0", &most] {
        let revision = sync.put("config/colour", value)?;
        let entry = sync.get("config/colour")?.expect("a key");
        assert_eq!((entry.value.as_slice(), entry.revision), (value, revision));
        assert!(sync.swap("config/colour", revision, value)? > revision);
        refused(Errno::STALE, sync.swap("config/colour", revision, value));
    }
    refused(Errno::FBIG, sync.put("config/colour", &vec![7; (32 << 10) + 1]));
    assert_eq!(sync.get("config/none")?, None);
    for value in [&b"text"[..], b"\n"] {
        refused(Errno::EXIST, sync.swap("config/colour", 0, value));
        refused(Errno::STALE, sync.swap("config/none", 7, value));
    }
    let first = sync.swap("config/new", 0, b"one")?;
    let names = sync.keys("config/")?.into_iter().map(|key| key.name);
    assert_eq!(names.collect::<Vec<_>>(), ["config/colour", "config/new"]);
    refused(Errno::STALE, sync.remove("config/new", Some(first + 1000)));
    assert!(sync.remove("config/new", Some(first))? && !sync.remove("config/new", None)?);
    is_kind(io::ErrorKind::InvalidInput, sync.get("a/../../ctl"));
    let mut watch = sync.watch("kv/members/")?;
    let mut lease = sync.lease()?;
    lease.put("members/me", "here")?;
    is_kind(io::ErrorKind::InvalidInput, lease.put("members/other", "two\nlines"));
    assert!(sync.get("members/me")?.is_some());
    drop(lease);
    // close(2) returns before the service has heard of it.
    while watch.read(LONG)?.what != "rm" {}
    assert_eq!(sync.get("members/me")?, None);
    let mut watch = sync.watch("kv/watched/")?;
    assert_eq!(watch.read(LONG)?.what, "now");
    sync.put("watched/a", b"1")?;
    sync.remove("watched/a", None)?;
    let seen = [watch.read(LONG)?, watch.read(LONG)?];
    assert_eq!(seen.each_ref().map(|change| change.what.as_str()), ["put", "rm"]);
    is_kind(io::ErrorKind::TimedOut, watch.read(SOON));
    Ok(())
}

fn locks(sync: &Sync) -> io::Result<()> {
    let held = sync.lock("paper", LONG)?;
    refused(Errno::AGAIN, sync.lock("paper", Wait::Not));
    is_kind(io::ErrorKind::TimedOut, sync.lock("paper", SOON));
    let token = held.token();
    drop(held);
    assert!(sync.lock("paper", LONG)?.token() > token);
    drop(sync.lock("unused", Wait::Not)?);
    let places = [sync.semaphore("seats", Some(2), LONG)?, sync.semaphore("seats", None, LONG)?];
    refused(Errno::AGAIN, sync.semaphore("seats", None, Wait::Not));
    drop(places);
    let pass = || sync.barrier("step", Some(3), LONG);
    let passed = std::thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(pass));
        threads.map(|thread| thread.join().expect("it ends"))
    });
    let [first, second, third] = passed;
    let first = first?;
    assert_eq!((second?, third?), (first, first));
    is_kind(io::ErrorKind::TimedOut, sync.barrier("step", Some(3), SOON));
    Ok(())
}

fn queues(sync: &Sync) -> io::Result<()> {
    let work = sync.queue("work");
    work.make(2, true)?;
    work.push(b"one\n", Wait::Ever)?;
    work.push(b"two", Wait::Not)?;
    refused(Errno::AGAIN, work.push(b"three", Wait::Not));
    is_kind(io::ErrorKind::InvalidInput, work.push(b"", Wait::Ever));
    assert_eq!(work.take(LONG)?.done()?, b"one\n");
    drop(work.take(LONG)?);
    assert_eq!(work.take(LONG)?.done()?, b"two", "what was dropped comes back");
    refused(Errno::AGAIN, work.take(Wait::Not));
    is_kind(io::ErrorKind::TimedOut, work.take(SOON));
    Ok(())
}

fn main() -> io::Result<()> {
    let sync = Sync::of_domain()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, name] = words.as_slice()
        && word == "hold"
    {
        let held = sync.lock(name, LONG)?;
        let mut out = io::stdout();
        writeln!(out, "{}", held.token())?;
        out.flush()?;
        io::copy(&mut io::stdin(), &mut io::sink())?;
        return Ok(());
    }
    keys(&sync)?;
    locks(&sync)?;
    queues(&sync)?;
    println!("all of it");
    Ok(())
}
