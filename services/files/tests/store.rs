//! A store, used by a hostile hand: what is in the directory, what is counted, what the next server
//! knows.

use files::{Kind, Limits, OpenError, Store};
use rustix::io::Errno;
use service::ROOT;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wire::service::{Attributes, XattrChange, XattrOperation};

const PLENTY: Limits = Limits { bytes: 1 << 30, inodes: 200_000 };

fn store(at: &Path, limits: Limits) -> Store {
    Store::open(at, limits).expect("a store")
}

fn fresh() -> (TempDir, Store) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path(), PLENTY);
    (folder, store)
}

fn make(store: &mut Store, folder: u32, name: &str, bytes: &[u8]) -> u32 {
    let serial = store.create(folder, name.as_bytes(), 0o644).expect("made").serial;
    assert_eq!(store.write(serial, Some(0), bytes), Ok(bytes.len()));
    serial
}

fn all(store: &mut Store, folder: u32) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    store
        .list(folder, 0, |place, name, _| {
            all.push((place, String::from_utf8_lossy(name).into_owned()));
            true
        })
        .expect("a listing");
    all
}

fn size(bytes: u64) -> Attributes {
    Attributes { size: Some(bytes), ..Attributes::default() }
}

#[test]
fn files_folders_and_names_are_those_of_the_directory() {
    let (at, mut store) = fresh();
    let folder = store.make_folder(ROOT, b"a", 0o750).expect("made");
    assert!(folder.kind == Kind::Folder && folder.mode == 0o750);
    let file = make(&mut store, folder.serial, "f", b"hello");
    assert_eq!(fs::read(at.path().join("a/f")).expect("there"), b"hello");
    assert_eq!(store.lookup(folder.serial, b"f").expect("there").serial, file);
    assert_eq!(store.read(file, 1, 100).expect("read"), b"ello");
    assert_eq!(store.create(folder.serial, b"f", 0o644).expect_err("taken"), Errno::EXIST);
    assert_eq!(store.lookup(ROOT, b"b").expect_err("none"), Errno::NOENT);
    assert_eq!(store.unlink(ROOT, b"a").expect_err("a folder"), Errno::ISDIR);
    assert_eq!(store.remove_folder(ROOT, b"a").expect_err("full"), Errno::NOTEMPTY);
    // Any bytes are a name.
    let odd: &[u8] = b"\xff\x01 \n*";
    store.create(ROOT, odd, 0o600).expect("made");
    assert_eq!(store.lookup(ROOT, odd).expect("there").mode, 0o600);
    for bad in [&b""[..], b".", b"..", b"a/b", b"/etc/passwd", b"../x"] {
        assert_eq!(store.create(ROOT, bad, 0o644).expect_err("no name"), Errno::INVAL, "{bad:?}");
    }
    assert_eq!(store.create(ROOT, &[b'x'; 256], 0o644).expect_err("too long"), Errno::NAMETOOLONG);
    // A time, a mode, a size, a hole.
    let changed = Attributes { mode: Some(0o400), changed: Some((1_000, 7)), size: Some(1 << 40) };
    let told = store.set(file, &changed).expect("set");
    assert_eq!((told.mode, told.changed, told.size), (0o400, (1_000, 7), 1 << 40));
    assert!(store.read(file, 1 << 39, 4096).expect("a hole").iter().all(|&byte| byte == 0));
    assert!(store.taken().bytes < 1 << 20, "{:?}", store.taken());
    // Privileges can't be made by modes.
    let mode = Attributes { mode: Some(0o7777), ..Attributes::default() };
    assert_eq!(store.set(file, &mode).expect("set").mode, 0o777);
    assert_eq!(fs::metadata(at.path().join("a/f")).expect("there").mode() & 0o7777, 0o777);
}

