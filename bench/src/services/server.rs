//! The service of the bench: a session that says what it is told, and a stream whose records come
//! when they are asked for.

use service::{Errno, Error, Service, Stream, StreamOptions};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use sys::clock::clock_ns;

/// The service's name.
pub const NAME: &str = "kit";
/// The verb that its files want.
pub const VERB: &str = "use";
/// How long a reader may take for a record before the rest is left out.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a reader sleeps before it is woken.
pub const PAUSE: Duration = Duration::from_micros(200);
/// Records of one burst, at the most.
const MAX_BURST: usize = 1 << 20;
/// Bytes of a record, at the most.
const MAX_RECORD_BYTES: usize = 64 << 10;

/// An order to the thread that publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// So many records of so many bytes.
    Burst(usize, usize),
    /// One record with the instant at which it was published, after a pause.
    Wake,
}

impl Order {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = str::from_utf8(line).ok()?.split(' ');
        let order = match words.next()? {
            "burst" => {
                let mut number = || words.next()?.parse::<usize>().ok();
                Self::Burst(number()?.min(MAX_BURST), number()?.min(MAX_RECORD_BYTES))
            }
            "wake" => Self::Wake,
            _ => return None,
        };
        words.next().is_none().then_some(order)
    }
}

/// Serves in a domain until it ends.
///
/// # Errors
/// Those of the service.
pub fn serve() -> Result<(), Error> {
    let mut kit = Service::new(NAME, ())?;
    let records = kit.stream("records", VERB, StreamOptions::default());
    let (sender, orders) = channel();
    std::thread::spawn(move || publish(&records, &orders));
    kit.control("ctl", VERB, move |(), _, line| {
        let order = Order::parse(line).ok_or(Errno::INVAL)?;
        sender.send(order).map_err(|_| Errno::IO)
    });
    kit.session("ask", VERB, |(), _, line| Ok(line.to_vec()));
    kit.run()
}

fn publish(records: &Stream, orders: &Receiver<Order>) {
    while let Ok(order) = orders.recv() {
        match order {
            Order::Burst(count, bytes) => {
                let record = vec![7; bytes];
                // The rest of a burst is left out where its reader has gone to sleep for good; who
                // misses it says so.
                let _all = (0..count).try_for_each(|_| records.publish_when_read(&record, TIMEOUT));
            }
            Order::Wake => {
                // tidy(sleep): the reader has to be asleep, which nothing tells.
                std::thread::sleep(PAUSE);
                let _said_by_who_misses_it = records.publish_when_read(clock_ns().to_le_bytes(), TIMEOUT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_nonsense_is_none() {
        assert_eq!(Order::parse(b"burst 512 64"), Some(Order::Burst(512, 64)));
        assert_eq!(Order::parse(b"burst 1 99999999"), Some(Order::Burst(1, MAX_RECORD_BYTES)));
        assert_eq!(Order::parse(b"wake"), Some(Order::Wake));
        for line in [&b"burst 1"[..], b"burst x 1", b"wake up", b"", b"\xff"] {
            assert_eq!(Order::parse(line), None, "{line:?}");
        }
    }
}
