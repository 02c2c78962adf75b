//! Numbered requests and their answers, in a closed or in an open loop.

use super::numbered::{Check, HEADER_BYTES, Numbered};
use super::task::{Exchange, LAST, Pace, Tale};
use super::transport::Transport;
use crate::histogram::Latencies;
use crate::talk::await_clock;
use statistics::open_loop::{self, Arrivals, Sample, Samples, Schedule};
use statistics::warm_up::settled;
use std::io;
use sys::clock::clock_ns;

/// Samples that are kept, in their order, before they become a histogram: 16 MiB.
const SAMPLES_MAX: usize = 1 << 20;
/// An open loop sleeps until so long before a request is due, and then looks at the clock: a sleep
/// ends some 50 us late.
const AWAKE_BEFORE_NS: u64 = 150_000;
/// Answers with earlier numbers that are passed over while one is waited for.
const LATE_MAX: usize = 1_000;
/// How often the last message is sent, where messages may be lost.
const LAST_TRIES: u32 = 5;

/// Asks by the schedule, and tells what came of it.
pub fn ask(transport: &mut impl Transport, bytes: usize, exchange: &Exchange) -> io::Result<Tale> {
    let schedule = match exchange.pace {
        Pace::Closed => None,
        Pace::Periodic { interval_ns } => Some((Arrivals::Periodic, interval_ns)),
        Pace::Poisson { interval_ns } => Some((Arrivals::Poisson, interval_ns)),
    };
    let schedule = schedule.map(|(arrivals, interval)| Schedule::new(arrivals, interval, exchange.seed));
    let mut asking = Asking { transport, numbered: Numbered::new(bytes, exchange.seed), wrong: 0 };
    let samples = open_loop::run(&mut asking, schedule, exchange.window_ns, SAMPLES_MAX)?;
    let wrong = asking.wrong;
    finish(asking.transport, bytes)?;
    Ok(Tale { wrong, ..tale(&samples) })
}

fn tale(samples: &Samples) -> Tale {
    Tale { unanswered: samples.unanswered, window_ns: samples.elapsed_ns, ..measured(&samples.answered) }
}

/// Latencies of samples that are in the order in which they were due, without those of the warm-up.
#[must_use]
pub fn measured(samples: &[Sample]) -> Tale {
    let series: Vec<f64> = samples.iter().map(|sample| sample.uncorrected_ns as f64).collect();
    let found = settled(&series);
    let warm_up = found.unwrap_or_default();
    let (mut latencies, mut uncorrected) = (Latencies::new(), Latencies::new());
    for sample in samples.iter().skip(warm_up) {
        latencies.record(sample.latency_ns);
        uncorrected.record(sample.uncorrected_ns);
    }
    Tale {
        latencies,
        uncorrected,
        operations: samples.len() as u64,
        warm_up: warm_up as u64,
        is_unsettled: found.is_none(),
        ..Tale::default()
    }
}

/// The client.
struct Asking<'a, T> {
    transport: &'a mut T,
    numbered: Numbered,
    wrong: u64,
}

