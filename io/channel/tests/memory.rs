//! The memory options of an end, and the errors on a machine that refuses them.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod other_process;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;

use channel::{Config, CreateError, End, HugePages, OpenError, OpenOptions, Pages, pair};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;
use wire::ring as layout;

/// Rings for the tests that count memory.
const RING_BYTES: u32 = 1 << 20;
/// Rings that no limit of these tests has room for.
const LARGE_RING_BYTES: u32 = layout::RING_BYTES_MAX;

const POPULATE: OpenOptions = OpenOptions { populate: true, huge_pages: false, lock: false };
const LOCK: OpenOptions = OpenOptions { populate: false, huge_pages: false, lock: true };

fn make(ring_bytes: u32) -> (End, End) {
    pair(&Config { ring_bytes, ..Config::default() }).unwrap()
}

/// An end, and its region for looking at.
fn end_and_region(ring_bytes: u32) -> (End, OwnedFd) {
    let descriptors = make(ring_bytes).0.into_descriptors();
    let region = descriptors[0].as_fd().try_clone_to_owned().unwrap();
    (End::from_descriptors(descriptors.into()).unwrap(), region)
}

fn set_limit(resource: Resource, most: u64) {
    setrlimit(resource, Rlimit { current: Some(most), maximum: getrlimit(resource).maximum }).unwrap();
}

/// The number of KiB behind a name of `/proc/self/status`.
fn status_kib(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches(|other: char| !other.is_ascii_digit()).parse().unwrap()
}

/// Runs `role` in a process of its own, whose limits are nobody else's.
fn in_another_process(role: &str) {
    let other = other_process::start(role);
    expect_success(other);
}

fn expect_success(mut other: other_process::Other) {
    let ended = wait_for_the_end(&mut other);
    assert!(
        ended.is_some_and(|status| status.success()),
        "{ended:?}: run the test `child` with its role to see why"
    );
}

fn wait_for_the_end(other: &mut other_process::Other) -> Option<ExitStatus> {
    const TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
    let process = sys::process::pidfd_open(other.child.id()).unwrap();
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    if rustix::event::poll(&mut polled, Some(&TIMEOUT)).unwrap() == 0 {
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        return None;
    }
    Some(other.child.wait().unwrap())
}

#[test]
#[ignore = "the other process of these tests"]
fn child() {
    match other_process::role().as_deref() {
        Some("few locked bytes") => few_locked_bytes(),
        Some("few descriptors") => few_descriptors(),
        Some("few addresses") => few_addresses(),
        Some("a small cgroup") => a_small_cgroup(),
        Some(role) => panic!("no such role: {role}"),
        None => println!("skipped: it is started by the other tests"),
    }
}

#[test]
fn memory_comes_with_the_first_touch_or_beforehand() {
    let whole = layout::region_bytes(RING_BYTES);
    let (end, region) = end_and_region(RING_BYTES);
    let _opened = end.open().unwrap();
    let resident = sys::memfd::resident_bytes(&region).unwrap();
    assert!(resident < whole / 4, "{resident}: nothing was asked for");

    let (end, region) = end_and_region(RING_BYTES);
    let (mut sender, _receiver) = end.open_with(&POPULATE).unwrap();
    assert_eq!(sys::memfd::resident_bytes(&region).unwrap(), whole);
    sender.send(b"x", None).unwrap();
}

#[test]
fn an_opener_that_populates_keeps_what_its_peer_has_sent_already() {
    let (one, other) = make(RING_BYTES);
    let (mut sender, _receiver) = one.open().unwrap();
    sender.send(b"early", None).unwrap();
    let (_sender, mut receiver) = other.open_with(&POPULATE).unwrap();
    let mut got = Vec::new();
    receiver.receive(&mut got, None).unwrap();
    assert_eq!(got, b"early");
}

#[test]
fn a_locked_region_is_locked_while_it_is_open_and_no_longer() {
    let kib = layout::region_bytes(64 << 10) / 1024;
    let before = status_kib("VmLck:");
    let opened = make(64 << 10).0.open_with(&LOCK).unwrap();
    assert_eq!(status_kib("VmLck:"), before + kib);
    drop(opened);
    assert_eq!(status_kib("VmLck:"), before);
}

