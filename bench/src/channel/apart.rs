//! How two workers meet that share neither files nor memory, because one of them is in a guest: by
//! a channel service that the follower offers, or by an address.

use super::task::{Means, Role, Tale, Task};
use super::transport::{Bytes, Impatient, Job as _, Spinning, Tombolo};
use super::work::{Messages, Talk};
use crate::talk::say;
use channel::End;
use session::{Control, Offer};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long it may take to find each other: a device is plugged into a guest meanwhile.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A connection on which nothing goes for so long has stalled: a thousand times what the slowest
/// operation takes.
const STALL: Duration = Duration::from_secs(3);
/// The entrance that a program names to the daemon: the program itself, no entrance of ours.
const ENTRANCE: &str = "api";

impl Means {
    /// Whether the two meet like this.
    #[must_use]
    pub fn is_apart(&self) -> bool {
        matches!(self, Self::Offered { .. } | Self::Network { .. })
    }
}

/// The state that a worker keeps from task to task: its offer, so that no task comes before the end
/// of the offer of the one before; and its channel, because there would be nothing to gain from
/// making another.
#[derive(Debug, Default)]
pub struct Doors {
    offer: Option<(PathBuf, String, Offer)>,
    channel: Option<Tombolo>,
}

impl Doors {
    /// Meets the other, and does the work.
    ///
    /// # Errors
    /// Where the other does not come, and those of the work.
    pub fn carry(&mut self, task: &Task, talk: &mut Talk<'_>) -> io::Result<Tale> {
        match (&task.means, task.role) {
            (Means::Offered { control, name, waiting, anew }, role) => {
                let mut channel = match self.channel.take().filter(|_| !anew) {
                    Some(kept) if role == Role::Follow => {
                        say(talk.output, "waiting")?;
                        kept
                    }
                    Some(kept) => kept,
                    None => Tombolo::of(self.meet(control, name, role, talk)?, task.bytes, true)?,
                };
                channel.wait_like(*waiting);
                let tale = Messages::new(task, talk).run(&mut channel);
                self.channel = Some(channel);
                tale
            }
            (Means::Network { address, port, polled }, role) => {
                let address: SocketAddr = format!("{address}:{port}").parse().map_err(io::Error::other)?;
                let stream = match role {
                    Role::Follow => {
                        let listener = TcpListener::bind(address)?;
                        say(talk.output, "waiting")?;
                        accept(&listener, TIMEOUT)?
                    }
                    Role::Lead => TcpStream::connect_timeout(&address, TIMEOUT)?,
                };
                if *polled {
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    let reader = Spinning::new(stream.try_clone()?, STALL);
                    let messages = Bytes::new(reader, Spinning::new(stream, STALL), task.bytes);
                    return Messages::new(task, talk).run(messages);
                }
                Messages::new(task, talk).run(Impatient::new(stream, STALL)?.messages(task.bytes)?)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The end of a new channel.
    fn meet(&mut self, control: &Path, name: &str, role: Role, talk: &mut Talk<'_>) -> io::Result<End> {
        let deadline = Instant::now() + TIMEOUT;
        if role == Role::Lead {
            return open(control, name, deadline);
        }
        let offer = self.offer(control, name, deadline)?;
        say(talk.output, "waiting")?;
        Ok(offer.accept(Some(Instant::now() + TIMEOUT)).map_err(io::Error::other)?.0)
    }

    fn offer(&mut self, control: &Path, name: &str, deadline: Instant) -> io::Result<&mut Offer> {
        let kept = self.offer.take().filter(|(path, service, _)| path == control && service == name);
        let offer = match kept {
            Some((_, _, offer)) => offer,
            None => Offer::at(control, name, deadline).map_err(io::Error::other)?,
        };
        Ok(&mut self.offer.insert((control.to_path_buf(), name.to_owned(), offer)).2)
    }
}

fn open(control: &Path, name: &str, deadline: Instant) -> io::Result<End> {
    let mut control = Control::connect(control).map_err(io::Error::other)?;
    let wait_ms = TIMEOUT.as_millis() as u32;
    let opened = control.connect_waiting(name, ENTRANCE, (0, wait_ms), deadline);
    Ok(opened.map_err(io::Error::other)?.1)
}

/// accept(2) with an end.
fn accept(listener: &TcpListener, patience: Duration) -> io::Result<TcpStream> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let ready =
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)))?;
    if ready == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "nobody connected"));
    }
    Ok(listener.accept()?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::task::Work;
    use crate::channel::work::converse;
    use std::sync::mpsc;

    /// An address of the loopback from which no connection leaves: a port of it that was free stays
    /// so.
    const APART: &str = "127.0.80.1";

    fn task(role: Role, work: Work, port: u16) -> Task {
        let means = Means::Network { address: APART.into(), port, polled: false };
        Task { role, means, work, bytes: 64, meeting: PathBuf::new(), processor: None }
    }

    /// Says when something was said.
    struct Heard(Vec<u8>, mpsc::Sender<()>);

    impl io::Write for Heard {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            // Nobody listens to the leader.
            let _ = self.1.send(());
            Ok(())
        }
    }

    fn tale(task: &Task, said: mpsc::Sender<()>) -> Tale {
        let input = format!("{}\n\n", serde_json::to_string(task).expect("JSON"));
        let mut output = Heard(Vec::new(), said);
        let talk = &mut Talk { input: &mut input.as_bytes(), output: &mut output };
        converse(talk, |_, _, _| Err(io::ErrorKind::Unsupported.into())).expect("it works");
        let text = String::from_utf8(output.0).expect("text");
        serde_json::from_str(text.lines().last().unwrap_or_default()).expect("a tale")
    }

    fn tales(work: Work) -> [Tale; 2] {
        let port = TcpListener::bind((APART, 0)).and_then(|free| free.local_addr()).expect("a port").port();
        let (said, hears) = mpsc::channel();
        std::thread::scope(|scope| {
            let follow = scope.spawn(move || tale(&task(Role::Follow, work, port), said));
            // `ready`, `waiting`.
            (0..2).for_each(|_| hears.recv().expect("the follower speaks"));
            let lead = tale(&task(Role::Lead, work, port), mpsc::channel().0);
            [lead, follow.join().expect("no panic")]
        })
    }

    #[test]
    fn two_meet_by_an_address_and_measure() {
        let [lead, _] =
            tales(Work::RoundTrips { at_once: 1, gap_ns: 0, warm_up_ns: 0, window_ns: 3_000_000 });
        assert!(lead.operations > 0 && lead.window_ns > 0, "{lead:?}");
    }

    #[test]
    fn a_stream_back_is_counted_by_the_leader() {
        let [lead, follow] = tales(Work::StreamBack { warm_up_ns: 1_000_000, window_ns: 5_000_000 });
        assert!(lead.operations > 0 && lead.window_ns > 0, "{lead:?}");
        assert!(follow.operations > 0, "{follow:?}");
    }

    #[test]
    fn a_rest_ends_by_a_message() {
        let [lead, _] = tales(Work::Rest);
        assert_eq!(lead.operations, 1);
    }

    #[test]
    fn who_waits_in_vain_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let error = accept(&listener, Duration::from_millis(1)).expect_err("nobody is there");
        assert_eq!(error.to_string(), "nobody connected");
        let stream = TcpStream::connect(listener.local_addr().expect("it has one")).expect("a connection");
        let mut stalls = Impatient::new(stream, Duration::from_millis(1)).expect("set");
        let error = io::Read::read(&mut stalls, &mut [0; 1]).expect_err("nothing comes");
        assert_eq!(error.to_string(), "the connection stalled");
    }
}