#[test]
fn two_that_append_lose_nothing_and_one_that_truncates_does() {
    let (_at, mut store) = fresh();
    let file = make(&mut store, ROOT, "log", b"");
    for round in 0..100_u8 {
        assert_eq!(store.write(file, None, &[round; 7]), Ok(7));
        assert_eq!(store.write(file, None, &[round; 5]), Ok(5));
    }
    assert_eq!(store.stat(file).expect("there").size, 1_200);
    store.set(file, &size(3)).expect("shorter");
    assert_eq!(store.read(file, 0, 100).expect("read"), [0, 0, 0]);
}

#[test]
fn what_is_open_outlives_its_name_until_it_is_closed() {
    let (at, mut store) = fresh();
    let file = make(&mut store, ROOT, "f", b"kept");
    store.opened(file).expect("open");
    store.opened(file).expect("open");
    store.unlink(ROOT, b"f").expect("unlinked");
    assert!(!at.path().join("f").exists());
    assert_eq!(store.stat(file).expect("open").links, 0);
    assert_eq!(store.read(file, 0, 9).expect("read"), b"kept");
    assert_eq!(store.write(file, Some(4), b"on"), Ok(2));
    // A new file of the name is another one.
    let other = make(&mut store, ROOT, "f", b"new");
    assert_ne!(other, file);
    store.closed(file, false).expect("closed");
    assert_eq!(store.read(file, 0, 9).expect("read"), b"kepton");
    store.closed(file, false).expect("closed");
    assert_eq!(store.read(file, 0, 9).expect_err("gone"), Errno::STALE);
    assert_eq!(store.taken().inodes, 1);
    let own: Vec<_> = fs::read_dir(at.path().join(".tombolo")).expect("its own").collect();
    assert_eq!(own.len(), 1, "only the numbers");
    // Renamed over is unlinked.
    store.opened(other).expect("open");
    make(&mut store, ROOT, "g", b"over");
    store.rename((ROOT, b"g"), (ROOT, b"f"), 0).expect("renamed");
    assert_eq!(store.read(other, 0, 9).expect("read"), b"new");
    assert_eq!(fs::read(at.path().join("f")).expect("there"), b"over");
    store.closed(other, false).expect("closed");
    assert_eq!(store.stat(other).expect_err("gone"), Errno::STALE);
}

#[test]
fn renames_move_trees_and_exchange() {
    let (at, mut store) = fresh();
    let [a, b] = [b"a", b"b"].map(|name| store.make_folder(ROOT, name, 0o755).expect("made").serial);
    let deep = store.make_folder(a, b"deep", 0o755).expect("made").serial;
    let file = make(&mut store, deep, "f", b"x");
    store.rename((a, b"deep"), (b, b"moved"), 0).expect("moved");
    assert_eq!(store.stat(file).expect("there").size, 1);
    assert_eq!(fs::read(at.path().join("b/moved/f")).expect("there"), b"x");
    assert_eq!(store.rename((ROOT, b"b"), (deep, b"loop"), 0).expect_err("into itself"), Errno::INVAL);
    let other = make(&mut store, ROOT, "o", b"other");
    store.rename((deep, b"f"), (ROOT, b"o"), 2).expect("exchanged");
    assert_eq!(store.lookup(deep, b"f").expect("there").serial, other);
    assert_eq!(store.lookup(ROOT, b"o").expect("there").serial, file);
    assert_eq!(store.read(other, 0, 9).expect("read"), b"other");
    assert_eq!(store.rename((ROOT, b"o"), (deep, b"f"), 1).expect_err("taken"), Errno::EXIST);
    assert_eq!(store.rename((ROOT, b"o"), (ROOT, b"w"), 4).expect_err("a whiteout"), Errno::INVAL);
    assert_eq!(store.rename((ROOT, b"none"), (ROOT, b"w"), 0).expect_err("none"), Errno::NOENT);
}