#[test]
fn a_limit_on_locked_memory_is_named_with_the_way_to_raise_it() {
    in_another_process("few locked bytes");
}

fn few_locked_bytes() {
    // Who may lock without a limit gives that up.
    let mut capabilities = rustix::thread::capabilities(None).unwrap();
    capabilities.effective.remove(CapabilitySet::IPC_LOCK);
    rustix::thread::set_capabilities(None, capabilities).unwrap();

    let bytes = layout::region_bytes(64 << 10);
    set_limit(Resource::Memlock, bytes);
    drop(make(64 << 10).0.open_with(&LOCK).unwrap());
    for most in [bytes - 1, 4096, 0] {
        set_limit(Resource::Memlock, most);
        let error = make(64 << 10).0.open_with(&LOCK).unwrap_err();
        assert!(
            matches!(error, OpenError::Lock { bytes: named, limit: Some(limit), .. } if named == bytes && limit == most),
            "{error}"
        );
        let text = error.to_string();
        for part in
            [bytes.to_string(), format!("may lock {most} bytes"), "RLIMIT_MEMLOCK".into(), "ulimit -l".into()]
        {
            assert!(text.contains(&part), "{text}");
        }
        assert_eq!(status_kib("VmLck:"), 0);
        drop(make(64 << 10).0.open().unwrap());
    }
}

#[test]
fn too_few_descriptors_are_named_and_none_is_lost() {
    in_another_process("few descriptors");
}

fn few_descriptors() {
    let is_open = |number: u64| fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    let open = || (0..1000).filter(|number| is_open(*number)).count();
    // The lowest limit that leaves so many free.
    let leave = |free: usize| {
        let limit = (0..1000).filter(|number| !is_open(*number)).nth(free).unwrap();
        set_limit(Resource::Nofile, limit);
        limit
    };
    let before = open();
    for some in 0..10 {
        let most = leave(some);
        let error = pair(&Config::default()).unwrap_err();
        set_limit(Resource::Nofile, 1000);
        assert!(
            matches!(error, CreateError::NoDescriptors { limit: Some(limit), .. } if limit == most),
            "{some}: {error}"
        );
        let text = error.to_string();
        assert!(
            text.contains("RLIMIT_NOFILE") && text.contains("ulimit -n") && text.contains("takes up to 11"),
            "{text}"
        );
        assert_eq!(open(), before, "{some}");
    }
    leave(10);
    let (one, other) = pair(&Config::default()).unwrap();
    let _opened = one.open().unwrap();
    // None at all: opening gives back the region's before it takes its own.
    set_limit(Resource::Nofile, 0);
    let error = other.open().unwrap_err();
    assert!(matches!(error, OpenError::NoDescriptors { limit: Some(_), .. }), "{error}");
    assert!(error.to_string().contains("RLIMIT_NOFILE"), "{error}");
}

#[test]
fn too_little_address_space_is_named() {
    in_another_process("few addresses");
}

fn few_addresses() {
    let (one, _other) = make(LARGE_RING_BYTES);
    set_limit(Resource::As, status_kib("VmSize:") * 1024 + (8 << 20));
    let error = one.open().unwrap_err();
    let bytes = layout::region_bytes(LARGE_RING_BYTES);
    assert!(matches!(error, OpenError::NoMemory { bytes: named, .. } if named == bytes), "{error}");
    assert!(error.to_string().contains("RLIMIT_AS"), "{error}");
}

/// A memory cgroup of this test's own; gone with it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make(limit_bytes: u64) -> Result<Cgroup, String> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/memory/tombolo-test-{}", std::process::id()));
        let say = |what: &str, error: std::io::Error| format!("{what} {}: {error}", path.display());
        fs::create_dir(&path).map_err(|error| say("can't make a memory cgroup (version 1)", error))?;
        let cgroup = Cgroup(path.clone());
        for (name, value) in [("memory.limit_in_bytes", limit_bytes), ("memory.oom_control", 1)] {
            fs::write(path.join(name), value.to_string()).map_err(|error| say("can't limit", error))?;
        }
        Ok(cgroup)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).unwrap();
    }
}

