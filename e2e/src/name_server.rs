//! A real name server (dnsmasq) on a port of its own.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// The first of the ports that processes are given, and how many there are: below those from which
/// the kernel takes one for who names none.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;

/// A port of 127.0.0.1 that is free for UDP and TCP now, and that nobody gets who asks the kernel
/// for any.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = (std::process::id() % u32::from(PORTS)) as u16;
    (0..PORTS)
        .map(|_| FIRST_PORT + (own + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS) % PORTS)
        .find(|port| {
            let at = (Ipv4Addr::LOCALHOST, *port);
            UdpSocket::bind(at).is_ok() && TcpListener::bind(at).is_ok()
        })
        .expect("a free port")
}

/// A running dnsmasq that answers for `tombolo.example`; ended when dropped.
pub struct NameServer {
    child: Child,
    /// Where it listens on 127.0.0.1.
    pub port: u16,
}

/// How many hosts `hostN.tombolo.example` the zone has.
pub const HOSTS: usize = 200;

impl NameServer {
    /// Starts one; `folder` takes its configuration.
    pub fn start(folder: &Path) -> Self {
        Self::start_at(folder, free_port())
    }

    /// Starts one that asks `hole` for what is below `silent.example`, and waits for its answer.
    pub fn start_with_hole(folder: &Path, hole: u16) -> Self {
        Self::start_as(folder, free_port(), &format!("server=/silent.example/127.0.0.1#{hole}\n"))
    }

    /// Starts one on a given port.
    pub fn start_at(folder: &Path, port: u16) -> Self {
        Self::start_as(folder, port, "")
    }

    fn start_as(folder: &Path, port: u16, more: &str) -> Self {
        let configuration = folder.join("dnsmasq.conf");
        std::fs::write(&configuration, zone(port) + more).expect("the zone is written");
        let child = Command::new("dnsmasq")
            .arg("--keep-in-foreground")
            .arg(format!("--conf-file={}", configuration.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("dnsmasq starts");
        let server = Self { child, port };
        crate::wait::until("dnsmasq answers", || server.answers());
        server
    }

    fn answers(&self) -> bool {
        let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else { return false };
        let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05host0\x07tombolo\x07example\x00\x00\x01\x00\x01";
        let timeout = std::time::Duration::from_millis(100);
        socket.set_read_timeout(Some(timeout)).is_ok()
            && socket.send_to(query, ("127.0.0.1", self.port)).is_ok()
            && socket.recv(&mut [0; 512]).is_ok()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        // It may have been ended by the test already; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The configuration: a zone with every kind of record that the tests ask for.
fn zone(port: u16) -> String {
    let mut text = format!(
        "port={port}\nlisten-address=127.0.0.1\nbind-interfaces\nno-resolv\nno-hosts\nno-daemon\nuser=root\n\
         pid-file=\ncache-size=0\nlocal=/tombolo.example/\nlocal=/2.0.192.in-addr.arpa/\nlocal-ttl=300\n\
         mx-host=tombolo.example,mail.tombolo.example,10\n\
         txt-record=note.tombolo.example,\"one text\",\"and another\"\n\
         srv-host=_chat._tcp.tombolo.example,host1.tombolo.example,5222,5,10\n\
         caa-record=tombolo.example,0,issue,ca.example\n\
         host-record=mail.tombolo.example,192.0.2.250\n"
    );
    for n in 0..HOSTS {
        // Every third host has both families, every third only one of them.
        let v4 = if n % 3 == 1 { String::new() } else { format!(",192.0.2.{}", n % 250) };
        let v6 = if n % 3 == 2 { String::new() } else { format!(",2001:db8::{n:x}") };
        let _ = writeln!(text, "host-record=host{n}.tombolo.example{v4}{v6}");
        let _ = writeln!(text, "cname=alias{n}.tombolo.example,host{n}.tombolo.example");
    }
    text
}