#[test]
fn a_file_of_several_names_goes_with_the_last() {
    let (_at, mut store) = fresh();
    let file = make(&mut store, ROOT, "a", b"one");
    let folder = store.make_folder(ROOT, b"d", 0o755).expect("made").serial;
    assert_eq!(store.link(file, folder, b"b").expect("linked").links, 2);
    assert_eq!(store.link(file, folder, b"b").expect_err("taken"), Errno::EXIST);
    assert_eq!(store.link(folder, ROOT, b"x").expect_err("a folder"), Errno::PERM);
    store.unlink(ROOT, b"a").expect("unlinked");
    assert_eq!(store.lookup(folder, b"b").expect("there").serial, file);
    assert_eq!(store.stat(file).expect("there").links, 1);
    store.unlink(folder, b"b").expect("unlinked");
    assert_eq!(store.stat(file).expect_err("gone"), Errno::STALE);
    assert_eq!(store.taken().inodes, 1);
}

#[test]
fn a_symbolic_link_is_a_node_whose_target_is_any_path() {
    let (at, mut store) = fresh();
    let link = store.symlink(ROOT, b"l", b"/etc/../anywhere").expect("made");
    assert_eq!((link.kind, link.mode, link.size), (Kind::Link, 0o777, 16));
    assert_eq!(fs::read_link(at.path().join("l")).expect("there"), Path::new("/etc/../anywhere"));
    assert_eq!(store.follow(link.serial).expect("a target"), b"/etc/../anywhere");
    assert_eq!(store.symlink(ROOT, b"l", b"x").expect_err("taken"), Errno::EXIST);
    assert_eq!(store.symlink(ROOT, b"..", b"x").expect_err("no name"), Errno::INVAL);
    assert_eq!(store.symlink(ROOT, b".tombolo", b"x").expect_err("hidden"), Errno::PERM);
    // The longest target, and one that is longer.
    let longest = store.symlink(ROOT, b"long", &[b'x'; 4095]).expect("made").serial;
    assert_eq!(store.follow(longest).expect("a target"), [b'x'; 4095]);
    assert_eq!(store.symlink(ROOT, b"longer", &[b'x'; 4096]).expect_err("too long"), Errno::NAMETOOLONG);
    // Renamed, given one more name, and its time set, it is the same; the number outlives the
    // server.
    let file = make(&mut store, ROOT, "f", b"plain");
    assert_eq!(store.follow(file).expect_err("no link"), Errno::INVAL);
    store.rename((ROOT, b"l"), (ROOT, b"m"), 0).expect("renamed");
    assert_eq!(store.link(link.serial, ROOT, b"n").expect("linked").links, 2);
    let time = Attributes { changed: Some((1_000, 7)), ..Attributes::default() };
    assert_eq!(store.set(link.serial, &time).expect("set").changed, (1_000, 7));
    drop(store);
    let mut store = store_again(at.path());
    assert_eq!(store.lookup(ROOT, b"m").expect("there").serial, link.serial);
    assert_eq!(store.lookup(ROOT, b"n").expect("there").serial, link.serial);
    assert_eq!(store.follow(link.serial).expect("a target"), b"/etc/../anywhere");
    for name in [b"m", b"n"] {
        store.unlink(ROOT, name).expect("unlinked");
    }
    assert_eq!(store.follow(link.serial).expect_err("gone"), Errno::STALE);
    // One of them is exchanged for a file under the server's feet.
    fs::remove_file(at.path().join("long")).expect("removed");
    fs::write(at.path().join("long"), "a file").expect("written");
    assert!(store.follow(longest).is_err());
    assert_eq!(store.lookup(ROOT, b"long").expect("there").kind, Kind::File);
}

#[test]
fn links_count_and_the_room_that_is_left_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = store(folder.path(), Limits { bytes: 256 * 1024, inodes: 4 });
    let left = |store: &Store| store.room_left().expect("room");
    assert_eq!((left(&store).bytes, left(&store).nodes), ((256 * 1024, 256 * 1024), (4, 4)));
    store.symlink(ROOT, b"l", b"anywhere").expect("within");
    make(&mut store, ROOT, "f", &[7; 64 * 1024]);
    let room = left(&store);
    assert_eq!(room.nodes, (4, 2));
    assert!(room.bytes.0 == 256 * 1024 && room.bytes.1 <= 192 * 1024, "{room:?}");
    for name in [b"m", b"n"] {
        store.symlink(ROOT, name, b"anywhere").expect("within");
    }
    assert_eq!(store.symlink(ROOT, b"o", b"anywhere").expect_err("beyond"), Errno::DQUOT);
    // Less than is there: nothing is free.
    store.limit(Limits { bytes: 4096, inodes: 1 });
    assert_eq!((left(&store).bytes, left(&store).nodes), ((4096, 0), (1, 0)));
    assert_eq!(store.symlink(ROOT, b"o", b"anywhere").expect_err("beyond"), Errno::DQUOT);
    store.limit(Limits { bytes: 4096, inodes: 10 });
    assert_eq!(store.symlink(ROOT, b"o", b"anywhere").expect_err("no bytes"), Errno::DQUOT);
}

