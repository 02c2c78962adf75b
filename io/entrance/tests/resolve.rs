//! The resolver socket as its clients see it: by hand, and with the real libnss-resolve where it
//! can be had.

use entrance::{Entrance, Entrances, Handle};
use session::Control;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testing::{FakeDaemon, FakeDirectory, ServerThread};

struct Stage {
    folder: tempfile::TempDir,
    _handle: Handle,
    _server: ServerThread,
    _daemon: FakeDaemon,
}

impl Stage {
    fn set() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = FakeDaemon::start(folder.path(), &["server", "a"], vec![FakeDirectory::told()]);
        let server = ServerThread::start(&daemon, FakeDirectory::default);
        let listener = UnixListener::bind(folder.path().join("io.systemd.Resolve")).expect("bound");
        let handle =
            entrance::run(Entrances { resolve: Some(listener), ..Entrances::default() }).expect("running");
        let mut control = Control::connect(&daemon.socket("a")).expect("connected");
        let soon = Instant::now() + Duration::from_secs(20);
        let (_, end) = control.connect_service("dns", "resolve", 0, soon).expect("a channel");
        handle.connect(Entrance::Resolve, end);
        Self { folder, _handle: handle, _server: server, _daemon: daemon }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("io.systemd.Resolve")
    }

    fn client(&self) -> BufReader<UnixStream> {
        let socket = UnixStream::connect(self.socket()).expect("connected");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        BufReader::new(socket)
    }
}

fn call(client: &mut BufReader<UnixStream>, text: &str) -> String {
    client.get_mut().write_all(format!("{text}\0").as_bytes()).expect("sent");
    let mut reply = Vec::new();
    client.read_until(0, &mut reply).expect("a reply");
    String::from_utf8(reply).expect("text")
}

fn hostname(name: &str) -> String {
    format!(r#"{{"method":"io.systemd.Resolve.ResolveHostname","parameters":{{"name":"{name}"}}}}"#)
}

#[test]
fn calls_are_answered_one_after_the_other() {
    let stage = Stage::set();
    let mut client = stage.client();
    let reply = call(&mut client, &hostname("alias.example"));
    assert!(reply.contains(r#""name":"host.example""#) && reply.contains("[192,0,2,1]"), "{reply}");
    let address =
        r#"{"method":"io.systemd.Resolve.ResolveAddress","parameters":{"family":2,"address":[192,0,2,1]}}"#;
    assert!(call(&mut client, address).contains(r#"{"name":"host.example"}"#));
    assert!(call(&mut client, &hostname("missing.example")).contains(r#"{"rcode":3}"#));
    assert!(call(&mut client, &hostname("empty.example")).contains("NoSuchResourceRecord"));
    assert!(call(&mut client, r#"{"method":"io.systemd.Resolve.Flush"}"#).contains("MethodNotFound"));
    // Two at once.
    let both = format!("{}\0{}", hostname("v4.example"), hostname("v6.example"));
    assert!(call(&mut client, &both).contains("[192,0,2,4]"));
    let mut second = Vec::new();
    client.read_until(0, &mut second).expect("a reply");
    assert!(String::from_utf8_lossy(&second).contains(r#""family":10"#));
}

#[test]
fn nonsense_and_endless_messages_end_the_connection() {
    let stage = Stage::set();
    for nonsense in [b"no json\0".to_vec(), vec![b'x'; 100_000]] {
        let mut client = stage.client();
        let _cut_off_half_way = client.get_mut().write_all(&nonsense);
        let mut rest = Vec::new();
        assert_eq!(client.read_to_end(&mut rest).unwrap_or(0), 0);
    }
    assert!(call(&mut stage.client(), &hostname("v4.example")).contains("[192,0,2,4]"));
}

/// The library, from Debian's package, unpacked and never installed: installing it would change how
/// this machine resolves.
fn library(folder: &Path) -> Option<PathBuf> {
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(folder).output().ok()?;
        output.status.success().then_some(())
    };
    run("apt-get", &["download", "-q", "libnss-resolve"])?;
    run("sh", &["-c", "dpkg -x libnss-resolve_*.deb unpacked"])?;
    let found = folder.join("unpacked/usr/lib/x86_64-linux-gnu/libnss_resolve.so.2");
    found.exists().then_some(found)
}

#[test]
fn the_real_libnss_resolve_resolves() {
    let stage = Stage::set();
    let Some(library) = library(stage.folder.path()) else {
        println!(
            "skipped: libnss-resolve can't be downloaded and unpacked (apt-get download libnss-resolve)"
        );
        return;
    };
    // In a mount namespace of its own, where /run/systemd/resolve is ours.
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p /run/systemd/resolve && \
         mkdir /run/ours && mount --bind {folder} /run/ours && \
         ln -s /run/ours/io.systemd.Resolve /run/systemd/resolve/io.systemd.Resolve && \
         export LD_LIBRARY_PATH={library}; \
         for what in 'ahosts alias.example' 'ahostsv4 v4.example' 'ahosts v6.example' 'hosts 192.0.2.1' 'hosts missing.example' \
         'hosts failing.example'; do echo \"$what:\"; getent -s resolve $what; echo \"= $?\"; done",
        folder = stage.folder.path().display(),
        library = library.parent().expect("a folder").display(),
    );
    let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().expect("unshare");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if said.is_empty() {
        println!("skipped: no mount namespace can be made here (it needs root): {wrong}");
        return;
    }
    for line in [
        "192.0.2.1       STREAM host.example",
        "2001:db8::1     STREAM ",
        "192.0.2.4       STREAM v4.example",
        "2001:db8::6     STREAM v6.example",
        "192.0.2.1       host.example",
        "hosts missing.example:\n= 2",
        "hosts failing.example:\n= 2",
    ] {
        assert!(said.contains(line), "{line:?} is not in:\n{said}\n{wrong}");
    }
}
