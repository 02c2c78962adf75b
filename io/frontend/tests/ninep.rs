//! The same operations on a mount and by 9P, one beside the other; and clients of 9P that
//! misbehave.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

mod bed;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use bed::ninep::{Client, ROOT_FID, message, string};
use bed::{Bed, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use serde_json::Value;

const READ_ONLY: u32 = 0;
const WRITE_ONLY: u32 = 1;
const READ_WRITE: u32 = 2;
const CREATE: u32 = 0o100;
const EXCLUSIVE: u32 = 0o200;
const TRUNCATE: u32 = 0o1000;
const APPEND: u32 = 0o2000;
const DIRECTORY: u32 = 0o200_000;

#[test]
#[ignore = "the other process of every test here"]
fn the_frontend_process() {
    bed::be_the_frontend();
}

/// Drops the capabilities beyond permission bits, which a domain's root lacks unless its topology
/// grants them.
fn be_a_domains_root() {
    let mut sets = capabilities(None).unwrap();
    sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER;
    set_capabilities(None, sets).unwrap();
}

/// One way to look at the tree.
enum View {
    Mount(PathBuf),
    Ninep(Client),
}

type Done<T> = Result<T, i32>;

fn errno<T>(result: std::io::Result<T>) -> Done<T> {
    result.map_err(|error| error.raw_os_error().unwrap_or(-1))
}

/// The folder of a path and its last name.
fn split(path: &str) -> (&str, &[u8]) {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    (folder, name.as_bytes())
}

impl View {
    fn stat(&mut self, path: &str) -> Done<[u64; 8]> {
        match self {
            Self::Mount(srv) => {
                let it = errno(std::fs::metadata(srv.join(path)))?;
                let (mode, uid, gid) = (it.mode().into(), it.uid().into(), it.gid().into());
                Ok([it.ino(), mode, uid, gid, it.nlink(), it.size(), it.blocks(), it.mtime() as u64])
            }
            Self::Ninep(client) => client.with(path, |client, fid| {
                let body = client.ask(24, &[&fid.to_le_bytes(), &u64::MAX.to_le_bytes()])?;
                let short = |at: usize| u64::from(u32::from_le_bytes(body[at..at + 4].try_into().unwrap()));
                let long = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
                assert_eq!((body.len(), long(0)), (153, 0x7ff));
                let (mode, uid, gid) = (short(21), short(25), short(29));
                Ok([long(13), mode, uid, gid, long(33), long(49), long(65), long(89)])
            }),
        }
    }

    fn list(&mut self, path: &str) -> Done<BTreeSet<Vec<u8>>> {
        match self {
            Self::Mount(srv) => {
                let names = errno(std::fs::read_dir(srv.join(path)))?;
                let mut all: BTreeSet<Vec<u8>> =
                    names.map(|entry| entry.unwrap().file_name().into_vec()).collect();
                all.extend([b".".to_vec(), b"..".to_vec()]);
                Ok(all)
            }
            Self::Ninep(client) => client.with(path, |client, fid| {
                client.open(fid, READ_ONLY | DIRECTORY)?;
                client.list(fid)
            }),
        }
    }

    fn cat(&mut self, path: &str) -> Done<Vec<u8>> {
        match self {
            Self::Mount(srv) => errno(std::fs::read(srv.join(path))),
            Self::Ninep(client) => client.with(path, |client, fid| {
                client.open(fid, READ_ONLY)?;
                client.read_all(fid)
            }),
        }
    }

    /// Opens, and does nothing.
    fn open(&mut self, path: &str, flags: u32) -> Done<()> {
        match self {
            Self::Mount(srv) => {
                let flags = rustix::fs::OFlags::from_bits_retain(flags);
                let opened = rustix::fs::open(srv.join(path), flags, rustix::fs::Mode::empty());
                opened.map(drop).map_err(rustix::io::Errno::raw_os_error)
            }
            Self::Ninep(client) => client.with(path, |client, fid| client.open(fid, flags).map(drop)),
        }
    }

    /// Opens with these flags, and writes at an offset: how much.
    fn put(&mut self, path: &str, flags: u32, offset: u64, data: &[u8]) -> Done<u64> {
        match self {
            Self::Mount(srv) => {
                let mut options = OpenOptions::new();
                options.write(true).custom_flags((flags & !3).cast_signed());
                let mut file = errno(options.open(srv.join(path)))?;
                let count = if offset == 0 { file.write(data) } else { file.write_at(data, offset) };
                errno(count).map(|count| count as u64)
            }
            Self::Ninep(client) => client.with(path, |client, fid| {
                client.open(fid, WRITE_ONLY | flags)?;
                let body = client.write(fid, offset, data)?;
                Ok(u32::from_le_bytes(body[..4].try_into().unwrap()).into())
            }),
        }
    }

    /// Asks a session, and reads until it has no more to say.
    fn converse(&mut self, path: &str, lines: &[u8]) -> Done<Vec<Done<Vec<u8>>>> {
        let mut answers = Vec::new();
        match self {
            Self::Mount(srv) => {
                let mut file = errno(OpenOptions::new().read(true).write(true).open(srv.join(path)))?;
                errno(file.write_all(lines))?;
                let mut buffer = vec![0; 4096];
                loop {
                    match errno(file.read(&mut buffer)) {
                        Ok(0) => return Ok(answers),
                        read => answers.push(read.map(|count| buffer[..count].to_vec())),
                    }
                }
            }
            Self::Ninep(client) => client.with(path, |client, fid| {
                client.open(fid, READ_WRITE)?;
                client.write(fid, 0, lines)?;
                loop {
                    match client.read(fid, 0, 4096) {
                        Ok(end) if end.is_empty() => return Ok(answers),
                        read => answers.push(read),
                    }
                }
            }),
        }
    }

    fn create(&mut self, path: &str, flags: u32, mode: u32) -> Done<()> {
        match self {
            Self::Mount(srv) => {
                let flags = rustix::fs::OFlags::from_bits_retain(WRITE_ONLY | CREATE | flags);
                let mode = rustix::fs::Mode::from_raw_mode(mode);
                let opened = rustix::fs::open(srv.join(path), flags, mode);
                opened.map(drop).map_err(rustix::io::Errno::raw_os_error)
            }
            Self::Ninep(client) => {
                let (folder, name) = split(path);
                let flags = WRITE_ONLY | CREATE | flags;
                client.with(folder, |client, fid| {
                    let (fid, flags, mode) = (fid.to_le_bytes(), flags.to_le_bytes(), mode.to_le_bytes());
                    client.ask(14, &[&fid, &string(name), &flags, &mode, &[0; 4]]).map(drop)
                })
            }
        }
    }

    fn mkdir(&mut self, path: &str) -> Done<()> {
        match self {
            Self::Mount(srv) => errno(std::fs::create_dir(srv.join(path))),
            Self::Ninep(client) => {
                let (folder, name) = split(path);
                let mode = 0o755_u32.to_le_bytes();
                client.with(folder, |client, fid| {
                    client.ask(72, &[&fid.to_le_bytes(), &string(name), &mode, &[0; 4]]).map(drop)
                })
            }
        }
    }

    fn remove(&mut self, path: &str, is_folder: bool) -> Done<()> {
        match self {
            Self::Mount(srv) if is_folder => errno(std::fs::remove_dir(srv.join(path))),
            Self::Mount(srv) => errno(std::fs::remove_file(srv.join(path))),
            Self::Ninep(client) => {
                let (folder, name) = split(path);
                let flags = if is_folder { 0x200_u32 } else { 0 }.to_le_bytes();
                client.with(folder, |client, fid| {
                    client.ask(76, &[&fid.to_le_bytes(), &string(name), &flags]).map(drop)
                })
            }
        }
    }

    fn rename(&mut self, path: &str, to: &str) -> Done<()> {
        match self {
            Self::Mount(srv) => errno(std::fs::rename(srv.join(path), srv.join(to))),
            Self::Ninep(client) => {
                let ((from, name), (to, new_name)) = (split(path), split(to));
                client.with(from, |client, from| {
                    client.with(to, |client, to| {
                        let (from, to) = (from.to_le_bytes(), to.to_le_bytes());
                        client.ask(74, &[&from, &string(name), &to, &string(new_name)]).map(drop)
                    })
                })
            }
        }
    }

    fn set(&mut self, path: &str, mode: Option<u32>, size: Option<u64>) -> Done<()> {
        match self {
            Self::Mount(srv) => {
                if let Some(mode) = mode {
                    errno(std::fs::set_permissions(srv.join(path), Permissions::from_mode(mode)))?;
                }
                let Some(size) = size else { return Ok(()) };
                let cut = std::ffi::CString::new(srv.join(path).into_os_string().into_vec()).unwrap();
                let file = errno(File::options().write(true).open(cut.to_str().unwrap()))?;
                errno(file.set_len(size))
            }
            Self::Ninep(client) => client.with(path, |client, fid| {
                let valid = u32::from(mode.is_some()) | if size.is_some() { 8 } else { 0 };
                let (mode, size) = (mode.unwrap_or(0), size.unwrap_or(0));
                let fields = [fid, valid, mode, 0, 0].map(u32::to_le_bytes).concat();
                client.ask(26, &[&fields, &size.to_le_bytes(), &[0; 32]]).map(drop)
            }),
        }
    }
}

/// Does the same by both views, in two folders of one tree, and compares.
struct Both([View; 2]);

impl Both {
    fn new(bed: &Bed) -> Self {
        Self([View::Mount(bed.srv()), View::Ninep(Client::new(&bed.ninep()))])
    }

    /// The result that both have. `~` in a path is a folder of each view's own.
    fn same<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &str,
        act: impl Fn(&mut View, &dyn Fn(&str) -> String) -> T,
    ) -> T {
        let [mount, ninep] = &mut self.0;
        let by_mount = act(mount, &|path| path.replace('~', "dns/mount"));
        let by_ninep = act(ninep, &|path| path.replace('~', "dns/ninep"));
        assert_eq!(by_mount, by_ninep, "{what}: on the mount, and by 9P");
        by_mount
    }
}