#[test]
fn the_next_server_knows_the_numbers_and_whatever_was_open() {
    let (at, mut first) = fresh();
    let folder = first.make_folder(ROOT, b"d", 0o755).expect("made").serial;
    let kept = make(&mut first, folder, "kept", b"kept");
    let lost = make(&mut first, folder, "lost", b"lost");
    let gone = make(&mut first, folder, "gone", b"gone");
    let linked = make(&mut first, ROOT, "l1", b"linked");
    first.link(linked, folder, b"l2").expect("linked");
    first.opened(lost).expect("open");
    first.unlink(folder, b"lost").expect("unlinked");
    first.unlink(folder, b"gone").expect("unlinked");
    let before = first.taken();
    // As by kill -9: nothing is told to anybody.
    drop(first);
    let mut next = store(at.path(), PLENTY);
    assert_eq!(next.taken(), before);
    assert_eq!(next.lookup(ROOT, b"d").expect("there").serial, folder);
    assert_eq!(next.read(kept, 0, 9).expect("read"), b"kept");
    assert_eq!(next.read(lost, 0, 9).expect("read"), b"lost");
    assert_eq!(next.lookup(folder, b"l2").expect("there").serial, linked);
    assert_eq!(next.stat(gone).expect_err("gone"), Errno::STALE);
    // A number is not given to another soon.
    let new = make(&mut next, ROOT, "new", b"");
    assert!(![folder, kept, lost, gone, linked].contains(&new));
    // Whoever comes back has the file on; nobody does, and it goes.
    next.opened(lost).expect("opened again");
    next.sweep(Instant::now() + Duration::from_secs(600));
    assert_eq!(next.read(lost, 0, 9).expect("read"), b"lost");
    next.closed(lost, true).expect("left");
    next.sweep(Instant::now());
    assert_eq!(next.read(lost, 0, 9).expect("kept a while"), b"lost");
    next.sweep(Instant::now() + Duration::from_secs(600));
    assert_eq!(next.read(lost, 0, 9).expect_err("gone"), Errno::STALE);
    // Another boot knows no numbers, for nobody else does.
    drop(next);
    let numbers = at.path().join(".tombolo/numbers");
    let mut bytes = fs::read(&numbers).expect("numbers");
    bytes[10] ^= 1;
    fs::write(&numbers, bytes).expect("written");
    let mut later = store(at.path(), PLENTY);
    assert_eq!(fs::read(at.path().join("d/kept")).expect("there"), b"kept");
    assert_eq!(later.lookup(ROOT, b"d").expect("there").kind, Kind::Folder);
}

#[test]
fn one_server_has_a_store() {
    let (at, _first) = fresh();
    assert!(matches!(Store::open(at.path(), PLENTY), Err(OpenError::Taken(_))));
    let none = at.path().join("none");
    let error = Store::open(&none, PLENTY).err().expect("none").to_string();
    assert!(error.contains("none can't be used: open: No such file"), "{error}");
}