/// With the killer off, the kernel's answer to `populate` is an error. With it on, it kills,
/// whatever a program does.
#[test]
fn a_cgroup_without_memory_is_an_error_where_it_can_be_one() {
    let cgroup = match Cgroup::make(24 << 20) {
        Ok(cgroup) => cgroup,
        Err(why) => return println!("skipped: {why}"),
    };
    let other = other_process::start("a small cgroup");
    fs::write(cgroup.0.join("cgroup.procs"), other.child.id().to_string()).unwrap();
    other.pass(&[]);
    expect_success(other);
}

fn a_small_cgroup() {
    // Said by whoever put us into the cgroup.
    other_process::receive(0);
    for options in [POPULATE, LOCK] {
        // The other end would hold the memory, and everything after would wait for it.
        let (one, _) = make(LARGE_RING_BYTES);
        let error = one.open_with(&options).unwrap_err();
        let bytes = layout::region_bytes(LARGE_RING_BYTES);
        assert!(matches!(error, OpenError::NoMemory { bytes: named, .. } if named == bytes), "{error}");
        assert!(error.to_string().contains("cgroup"), "{error}");
        drop(make(1 << 20).0.open_with(&options).unwrap());
    }
}

fn free_huge_pages() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

fn with_huge_pages(ring_bytes: u32, huge_pages: HugePages) -> Config {
    Config { ring_bytes, huge_pages, ..Config::default() }
}

#[test]
fn huge_pages_that_are_not_there_are_an_error_or_ordinary_ones() {
    // More than any machine of these tests reserves, or rings too small for them.
    let ring_bytes = if free_huge_pages() == 0 { RING_BYTES } else { 64 << 10 };
    let error = pair(&with_huge_pages(ring_bytes, HugePages::Required)).unwrap_err();
    assert!(matches!(error, CreateError::HugePages { .. }), "{error}");
    assert!(error.to_string().contains("/proc/sys/vm/nr_hugepages"), "{error}");
    let (one, other) = pair(&with_huge_pages(ring_bytes, HugePages::IfFree)).unwrap();
    assert_eq!(one.pages().unwrap(), Pages::Ordinary);
    let asking = OpenOptions { huge_pages: true, ..POPULATE };
    let (mut sender, _receiver) = one.open_with(&asking).unwrap();
    let (_sender, mut receiver) = other.open().unwrap();
    sender.send(b"x", None).unwrap();
    assert_eq!(receiver.receive(&mut Vec::new(), None).unwrap(), 1);
}

#[test]
fn a_region_in_huge_pages_is_for_those_who_agree() {
    let needed = layout::region_bytes(RING_BYTES).div_ceil(2 << 20);
    if free_huge_pages() < 2 * needed {
        return println!(
            "skipped: fewer than {} huge pages are free (/proc/sys/vm/nr_hugepages)",
            2 * needed
        );
    }
    let config = with_huge_pages(RING_BYTES, HugePages::Required);
    let (one, _other) = pair(&config).unwrap();
    assert!(matches!(one.pages().unwrap(), Pages::Huge { .. }));
    let error = one.open().unwrap_err();
    assert!(matches!(error, OpenError::HugePages), "{error}");

    let (one, other) = pair(&config).unwrap();
    let agreed = OpenOptions { huge_pages: true, ..OpenOptions::default() };
    let (mut sender, _receiver) = one.open_with(&agreed).unwrap();
    let (_sender, mut receiver) = other.open_with(&agreed).unwrap();
    let message = vec![7; sender.max_message()];
    let mut got = Vec::new();
    for _ in 0..10 {
        sender.send(&message, None).unwrap();
        receiver.receive(&mut got, None).unwrap();
        assert_eq!(got, message);
    }
}