impl Both {
    /// As [`Both::same`], where the result is of no further interest.
    fn alike<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &str,
        act: impl Fn(&mut View, &dyn Fn(&str) -> String) -> T,
    ) {
        self.same(what, act);
    }
}

#[test]
fn attributes_listings_texts_and_refusals_are_the_same_by_both_views() {
    needs_fuse!();
    let bed = Bed::with_tree();
    be_a_domains_root();
    // The kernel knows the folder's mode of before its service was there, for a second.
    until("the export shows", || bed.srv().join("dns").metadata().unwrap().mode() & 0o777 == 0o777);
    let mut both = Both::new(&bed);
    for path in [
        "",
        "self",
        "dns",
        "self/name",
        "self/quality",
        "dns/query",
        "dns/ctl",
        "dns/count",
        "none",
        "dns/none",
        "self/name/x",
    ] {
        // A size of what is made when it is opened is the same for all.
        both.alike(path, |view, _| view.stat(path).map_err(|errno| if errno == 20 { 2 } else { errno }));
        both.alike(path, |view, _| {
            view.list(path).map_err(|errno| if errno == 20 && path == "self/name/x" { 2 } else { errno })
        });
    }
    assert!(both.same("name", |view, _| view.cat("self/name")).is_ok());
    both.same("services", |view, _| view.cat("self/services")).unwrap();
    for path in
        ["self/name", "self/quality", "dns/status", "dns/query", "dns/count", "dns/sink", "dns", "self"]
    {
        for flags in [READ_ONLY, WRITE_ONLY, READ_WRITE, WRITE_ONLY | TRUNCATE, READ_ONLY | DIRECTORY] {
            both.alike(&format!("open {path} {flags:o}"), |view, _| view.open(path, flags));
        }
    }
    for path in ["x", "self/x", "self/name"] {
        both.alike(path, |view, _| view.create(path, EXCLUSIVE, 0o644));
        both.alike(path, |view, _| view.mkdir(path));
        both.alike(path, |view, _| view.remove(path, false));
        both.alike(path, |view, _| view.remove(path, true));
        both.alike(path, |view, _| view.set(path, Some(0o600), None));
    }
    both.same("rename", |view, _| view.rename("self/name", "self/other")).unwrap_err();
    both.same("quality", |view, _| view.put("self/quality", 0, 0, b"2.5\n")).unwrap();
    both.same("quality", |view, _| view.put("self/quality", 0, 0, b"much\n")).unwrap_err();
}