/// Entries that an operator's directory may have, or that somebody put there past the server.
#[test]
fn pipes_are_not_shown_and_links_are_not_followed_by_the_server() {
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("secret"), "secret").expect("a secret");
    let (at, mut store) = fresh();
    symlink(outside.path(), at.path().join("out")).expect("a link");
    symlink(outside.path().join("secret"), at.path().join("s")).expect("a link");
    symlink("/proc/self/root", at.path().join("magic")).expect("a link");
    rustix::fs::mkfifoat(rustix::fs::CWD, at.path().join("pipe"), rustix::fs::Mode::RWXU).expect("a pipe");
    let _socket = std::os::unix::net::UnixListener::bind(at.path().join("socket")).expect("a socket");
    make(&mut store, ROOT, "plain", b"");
    let names: Vec<String> = all(&mut store, ROOT).into_iter().map(|(_, name)| name).collect();
    assert_eq!(
        names.into_iter().collect::<BTreeSet<_>>(),
        ["magic", "out", "plain", "s"].map(String::from).into()
    );
    for name in ["out", "s", "magic"] {
        let link = store.lookup(ROOT, name.as_bytes()).expect("a link");
        assert_eq!(link.kind, Kind::Link, "{name}");
        assert_eq!(store.opened(link.serial).expect_err("not followed"), Errno::LOOP, "{name}");
        assert_eq!(store.read(link.serial, 0, 9).expect_err("not followed"), Errno::LOOP, "{name}");
        assert_eq!(store.lookup(link.serial, b"secret").expect_err("no folder"), Errno::NOTDIR, "{name}");
        assert_eq!(store.create(link.serial, b"x", 0o644).expect_err("no folder"), Errno::NOTDIR, "{name}");
        let mode = Attributes { mode: Some(0o777), ..Attributes::default() };
        assert_eq!(store.set(link.serial, &mode).expect_err("not followed"), Errno::OPNOTSUPP, "{name}");
        assert_eq!(store.set(link.serial, &size(0)).expect_err("not followed"), Errno::INVAL, "{name}");
    }
    for name in ["pipe", "socket"] {
        assert_eq!(store.lookup(ROOT, name.as_bytes()).expect_err("not served"), Errno::PERM, "{name}");
        assert_eq!(store.unlink(ROOT, name.as_bytes()).expect_err("not served"), Errno::PERM, "{name}");
        let onto = store.rename((ROOT, b"plain"), (ROOT, name.as_bytes()), 0);
        assert_eq!(onto.expect_err("not served"), Errno::PERM, "{name}");
    }
    // A folder that is exchanged for a link under the server's feet.
    let folder = store.make_folder(ROOT, b"d", 0o755).expect("made").serial;
    let file = make(&mut store, folder, "secret", b"mine");
    drop(store);
    let mut store = store_again(at.path());
    fs::rename(at.path().join("d"), at.path().join("elsewhere")).expect("moved");
    symlink(outside.path(), at.path().join("d")).expect("a link");
    // As long as the server has the folder open, it is the folder that it was.
    assert_eq!(store.read(file, 0, 9).expect("read"), b"mine");
    for number in 0..600 {
        let other = store.make_folder(ROOT, format!("other{number}").as_bytes(), 0o755).expect("made").serial;
        make(&mut store, other, "f", b"");
    }
    assert_eq!(store.read(file, 0, 9).expect_err("moved away"), Errno::STALE);
    assert_eq!(store.create(folder, b"x", 0o644).expect_err("moved away"), Errno::STALE);
    assert_eq!(fs::read(outside.path().join("secret")).expect("there"), b"secret");
    assert!(!outside.path().join("x").exists());
    assert!(fs::symlink_metadata(at.path().join("pipe")).expect("there").file_type().is_fifo());
    // The store's own folder is nobody's.
    assert_eq!(store.lookup(ROOT, b".tombolo").expect_err("hidden"), Errno::NOENT);
    assert_eq!(store.make_folder(ROOT, b".tombolo", 0o755).expect_err("hidden"), Errno::PERM);
    assert_eq!(store.rename((ROOT, b"plain"), (ROOT, b".tombolo"), 0).expect_err("hidden"), Errno::PERM);
    assert_eq!(store.remove_folder(ROOT, b".tombolo").expect_err("hidden"), Errno::PERM);
}

fn store_again(at: &Path) -> Store {
    store(at, PLENTY)
}

