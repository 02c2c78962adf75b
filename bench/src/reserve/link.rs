//! Classes of a link, in a network namespace of its own: its `lo` is the link, so nobody else sends
//! anything there.

use super::{Plan, Put, p99, us};
use crate::statistics::median;
use interface::incoming::Incoming;
use interface::traffic::{Class, FIRST_CLASS, Traffic, priority};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The capacity of the link, in bits per second.
const LINK_BITS: u64 = 200_000_000;
/// The two rates between which the class goes back and forth.
const RATES: [u64; 2] = [60_000_000, 50_000_000];
/// How soon the new rate has to be there.
const SOON: Duration = Duration::from_millis(50);
/// Bytes of a packet's payload.
const PACKET: usize = 1_400;

/// Measures how long another rate takes, and what is sent then.
pub(super) fn measure(plan: &Plan, put: &mut Put<'_>) -> Result<(), String> {
    let changes = plan.changes;
    let found = std::thread::spawn(move || in_namespace(changes)).join();
    let (times, off) = found.map_err(|_| "the sender broke off".to_owned())??;
    put("reserve.network.adapt", "us", p99(&times));
    put("network adaptation, median", "us", median(&times).unwrap_or(0.0));
    put("reserve.network.effect", "%", median(&off).unwrap_or(100.0));
    Ok(())
}

fn in_namespace(changes: usize) -> Result<(Vec<f64>, Vec<f64>), String> {
    let said = |error: std::io::Error| error.to_string();
    sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNET).map_err(said)?;
    interface::Interfaces::open().map_err(said)?.set_up(interface::LOOPBACK).map_err(said)?;
    let traffic = Traffic::open("lo", LINK_BITS).map_err(said)?;
    let class =
        |rate_bits| Class { rate_bits, ceiling_bits: rate_bits, burst_bytes: 16 << 10, precedence: 0 };
    // What comes in by a real link has the same classes, so a change is one of both. Here they are
    // those of `lo` once more.
    let sockets = sys::packet_class::Sockets::new().map_err(said)?;
    let incoming = Incoming::open("lo", LINK_BITS, &sockets).ok();
    let set = |rate: u64| -> std::io::Result<()> {
        traffic.set(FIRST_CLASS, &class(rate))?;
        incoming.as_ref().map_or(Ok(()), |incoming| incoming.traffic().set(FIRST_CLASS, &class(rate)))
    };
    set(RATES[1]).map_err(said)?;
    let (socket, sink) =
        (UdpSocket::bind("127.0.0.1:0").map_err(said)?, UdpSocket::bind("127.0.0.1:0").map_err(said)?);
    sys::socket_priority::set(socket.as_fd(), priority(FIRST_CLASS)).map_err(said)?;
    let to = sink.local_addr().map_err(said)?;
    let ended = Arc::new(AtomicBool::new(false));
    let sender = {
        let ended = Arc::clone(&ended);
        // What does not fit into the queue waits in the socket's buffer; nobody reads it at the
        // other end, where it is dropped.
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let _ = socket.send_to(&[0; PACKET], to);
            }
        })
    };
    // tidy(sleep): time is what is measured.
    std::thread::sleep(SOON * 2);
    let sent = || traffic.one(FIRST_CLASS).map_err(said).map(|counted| counted.sent_bytes);
    let (mut times, mut off) = (Vec::new(), Vec::new());
    let mut measured = || -> Result<(), String> {
        for turn in 0..changes {
            let rate = RATES[turn % 2];
            let begun = Instant::now();
            set(rate).map_err(said)?;
            times.push(us(begun.elapsed()));
            let (at, before) = (Instant::now(), sent()?);
            // tidy(sleep): time is what is measured.
            std::thread::sleep(SOON);
            let (length, after) = (at.elapsed(), sent()?);
            let found = (after - before) as f64 * 8.0 / length.as_secs_f64();
            off.push((found / rate as f64 - 1.0).abs() * 100.0);
        }
        Ok(())
    };
    let done = measured();
    ended.store(true, Ordering::Relaxed);
    let _ = sender.join();
    done.map(|()| (times, off))
}