#[test]
fn sessions_controls_and_files_behave_the_same_by_both_views() {
    needs_fuse!();
    let bed = Bed::with_tree();
    be_a_domains_root();
    let mut both = Both::new(&bed);
    let said = both.same("session", |view, _| view.converse("dns/query", b"one\ntwo\nthree"));
    assert_eq!(said.unwrap().len(), 3);
    both.same("a NUL", |view, _| view.put("dns/query", 0, 0, b"a\0b\n")).unwrap_err();
    both.same("long", |view, _| view.put("dns/query", 0, 0, &[b'x'; 70_000])).unwrap_err();
    both.alike("control", |view, _| view.put("dns/ctl", 0, 0, b"timeout 5\n"));
    both.alike("control", |view, _| view.cat("dns/ctl"));
    both.same("mkdir", |view, at| view.mkdir(&at("~"))).unwrap();
    both.same("again", |view, at| view.mkdir(&at("~"))).unwrap_err();
    both.same("create", |view, at| view.create(&at("~/a"), EXCLUSIVE, 0o444)).unwrap();
    both.same("twice", |view, at| view.create(&at("~/a"), EXCLUSIVE, 0o644)).unwrap_err();
    both.same("closed", |view, at| view.put(&at("~/a"), 0, 0, b"x")).unwrap_err();
    both.same("chmod", |view, at| view.set(&at("~/a"), Some(0o644), None)).unwrap();
    both.same("write", |view, at| view.put(&at("~/a"), 0, 0, b"hello, world")).unwrap();
    both.same("at", |view, at| view.put(&at("~/a"), 0, 5, b"!")).unwrap();
    assert_eq!(both.same("read", |view, at| view.cat(&at("~/a"))), Ok(b"hello! world".to_vec()));
    both.same("cut", |view, at| view.set(&at("~/a"), None, Some(5))).unwrap();
    both.same("append", |view, at| view.put(&at("~/a"), APPEND, 5, b"+")).unwrap();
    both.same("read", |view, at| view.cat(&at("~/a"))).unwrap();
    both.same("stat", |view, at| view.stat(&at("~/a")).map(|it| it[1..].to_vec())).unwrap();
    both.same("rmdir", |view, at| view.remove(&at("~"), true)).unwrap_err();
    both.same("not a folder", |view, at| view.remove(&at("~/a"), true)).unwrap_err();
    both.same("a folder", |view, at| view.remove(&at("~"), false)).unwrap_err();
    both.same("rename", |view, at| view.rename(&at("~/a"), &at("~/b"))).unwrap();
    both.same("gone", |view, at| view.rename(&at("~/a"), &at("~/b"))).unwrap_err();
    both.same("below itself", |view, at| view.rename(&at("~"), &at("~/c"))).unwrap_err();
    both.same("across", |view, at| view.rename(&at("~/b"), "self/b")).unwrap_err();
    both.same("list", |view, at| view.list(&at("~"))).unwrap();
    both.same("truncate", |view, at| view.open(&at("~/b"), WRITE_ONLY | TRUNCATE)).unwrap();
    assert_eq!(both.same("empty", |view, at| view.cat(&at("~/b"))), Ok(Vec::new()));
    both.same("long name", |view, at| view.mkdir(&format!("{}/{}", at("~"), "x".repeat(256)))).unwrap_err();
    both.same("unlink", |view, at| view.remove(&at("~/b"), false)).unwrap();
    both.same("rmdir", |view, at| view.remove(&at("~"), true)).unwrap();
}