#[test]
fn what_is_promised_is_not_passed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = store(folder.path(), Limits { bytes: 256 * 1024, inodes: 10 });
    let file = make(&mut store, ROOT, "f", b"");
    let mut written = 0;
    let refused = loop {
        match store.write(file, Some(written), &[7; 16 * 1024]) {
            Ok(count) => written += count as u64,
            Err(errno) => break errno,
        }
    };
    assert_eq!(refused, Errno::DQUOT);
    assert!(written >= 128 * 1024 && store.taken().bytes <= 256 * 1024, "{written} {:?}", store.taken());
    // What is there can be changed, and be taken away.
    assert_eq!(store.write(file, Some(0), &[8; 16 * 1024]), Ok(16 * 1024));
    store.set(file, &size(0)).expect("cut");
    assert_eq!(store.write(file, Some(1 << 40), &[8; 4096]), Ok(4096));
    assert_eq!(store.write(file, Some(u64::MAX - 10), &[8; 4096]), Err(Errno::FBIG));
    for number in 1..10 {
        store.create(ROOT, format!("n{number}").as_bytes(), 0o644).expect("within");
    }
    assert_eq!(store.create(ROOT, b"more", 0o644).expect_err("beyond"), Errno::DQUOT);
    assert_eq!(store.make_folder(ROOT, b"more", 0o755).expect_err("beyond"), Errno::DQUOT);
    assert_eq!(store.create(ROOT, b"n1", 0o644).expect_err("there"), Errno::EXIST);
    store.unlink(ROOT, b"n1").expect("unlinked");
    store.create(ROOT, b"more", 0o644).expect("within");
    store.limit(PLENTY);
    store.create(ROOT, b"n1", 0o644).expect("within");
}

#[test]
fn many_names_are_listed_once_each_in_parts() {
    let (_at, mut store) = fresh();
    for number in 0..10_000 {
        store.create(ROOT, format!("name{number}").as_bytes(), 0o644).expect("made");
    }
    let mut names = BTreeSet::new();
    let mut after = 0;
    loop {
        let mut part = 0;
        let before = after;
        store
            .list(ROOT, before, |place, name, _| {
                part += 1;
                after = place;
                assert!(names.insert(name.to_vec()), "{name:?} came twice");
                part < 300
            })
            .expect("a part");
        if part == 0 {
            break;
        }
    }
    assert_eq!(names.len(), 10_000);
}

// Each level costs a path longer by two bytes; nobody can walk deeper than paths go, and nothing
// here calls itself.
#[test]
fn deep_trees_end_where_paths_end() {
    let (at, mut first) = fresh();
    let mut folder = ROOT;
    let mut levels = 0;
    let refused = loop {
        match first.make_folder(folder, b"d", 0o755) {
            Ok(told) => folder = told.serial,
            Err(errno) => break errno,
        }
        levels += 1;
    };
    assert_eq!(refused, Errno::NAMETOOLONG);
    assert!((1_000..10_000).contains(&levels), "{levels}");
    let deepest = make(&mut first, folder, "f", b"deep");
    drop(first);
    let mut next = store_again(at.path());
    assert_eq!(next.read(deepest, 0, 9).expect("read"), b"deep");
    // Moved below one that is as deep, it is out of reach, and comes back.
    let other = next.make_folder(ROOT, b"o", 0o755).expect("made").serial;
    let mut below = other;
    for _ in 0..levels - 10 {
        below = next.make_folder(below, b"d", 0o755).expect("made").serial;
    }
    next.rename((ROOT, b"d"), (below, b"moved"), 0).expect("moved");
    drop(next);
    let mut next = store_again(at.path());
    assert_eq!(next.lookup(ROOT, b"o").expect("there").serial, other);
    next.rename((below, b"moved"), (ROOT, b"d"), 0).expect("back");
    drop(next);
    let mut next = store_again(at.path());
    assert!(next.lookup(ROOT, b"d").is_ok());
    sys::tree::remove(&PathBuf::from(at.path())).expect("removed");
}

