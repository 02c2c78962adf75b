//! Halves of what is measured: ours, and TCP through the guests' network cards.
//! `programs/vchan_peer.c` does the same with vchans.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use channel::{Config, Mode, StreamReader, StreamWriter};

use crate::Failure;
use crate::measures::{Half, What};

/// Bytes of each ring: what libxenvchan gets, too.
const RING_BYTES: u32 = 256 << 10;
/// Round trips that do not count.
const WARM_UP: usize = 20;
const PORT: u16 = 7777;
/// How long one half waits for the other.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two directions of whole messages.
trait Way {
    fn put(&mut self, message: &[u8]) -> Result<(), Failure>;
    fn get(&mut self, message: &mut Vec<u8>, length: usize) -> Result<(), Failure>;
}

struct Ours(channel::Sender, channel::Receiver);

impl Way for Ours {
    fn put(&mut self, message: &[u8]) -> Result<(), Failure> {
        Ok(self.0.send(message, Some(Instant::now() + TIMEOUT))?)
    }

    fn get(&mut self, message: &mut Vec<u8>, length: usize) -> Result<(), Failure> {
        message.clear();
        self.1.receive(message, Some(Instant::now() + TIMEOUT))?;
        if message.len() == length { Ok(()) } else { Err("another message".into()) }
    }
}

/// A channel that carries bytes, as the two other ways do.
struct OurBytes(StreamWriter, StreamReader);

impl Way for OurBytes {
    fn put(&mut self, message: &[u8]) -> Result<(), Failure> {
        Ok(self.0.write_all(message)?)
    }

    fn get(&mut self, message: &mut Vec<u8>, length: usize) -> Result<(), Failure> {
        message.resize(length, 0);
        Ok(self.1.read_exact(message)?)
    }
}

impl Way for TcpStream {
    fn put(&mut self, message: &[u8]) -> Result<(), Failure> {
        Ok(self.write_all(message)?)
    }

    fn get(&mut self, message: &mut Vec<u8>, length: usize) -> Result<(), Failure> {
        message.resize(length, 0);
        Ok(self.read_exact(message)?)
    }
}

/// Runs one half; the client prints what it measured: of round trips the median, of a stream the
/// whole, in ns.
pub fn run(way: &str, half: Half, peer: u16, name: &str, what: What) -> Result<(), Failure> {
    let mut way: Box<dyn Way> = match (way, half) {
        ("channel", half) => {
            let mode = if what.stream { Mode::Stream } else { Mode::Messages };
            let config = Config { ring_bytes: RING_BYTES, mode, ..Config::default() };
            let end = match half {
                Half::Server => xen::offer(peer, name, &config)?,
                Half::Client => xen::open(peer, name, Some(Instant::now() + TIMEOUT))?,
            };
            if half == Half::Server {
                println!("there");
            }
            if what.stream {
                let (writer, reader) = end.open_stream()?;
                Box::new(OurBytes(writer, reader))
            } else {
                let (sender, receiver) = end.open()?;
                Box::new(Ours(sender, receiver))
            }
        }
        ("tcp", Half::Server) => {
            let listener = TcpListener::bind(("0.0.0.0", PORT))?;
            println!("there");
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        ("tcp", Half::Client) => {
            let stream = TcpStream::connect((format!("10.77.{peer}.2").as_str(), PORT))?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        _ => return Err("no such way".into()),
    };
    measure(&mut *way, half, what)
}

fn measure(way: &mut dyn Way, half: Half, what: What) -> Result<(), Failure> {
    let message = vec![0; what.bytes];
    let mut got = Vec::new();
    match (what.stream, half) {
        (true, Half::Server) => {
            for _ in 0..what.count {
                way.get(&mut got, what.bytes)?;
            }
            way.put(&[1])?;
            // The client goes first.
            let _closed = way.get(&mut got, 1);
        }
        (true, Half::Client) => {
            let begin = Instant::now();
            for _ in 0..what.count {
                way.put(&message)?;
            }
            way.get(&mut got, 1)?;
            println!("{}", begin.elapsed().as_nanos());
        }
        (false, Half::Server) => {
            for _ in 0..what.count + WARM_UP {
                way.get(&mut got, what.bytes)?;
                way.put(&got)?;
            }
            let _closed = way.get(&mut got, 1);
        }
        (false, Half::Client) => {
            let mut times = Vec::with_capacity(what.count + WARM_UP);
            for _ in 0..what.count + WARM_UP {
                let begin = Instant::now();
                way.put(&message)?;
                way.get(&mut got, what.bytes)?;
                times.push(begin.elapsed().as_nanos());
            }
            let mut counted = times.split_off(WARM_UP);
            counted.sort_unstable();
            println!("{}", counted.get(counted.len() / 2).copied().unwrap_or(0));
        }
    }
    Ok(())
}