fn counter(client: &mut Client, name: &str) -> u64 {
    let text = client.with("self/counters", |client, fid| {
        client.open(fid, READ_ONLY)?;
        client.read_all(fid)
    });
    let counters: Value = serde_json::from_slice(&text.unwrap()).unwrap();
    counters[name].as_u64().unwrap()
}

#[test]
fn a_flush_ends_a_read_that_waits_and_others_go_on_meanwhile() {
    needs_fuse!();
    let bed = Bed::with_tree();
    let mut client = Client::new(&bed.ninep());
    let fid = client.walk("dns/count").unwrap();
    client.open(fid, READ_ONLY).unwrap();
    let fields = [&fid.to_le_bytes()[..], &[0; 8], &100_u32.to_le_bytes()].concat();
    client.send(&message(116, 7, &[&fields]));
    // Others are answered while it waits.
    let mut other = Client::new(&bed.ninep());
    until("the read waits", || counter(&mut other, "parked_calls") == 1);
    assert_eq!(client.with("self/name", |client, fid| client.open(fid, READ_ONLY)).map(drop), Ok(()));
    client.send(&message(108, 8, &[&7_u16.to_le_bytes()]));
    // Only the flush is answered.
    assert_eq!(client.receive(), Some((109, 8, Vec::new())));
    assert_eq!(counter(&mut other, "parked_calls"), 0);
    // Its tag is free. What is not under way can be flushed as well.
    client.send(&message(116, 7, &[&fields]));
    client.send(&message(108, 9, &[&77_u16.to_le_bytes()]));
    assert_eq!(client.receive(), Some((109, 9, Vec::new())));
    // A client that goes leaves nothing open or waiting.
    drop(client);
    until("all is closed", || {
        counter(&mut other, "open_files") == 0 && counter(&mut other, "parked_calls") == 0
    });
}