impl<T: Transport> open_loop::Exchange for Asking<'_, T> {
    type Error = io::Error;

    fn now_ns(&mut self) -> u64 {
        clock_ns()
    }

    fn wait_until(&mut self, instant_ns: u64) {
        if clock_ns() + AWAKE_BEFORE_NS < instant_ns {
            await_clock(instant_ns - AWAKE_BEFORE_NS);
        }
        compute_until(instant_ns);
    }

    fn exchange(&mut self) -> io::Result<bool> {
        self.transport.send(self.numbered.make())?;
        self.transport.flush()?;
        for _ in 0..LATE_MAX {
            match self.transport.receive() {
                Ok(answer) => match self.numbered.check(answer) {
                    Check::Right => return Ok(true),
                    Check::Earlier => {}
                    Check::Wrong => {
                        self.wrong += 1;
                        return Ok(false);
                    }
                },
                Err(error) if is_timeout(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Answers each message with itself, up to the last, after having computed for so long.
pub fn answer(transport: &mut impl Transport, bytes: usize, exchange: &Exchange) -> io::Result<Tale> {
    let mut numbered = Numbered::new(bytes, exchange.seed);
    let mut reply = Vec::with_capacity(bytes);
    let mut wrong = 0;
    loop {
        let question = transport.receive()?;
        reply.clear();
        reply.extend_from_slice(question);
        let is_last = reply.first() == Some(&LAST);
        if !is_last {
            wrong += u64::from(!numbered.takes(&reply));
            if exchange.work_ns > 0 {
                compute_until(clock_ns() + exchange.work_ns);
            }
        }
        transport.send(&reply)?;
        transport.flush()?;
        if is_last {
            return Ok(Tale { wrong, ..Tale::default() });
        }
    }
}

/// Sends the last message until the answer to it comes; answers to others may still come before.
fn finish(transport: &mut impl Transport, bytes: usize) -> io::Result<()> {
    let last = vec![LAST; bytes.max(HEADER_BYTES)];
    for _ in 0..LAST_TRIES {
        transport.send(&last)?;
        transport.flush()?;
        for _ in 0..LATE_MAX {
            match transport.receive() {
                Ok(answer) if answer.first() == Some(&LAST) => return Ok(()),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the last message was not answered"))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// Keeps the processor busy until an instant.
fn compute_until(instant_ns: u64) {
    while clock_ns() < instant_ns {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Answers with whatever the test makes of a request.
    struct Peer<F>(VecDeque<io::Result<Vec<u8>>>, Vec<u8>, F);

    impl<F: FnMut(&[u8]) -> Vec<io::Result<Vec<u8>>>> Transport for Peer<F> {
        fn send(&mut self, message: &[u8]) -> io::Result<()> {
            let made = (self.2)(message);
            self.0.extend(made);
            Ok(())
        }

        fn receive(&mut self) -> io::Result<&[u8]> {
            self.1 = self.0.pop_front().ok_or(io::ErrorKind::UnexpectedEof)??;
            Ok(&self.1)
        }
    }

    fn with(pace: Pace, makes: impl FnMut(&[u8]) -> Vec<io::Result<Vec<u8>>>) -> Tale {
        let exchange = Exchange { pace, work_ns: 0, window_ns: 3_000_000, seed: 9 };
        ask(&mut Peer(VecDeque::new(), Vec::new(), makes), 64, &exchange).expect("it ends")
    }

    #[test]
    fn an_echo_is_right_in_every_loop() {
        for pace in
            [Pace::Closed, Pace::Periodic { interval_ns: 100_000 }, Pace::Poisson { interval_ns: 100_000 }]
        {
            let tale = with(pace, |message| vec![Ok(message.to_vec())]);
            assert!(tale.operations > 0 && tale.wrong == 0 && tale.unanswered == 0, "{pace:?}: {tale:?}");
            assert_eq!(tale.latencies.count() + tale.warm_up, tale.operations);
        }
    }

    #[test]
    fn a_peer_that_lies_is_found_and_its_answers_have_no_latency() {
        let tale = with(Pace::Periodic { interval_ns: 100_000 }, |message| {
            let mut lie = message.to_vec();
            // The number of the request before.
            lie[1] = lie[1].wrapping_add(1);
            vec![Ok(lie)]
        });
        assert!(tale.operations == 0 && tale.wrong > 0 && tale.latencies.count() == 0, "{tale:?}");
    }

    #[test]
    fn what_is_lost_is_counted_and_what_is_late_is_passed_over() {
        let mut count = 0;
        let mut kept: Option<Vec<u8>> = None;
        let tale = with(Pace::Periodic { interval_ns: 100_000 }, |message| {
            count += 1;
            if count == 2 && message[0] != LAST {
                kept = Some(message.to_vec());
                return vec![Err(io::ErrorKind::WouldBlock.into())];
            }
            kept.take().into_iter().map(Ok).chain([Ok(message.to_vec())]).collect()
        });
        assert!(tale.unanswered == 1 && tale.wrong == 0 && tale.operations > 5, "{tale:?}");
    }

    #[test]
    fn a_server_tells_what_was_never_sent() {
        let mut asks = Numbered::new(64, 9);
        let first = asks.make().to_vec();
        let coming: VecDeque<io::Result<Vec<u8>>> =
            [first.clone(), first, vec![LAST; 64]].into_iter().map(Ok).collect();
        let exchange = Exchange { pace: Pace::Closed, work_ns: 10_000, window_ns: 0, seed: 9 };
        let begin = clock_ns();
        let tale =
            answer(&mut Peer(coming, Vec::new(), |_: &[u8]| Vec::new()), 64, &exchange).expect("it ends");
        assert_eq!(tale.wrong, 1);
        assert!(clock_ns() - begin >= 20_000);
    }
}
