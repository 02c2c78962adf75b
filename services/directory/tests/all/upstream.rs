//! A name server of the test's own, which does as it is told.

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, TXT};
use hickory_proto::rr::{Name, RData, Record};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The answers to a query: packets over UDP, raw bytes over TCP.
pub type Behaviour = Box<dyn Fn(&Message, bool) -> Vec<Vec<u8>> + Send + Sync>;

pub struct Upstream {
    pub address: SocketAddr,
    stopped: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    pub queries: Arc<Mutex<Vec<Message>>>,
    pub ports: Arc<Mutex<Vec<u16>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Upstream {
    /// Listens on a free port, UDP and TCP, and does `behaviour` with each query.
    pub fn start(behaviour: impl Fn(&Message, bool) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Self {
        let (udp, tcp) = bind();
        let address = udp.local_addr().expect("its address");
        let (stopped, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (queries, ports) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let behaviour: Arc<Behaviour> = Arc::new(Box::new(behaviour));
        let (stop, count, heard, from) = (stopped.clone(), asked.clone(), queries.clone(), ports.clone());
        let answer = behaviour.clone();
        let datagrams = std::thread::spawn(move || {
            let mut packet = [0; 65536];
            while let Ok((came, sender)) = udp.recv_from(&mut packet) {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(query) = Message::from_vec(&packet[..came]) else { continue };
                count.fetch_add(1, Ordering::SeqCst);
                from.lock().expect("unpoisoned").push(sender.port());
                heard.lock().expect("unpoisoned").push(query.clone());
                for reply in answer(&query, false) {
                    let _the_asker_may_be_gone = udp.send_to(&reply, sender);
                }
            }
        });
        let (stop, count) = (stopped.clone(), asked.clone());
        let streams = std::thread::spawn(move || {
            // Streams that got no answer stay open, so that the asker's time-out decides.
            let mut open = Vec::new();
            while let Ok((stream, _)) = tcp.accept() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                count.fetch_add(1, Ordering::SeqCst);
                if !serve(&stream, &behaviour) {
                    open.push(stream);
                }
            }
        });
        Self { address, stopped, asked, queries, ports, threads: vec![datagrams, streams] }
    }

    /// How many queries came.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Answers one query of a stream; whether there was anything to say.
fn serve(mut stream: &TcpStream, behaviour: &Behaviour) -> bool {
    let mut length = [0; 2];
    if stream.read_exact(&mut length).is_err() {
        return true;
    }
    let mut packet = vec![0; usize::from(u16::from_be_bytes(length))];
    let query = stream.read_exact(&mut packet).ok().and_then(|()| Message::from_vec(&packet).ok());
    let replies = query.map(|query| behaviour(&query, true)).unwrap_or_default();
    for reply in &replies {
        let _the_asker_may_be_gone = stream.write_all(reply);
    }
    !replies.is_empty()
}

/// The same port for both.
fn bind() -> (UdpSocket, TcpListener) {
    for _ in 0..100 {
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().expect("its address")) {
            return (udp, tcp);
        }
    }
    panic!("no port that is free for both UDP and TCP");
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let knock = UdpSocket::bind("127.0.0.1:0").expect("a port");
        knock.send_to(b"", self.address).expect("sent");
        drop(TcpStream::connect(self.address));
        for thread in self.threads.drain(..) {
            let joined = thread.join();
            assert!(std::thread::panicking() || joined.is_ok(), "the upstream does not panic");
        }
    }
}

/// A response to `query` with nothing in it.
pub fn reply(query: &Message) -> Message {
    let mut message = Message::response(query.metadata.id, OpCode::Query);
    message.queries = query.queries.clone();
    message.metadata.recursion_desired = true;
    message.metadata.recursion_available = true;
    message
}

pub fn name(text: &str) -> Name {
    Name::from_ascii(text).expect("a name")
}

/// The name that was asked for.
pub fn asked_name(query: &Message) -> Name {
    query.queries[0].name().clone()
}

pub fn a(owner: Name, ttl: u32, last: u8) -> Record {
    Record::from_rdata(owner, ttl, RData::A(A::new(192, 0, 2, last)))
}

pub fn cname(owner: Name, target: &str) -> Record {
    Record::from_rdata(owner, 60, RData::CNAME(CNAME(name(target))))
}

pub fn txt(owner: Name, bytes: &[u8]) -> Record {
    Record::from_rdata(owner, 60, RData::TXT(TXT::from_bytes(vec![bytes])))
}

pub fn bytes(message: &Message) -> Vec<u8> {
    message.to_vec().expect("encoded")
}

/// One address, 192.0.2.1 for five minutes.
pub fn good(query: &Message) -> Message {
    let mut message = reply(query);
    message.add_answer(a(asked_name(query), 300, 1));
    message
}

/// Nothing but a code.
pub fn code(query: &Message, code: ResponseCode) -> Message {
    let mut message = reply(query);
    message.metadata.response_code = code;
    message
}

/// A message as a stream carries it.
pub fn framed(message: &Message) -> Vec<u8> {
    let bytes = bytes(message);
    [&u16::try_from(bytes.len()).expect("short").to_be_bytes()[..], &bytes].concat()
}