#[test]
fn what_is_no_9p_ends_its_connection_alone() {
    needs_fuse!();
    let bed = Bed::with_tree();
    let mut other = Client::new(&bed.ninep());
    let tag = message(116, 3, &[&[0; 16]]);
    let walk = [&ROOT_FID.to_le_bytes()[..], &5_u32.to_le_bytes(), &[17, 0]].concat();
    let cases: [(&str, bool, Vec<u8>); 9] = [
        ("garbage", false, vec![0xff; 64]),
        ("text", false, b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("too small a size", true, vec![6, 0, 0, 0, 0, 0, 0]),
        ("too great a size", true, vec![0xff; 7]),
        ("early", false, message(104, 1, &[&[0; 20]])),
        ("no request", true, message(99, 1, &[])),
        ("short", true, message(120, 1, &[&[0; 3]])),
        ("a long walk", true, message(110, 1, &[&walk])),
        ("no tag", true, [message(116, u16::MAX, &[&[0; 16]]), tag].concat()),
    ];
    for (what, agreed, bytes) in cases {
        let mut client = if agreed { Client::new(&bed.ninep()) } else { Client::raw(&bed.ninep()) };
        client.send(&bytes);
        assert_eq!(client.receive(), None, "{what}");
        assert!(counter(&mut other, "requests") > 0, "{what}");
    }
    // Two requests under way with one tag.
    let mut client = Client::new(&bed.ninep());
    let fid = client.walk("dns/count").unwrap();
    client.open(fid, READ_ONLY).unwrap();
    let read = message(116, 7, &[&fid.to_le_bytes(), &[0; 8], &100_u32.to_le_bytes()]);
    client.send(&[read.clone(), read].concat());
    assert_eq!(client.receive(), None);
    until("it is gone", || {
        counter(&mut other, "parked_calls") == 0 && counter(&mut other, "open_files") == 0
    });
    // A message length that is too short to be of use; a version that is none.
    let mut client = Client::raw(&bed.ninep());
    client.send(&message(100, u16::MAX, &[&100_u32.to_le_bytes(), &string(b"9P2000.L")]));
    assert_eq!(client.receive(), Some((7, u16::MAX, 90_u32.to_le_bytes().to_vec())));
    client.send(&message(100, u16::MAX, &[&8192_u32.to_le_bytes(), &string(b"9P2000.u")]));
    assert!(client.receive().is_some_and(|(_, _, body)| body.ends_with(b"unknown")));
    assert_eq!(client.version(u32::MAX), 128 * 1024 + 24);
}

#[test]
fn fids_connections_requests_and_answers_have_bounds() {
    needs_fuse!();
    let bed = Bed::with_tree();
    let mut other = Client::new(&bed.ninep());
    let mut client = Client::new(&bed.ninep());
    let made = (0..10_000).map(|_| client.walk("self/name")).collect::<Vec<_>>();
    assert_eq!(made.iter().filter(|fid| fid.is_ok()).count(), 4095);
    assert!(made.iter().all(|fid| fid.is_ok() || *fid == Err(24)));
    assert!(counter(&mut other, "requests") > 0);
    // Reads that wait, more than there may be: the others are refused, and a flush is heard.
    client.version(8192);
    let mut client = Client::new(&bed.ninep());
    let fid = client.walk("dns/count").unwrap();
    client.open(fid, READ_ONLY).unwrap();
    let read = |tag| message(116, tag, &[&fid.to_le_bytes(), &[0; 8], &100_u32.to_le_bytes()]);
    client.send(&(0..300).flat_map(read).collect::<Vec<u8>>());
    for tag in 256..300 {
        assert_eq!(client.receive(), Some((7, tag, 11_u32.to_le_bytes().to_vec())));
    }
    client.send(&message(108, 999, &[&5_u16.to_le_bytes()]));
    assert_eq!(client.receive(), Some((109, 999, Vec::new())));
    // A client that asks and never reads is not heard any more; others are.
    let mut deaf = Client::new(&bed.ninep());
    deaf.stream.set_nonblocking(true).unwrap();
    let list = message(24, 1, &[&ROOT_FID.to_le_bytes(), &[0; 8]]);
    let mut sent = 0_u64;
    let mut tag = 0_u16;
    loop {
        let mut one = list.clone();
        one[5..7].copy_from_slice(&tag.to_le_bytes());
        tag = (tag + 1) % 5000;
        match deaf.stream.write(&one) {
            Ok(_) => sent += 1,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                // Full: it is behind, or it listens no more.
                let mut room = [PollFd::new(&deaf.stream, PollFlags::OUT)];
                let patience = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
                if poll(&mut room, Some(&patience)).unwrap() == 0 {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    assert!(sent > 1000, "{sent}");
    assert!(counter(&mut other, "requests") > sent);
    // So many at a time, and no more.
    let mut all: Vec<Client> = (0..12).map(|_| Client::new(&bed.ninep())).collect();
    let mut late = Client::raw(&bed.ninep());
    assert_eq!(late.receive(), None);
    all.clear();
    until("there is room again", || {
        let mut again = Client::raw(&bed.ninep());
        let hello = message(100, u16::MAX, &[&8192_u32.to_le_bytes(), &string(b"9P2000.L")]);
        std::io::Write::write_all(&mut again.stream, &hello).is_ok() && again.receive().is_some()
    });
}

#[test]
fn a_successor_serves_new_clients_and_keeps_nothing_of_the_old() {
    needs_fuse!();
    let mut bed = Bed::with_tree();
    let mut client = Client::new(&bed.ninep());
    let fid = client.walk("dns/query").unwrap();
    client.open(fid, READ_WRITE).unwrap();
    bed.kill();
    assert_eq!(client.receive(), None);
    bed.start(true);
    let mut client = Client::new(&bed.ninep());
    assert_eq!(counter(&mut client, "takeovers"), 1);
    assert_eq!(counter(&mut client, "open_files"), 0);
}
