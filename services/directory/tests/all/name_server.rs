//! Against a real name server: dnsmasq, with the zone that the quickstart ships.

use crate::stage::{Stage, settings};
use rustix::io::Errno;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ports that are tried.
const PORTS: usize = 5;

struct NameServer {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl NameServer {
    /// `None`, and a word on why, where there is no dnsmasq.
    fn start() -> Option<Self> {
        if Command::new("dnsmasq").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("skipped: no dnsmasq on this machine; it is in Debian's package dnsmasq-base");
            return None;
        }
        // A port that was free a moment ago may be somebody else's by now.
        (0..PORTS)
            .find_map(|_| Self::start_at_some_port())
            .or_else(|| panic!("dnsmasq does not answer at any port"))
    }

    /// `None` where dnsmasq has ended: it could not have the port.
    fn start_at_some_port() -> Option<Self> {
        let port = UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/zone.conf");
        let zone = std::fs::read_to_string(shipped).expect("the zone");
        assert!(zone.contains("\nport=5354\n"), "the quickstart's topology expects it there");
        let folder = tempfile::tempdir().expect("a folder");
        let configuration = folder.path().join("zone.conf");
        std::fs::write(&configuration, zone.replace("\nport=5354\n", &format!("\nport={port}\n")))
            .expect("written");
        let child = Command::new("dnsmasq")
            .args(["--keep-in-foreground", "--user=root"])
            .arg(format!("--conf-file={}", configuration.display()))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("dnsmasq starts");
        let mut server = Self { child, port, _folder: folder };
        server.answers().then_some(server)
    }

    /// Waits until it answers; false when it has ended.
    fn answers(&mut self) -> bool {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
        let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x0aquickstart\x04test\x00\x00\x01\x00\x01";
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let _refused_until_it_listens = socket.send_to(query, ("127.0.0.1", self.port));
            if socket.recv(&mut [0; 512]).is_ok() {
                return true;
            }
            if self.child.try_wait().expect("its state").is_some() {
                return false;
            }
            assert!(Instant::now() < deadline, "dnsmasq does not answer");
        }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn each_type_of_the_quickstarts_zone_is_answered() {
    let Some(server) = NameServer::start() else { return };
    let mut wide = settings(&[([127, 0, 0, 1], server.port).into()]);
    wide.timeout_ms = 5000;
    wide.search = vec!["quickstart.test".into()];
    let stage = Stage::set(&wide);
    let mut link = stage.link("a");
    for (question, lines) in [
        ("www", "www.quickstart.test. 300 A 192.0.2.10\nwww.quickstart.test. 300 AAAA 2001:db8::10\n"),
        ("A lidar.quickstart.test", "lidar.quickstart.test. 300 A 192.0.2.31\n"),
        ("mapper", "mapper.quickstart.test. 300 AAAA 2001:db8::51\n"),
        (
            "A shop",
            "shop.quickstart.test. 300 CNAME www.quickstart.test.\nwww.quickstart.test. 300 A 192.0.2.10\n",
        ),
        ("CNAME eye", "eye.quickstart.test. 300 CNAME camera.quickstart.test.\n"),
        ("A bücher.quickstart.test", "xn--bcher-kva.quickstart.test. 300 A 192.0.2.90\n"),
        ("PTR 192.0.2.30", "30.2.0.192.in-addr.arpa. 300 PTR camera.quickstart.test.\n"),
        (
            "SRV _camera._tcp.quickstart.test",
            "_camera._tcp.quickstart.test. 300 SRV 10 5 554 camera.quickstart.test.\n",
        ),
        ("TXT camera.quickstart.test", "camera.quickstart.test. 300 TXT \"model=t1\" \"lens=8 mm\"\n"),
        ("CAA quickstart.test", "quickstart.test. 300 CAA 0 issue \"ca.quickstart.test\"\n"),
        (
            "NAPTR quickstart.test",
            "quickstart.test. 300 NAPTR 10 100 \"S\" \"EVENTS+D2T\" \"\" _events._tcp.quickstart.test.\n",
        ),
        ("NS quickstart.test", "quickstart.test. 300 NS ns.quickstart.test.\n"),
        (
            "SOA quickstart.test",
            "quickstart.test. 300 SOA ns.quickstart.test. hostmaster.quickstart.test. 2026112001 1200 120 1209600 300\n",
        ),
    ] {
        assert_eq!(link.query(question).as_deref(), Ok(lines), "{question}");
    }
    let mut mail: Vec<_> =
        link.query("MX quickstart.test").expect("answers").lines().map(String::from).collect();
    mail.sort();
    assert_eq!(
        mail,
        [
            "quickstart.test. 300 MX 10 mail.quickstart.test.",
            "quickstart.test. 300 MX 20 gateway.quickstart.test."
        ]
    );
    assert_eq!(link.query("A fleet").expect("answers").lines().count(), 3);
}

#[test]
fn what_the_zone_does_not_have_has_an_errno() {
    let Some(server) = NameServer::start() else { return };
    let mut wide = settings(&[([127, 0, 0, 1], server.port).into()]);
    wide.timeout_ms = 5000;
    let stage = Stage::set(&wide);
    let mut link = stage.link("a");
    assert_eq!(link.query("nobody.quickstart.test"), Err(Errno::NOENT));
    assert_eq!(link.query("MX lidar.quickstart.test"), Err(Errno::NODATA));
    assert_eq!(link.query("PTR 192.0.2.99"), Err(Errno::NOENT));
    assert_eq!(link.query("A example.com"), Err(Errno::CONNREFUSED));
}
