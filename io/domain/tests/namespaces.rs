//! Reaching into a domain from outside: mounts that only it sees, sockets in its network, and
//! `/run/tombolo` as it sees it.

mod ground;

use domain::{Created, DomainSpec, Ending, Kind};
use ground::{Ground, ground};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, mount_change,
};
use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;

const KINDS: [Kind; 2] = [Kind::Container, Kind::Process];

fn detached_mount(mode: &str) -> OwnedFd {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).expect("fsopen");
    fsconfig_set_string(&context, "mode", mode).expect("fsconfig");
    fsconfig_create(&context).expect("create");
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOSUID).expect("fsmount")
}

fn created(ground: &Ground, kind: Kind, script: &str) -> Created {
    domain::remove_logs(&ground.layout, "dc", "d").expect("remove logs");
    domain::create(&ground.layout, &DomainSpec { kind, ..ground.shell("d", script) }, &[]).expect("create")
}

#[test]
fn a_mount_before_the_start_and_another_in_its_place() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let created = created(&ground, kind, "stat -c %a /srv; grep -c ' /srv ' /proc/self/mountinfo");
        domain::attach_mount(created.init_descriptor(), &detached_mount("711"), "/srv").expect("attach");
        domain::replace_mount(created.init_descriptor(), &detached_mount("751"), "/srv").expect("replace");
        let here = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!here.contains(" /srv "), "the host sees it: {here}");
        let exit = created.start().expect("start").wait().expect("wait");
        assert_eq!((exit.ending, ground.output("d").as_str()), (Ending::Code(0), "751\n1\n"), "{kind:?}");
    }
}

#[test]
fn a_socket_in_a_network_that_has_only_lo() {
    let Some(ground) = ground() else { return };
    let created = created(&ground, Kind::Container, "bash -c 'echo question > /dev/udp/127.0.0.53/53'");
    let bind = || UdpSocket::bind("127.0.0.53:53");
    let socket = domain::in_network_namespace(created.init_descriptor(), bind).expect("enter").expect("bind");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("timeout");
    let running = created.start().expect("start");
    let mut buffer = [0; 64];
    let (read, from) = socket.recv_from(&mut buffer).expect("receive");
    assert_eq!((&buffer[..read], from.ip().to_string().as_str()), (&b"question\n"[..], "127.0.0.1"));
    assert_eq!(running.wait().expect("wait").ending, Ending::Code(0));
}

#[test]
fn a_domain_that_is_gone_can_not_be_entered() {
    let Some(ground) = ground() else { return };
    let created = created(&ground, Kind::Container, "true");
    let init = domain::open_init(created.init_pid()).expect("open");
    created.abort().expect("abort");
    let error = domain::attach_mount(std::os::fd::AsFd::as_fd(&init), &detached_mount("755"), "/srv");
    assert!(error.expect_err("attached").to_string().contains("is the domain still there"));
    let panicked = domain::in_network_namespace(std::os::fd::AsFd::as_fd(&init), || 1);
    assert!(panicked.is_err());
}

/// At its usual place, the run directory itself is what a process domain must not see. A `/run` of
/// the test's own stands for it.
#[test]
fn a_process_domain_sees_its_own_run_tombolo_and_not_the_nodes() {
    let Some(mut ground) = ground() else { return };
    let output = std::thread::spawn(move || {
        sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNS).expect("unshare");
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
        sys::mount::attach(detached_mount("755"), std::path::Path::new("/run")).expect("mount /run");
        ground.layout.run_dir = "/run/tombolo".into();
        let inside = ground.layout.run_dir.join("dc/dc/d/inside");
        std::fs::create_dir_all(&inside).expect("inside");
        std::fs::write(inside.join("control.sock"), "mine\n").expect("control");
        let script = "ls -A /run/tombolo; cat /run/tombolo/control.sock; echo \"[$TOMBOLO_CONTROL]\"; touch /run/tombolo/x 2>/dev/null || echo read-only";
        let exit = created(&ground, Kind::Process, script).start().expect("start").wait().expect("wait");
        let mut all = String::new();
        std::fs::File::open(ground.layout.state_dir.join("logs/dc/d.log")).expect("log").read_to_string(&mut all).expect("read");
        assert_eq!(exit.ending, Ending::Code(0), "{all}");
        ground.output("d")
    })
    .join()
    .expect("the domain");
    assert_eq!(output, "control.sock\ntombolo\nmine\n[]\nread-only\n");
}
