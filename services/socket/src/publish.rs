//! An address of the node at which others reach a server of this domain. The daemon listens there
//! and hands the socket on; both sides of what is a channel between two relays elsewhere are in
//! this process, so that limits, back-pressure and resets are the same.

use crate::counts::{Counts, Served as ServedCounts};
use crate::mount::Clients;
use crate::place::Listener;
use crate::pump::{Over, Pump};
use crate::serve::Server;
use channel::End;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use wire::socket::{Order, Published, RING_BYTES, Served};

/// How long to wait before the address is served again, where the process was out of descriptors or
/// memory.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);

/// A published address.
pub(crate) struct Publish {
    published: Published,
    /// Distributed container and domain.
    of: (String, String),
    listener: Listener,
    counts: Arc<Counts>,
}

impl Publish {
    pub(crate) fn new(order: &Order, published: Published, door: OwnedFd, counts: Arc<Counts>) -> Self {
        let of = (order.dc.clone(), order.domain.clone());
        Self { published, of, listener: Listener::of_node(door), counts }
    }

    /// Serves the address for as long as the process lives.
    pub(crate) fn run(self) {
        loop {
            if let Err(why) = self.serve() {
                tracing::warn!(at = %self.published.at, why, "a published address is served anew");
            }
            // tidy(sleep): nothing tells when there is memory again.
            std::thread::sleep(AGAIN_PAUSE);
        }
    }

    /// Comes back when one of both sides can't go on; its connections are reset.
    fn serve(&self) -> Result<(), String> {
        let config = channel::Config { ring_bytes: RING_BYTES, ..Default::default() };
        let (outside, inside) = channel::pair(&config).map_err(|error| crate::said(&error))?;
        self.attend(inside)?;
        let clients = Clients::new(&self.listener, self.published.limits, &self.counts);
        let pump = Pump::new(outside, clients, Some(self.listener.socket()), Arc::clone(&self.counts));
        let over = match pump {
            Ok(pump) => pump.run(),
            Err(over) => over,
        };
        Err(over.to_string())
    }

    /// The side of the server, on a thread of its own. What it counts is the same as the other side
    /// does.
    fn attend(&self, end: End) -> Result<(), String> {
        let served = Served {
            service: self.published.at.to_string(),
            to: self.published.to.clone(),
            proxy: false,
            limits: self.published.limits,
        };
        let (all, counts) = (Arc::<ServedCounts>::default(), Arc::<Counts>::default());
        let server = Server::new(served, self.of.clone(), all, Arc::clone(&counts));
        let at = self.published.at;
        crate::spawn("published", move || {
            let over = match Pump::new(end, server, None, counts) {
                Ok(pump) => pump.run(),
                Err(over) => over,
            };
            if !matches!(over, Over::Gone) {
                tracing::warn!(%at, "a published address: {over}");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // in a test, a panic is a message

    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::time::Instant;
    use wire::socket::{Limits, Place};

    fn publish(server: &TcpListener, max_connections: u32) -> (TcpStream, Arc<Counts>) {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        door.set_nonblocking(true).unwrap();
        let at = door.local_addr().unwrap();
        let limits =
            Limits { max_connections, connections_per_domain: max_connections, connections_per_second: None };
        let published = Published { at, to: Place::Tcp(server.local_addr().unwrap()), limits };
        let order = Order {
            dc: "shop".into(),
            domain: "web".into(),
            mounts: vec![],
            serves: vec![],
            publishes: vec![],
        };
        let counts = Arc::<Counts>::default();
        let publish = Publish::new(&order, published, door.into(), Arc::clone(&counts));
        // It ends with the test.
        let _serving = std::thread::spawn(move || publish.run());
        (TcpStream::connect(at).unwrap(), counts)
    }

    #[test]
    fn who_comes_to_the_address_speaks_with_the_server() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut client, counts) = publish(&server, 8);
        let (mut served, _) = server.accept().unwrap();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        served.read_to_string(&mut text).unwrap();
        assert_eq!(text, "question");
        served.write_all(b"answer").unwrap();
        drop(served);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer");
        // The client sees the end a moment before the relay counts it.
        let deadline = Instant::now() + Duration::from_secs(10);
        while counts.open() != 0 {
            assert!(Instant::now() < deadline, "the connection is still counted");
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_is_one_too_many_waits() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (first, counts) = publish(&server, 1);
        let (served, _) = server.accept().unwrap();
        let second = TcpStream::connect(first.peer_addr().unwrap()).unwrap();
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(counts.open(), 1);
        server.set_nonblocking(false).unwrap();
        drop((first, served));
        let (served, _) = server.accept().unwrap();
        drop((second, served));
    }
}