fn xattr(store: &mut Store, serial: u32, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    store.set_xattr(serial, &XattrChange { operation: XattrOperation::Set, name, value })
}

#[test]
fn extended_attributes_are_those_of_users_and_bounded() {
    let (at, mut store) = fresh();
    let file = make(&mut store, ROOT, "f", b"bytes");
    let folder = store.make_folder(ROOT, b"d", 0o755).expect("made").serial;
    let link = store.symlink(ROOT, b"l", b"f").expect("made").serial;
    match xattr(&mut store, file, b"user.a", b"one") {
        Err(Errno::OPNOTSUPP) => {
            eprintln!("skipped: the file system of {} has no extended attributes", at.path().display());
            return;
        }
        other => other.expect("set"),
    }
    xattr(&mut store, folder, b"user.a", b"two").expect("of a folder");
    xattr(&mut store, ROOT, b"user.a", b"three").expect("of the root");
    assert_eq!(store.xattr(file, b"user.a").expect("there"), b"one");
    assert_eq!(store.xattr(folder, b"user.a").expect("there"), b"two");
    assert_eq!(store.xattr(ROOT, b"user.a").expect("there"), b"three");
    assert_eq!(store.xattr(file, b"user.b"), Err(Errno::NODATA));
    assert_eq!(store.xattrs(file).expect("a list"), b"user.a\0");
    // A link has none, and nothing of the file that it leads to.
    assert_eq!(xattr(&mut store, link, b"user.a", b"x"), Err(Errno::PERM));
    assert_eq!((store.xattr(link, b"user.a"), store.xattrs(link)), (Err(Errno::NODATA), Ok(Vec::new())));
    // Other namespaces are a kernel's or an administrator's, whatever this process may do.
    let path = at.path().join("f");
    let seen = rustix::fs::setxattr(&path, c"trusted.t", b"secret", rustix::fs::XattrFlags::empty()).is_ok();
    for name in [&b"trusted.t"[..], b"security.capability", b"system.posix_acl_access", b"a", b"useR.a"] {
        assert_eq!(xattr(&mut store, file, name, b"x"), Err(Errno::OPNOTSUPP), "{name:?}");
        assert_eq!(store.xattr(file, name), Err(Errno::OPNOTSUPP), "{name:?}");
    }
    assert_eq!(xattr(&mut store, file, b"user.", b"x"), Err(Errno::INVAL));
    assert_eq!(store.xattrs(file).expect("a list"), b"user.a\0", "and not {seen}: trusted.t");
    // So long, so many, so much.
    assert_eq!(xattr(&mut store, file, b"user.a", &[b'x'; 4097]), Err(Errno::RANGE));
    assert_eq!(store.xattr(file, b"user.a").expect("as before"), b"one");
    let many = (0..100).map(|at| xattr(&mut store, file, format!("user.n{at}").as_bytes(), b""));
    let refused: Vec<Errno> = many.filter_map(Result::err).collect();
    assert!(refused.len() >= 100 - 63 && refused.iter().all(|errno| *errno == Errno::NOSPC), "{refused:?}");
    let large = (0..6).map(|at| xattr(&mut store, folder, format!("user.n{at}").as_bytes(), &[7; 3000]));
    assert!(large.filter_map(Result::err).any(|errno| errno == Errno::NOSPC));
    // The next server knows them.
    drop(store);
    let mut store = self::store(at.path(), Limits { bytes: 1, inodes: 100 });
    let file = store.lookup(ROOT, b"f").expect("there").serial;
    assert_eq!(store.xattr(file, b"user.a").expect("there"), b"one");
    // A quota that is used up lets nobody keep bytes here, but take them away.
    assert_eq!(xattr(&mut store, file, b"user.a", b"more"), Err(Errno::DQUOT));
    let away = XattrChange { operation: XattrOperation::Remove, name: b"user.a", value: b"" };
    store.set_xattr(file, &away).expect("removed");
    assert_eq!(store.set_xattr(file, &away), Err(Errno::NODATA));
}
