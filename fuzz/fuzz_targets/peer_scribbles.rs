//! An end under traffic while another thread scribbles over everything, as fast as it can, before
//! the end is opened and for as long as it lives. What must hold: no panic, no access outside, no
//! call that misses its deadline.
#![cfg_attr(feature = "fuzzing", no_main)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use channel::{End, Mode, ReceiveError, SendError};
use fuzz::script::Script;
use fuzz::stage::{self, Hand, in_time};

/// Calls of ours per script: a millisecond or so.
const CALLS: usize = 40;

fuzz::target!(|bytes: &[u8]| {
    let mut script = Script::new(bytes);
    let mode = if script.flag() { Mode::Stream } else { Mode::Messages };
    let (ours, _peer, hand) = stage::ends(usize::from(script.flag()), mode);
    let calls: [u8; CALLS] = script.bytes();
    let under_fire = script.flag();
    let (firing, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let hand = &hand;
    thread::scope(|scope| {
        scope.spawn(|| {
            // Both are ready when the first act of malice is due.
            while !under_fire && !firing.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            scribble(hand, &script, &done);
        });
        let ends = opened(ours, mode);
        firing.store(true, Ordering::Release);
        if let Some(ends) = ends {
            traffic(ends, &calls);
        }
        done.store(true, Ordering::Relaxed);
    });
});

enum Ends {
    Messages(channel::Sender, channel::Receiver),
    Stream(channel::StreamWriter, channel::StreamReader),
}

fn opened(end: End, mode: Mode) -> Option<Ends> {
    match mode {
        Mode::Messages => end.open().map(|(sender, receiver)| Ends::Messages(sender, receiver)).ok(),
        Mode::Stream => end.open_stream().map(|(writer, reader)| Ends::Stream(writer, reader)).ok(),
    }
}

/// Plays the script again and again.
fn scribble(hand: &Hand, script: &Script<'_>, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let mut turn = script.clone();
        hand.scribble(&mut turn);
        while !turn.is_over() && !done.load(Ordering::Relaxed) {
            hand.scribble(&mut turn);
        }
    }
}

fn traffic(ends: Ends, calls: &[u8]) {
    match ends {
        Ends::Messages(mut sender, mut receiver) => {
            let mut got = Vec::new();
            receiver.set_message_limit(usize::from(calls[0]) * 64);
            sender.set_batch_bytes(usize::from(calls[1]));
            for call in calls {
                let length = usize::from(*call) * 8;
                let sent = match call % 3 {
                    0 => sender.try_send(&vec![*call; length]),
                    _ => in_time(|deadline| sender.send(&vec![*call; length], deadline)),
                };
                let received = match call % 3 {
                    0 => receiver.try_receive(&mut got).map(Option::unwrap_or_default),
                    _ => in_time(|deadline| receiver.receive(&mut got, deadline)),
                };
                assert!(got.len() <= receiver.message_limit());
                if is_over(sent.err(), received.err()) {
                    return;
                }
            }
        }
        Ends::Stream(mut writer, mut reader) => {
            for call in calls {
                let mut bytes = vec![*call; usize::from(*call) * 30];
                let sent = match call % 3 {
                    0 => writer.try_write(&bytes),
                    _ => in_time(|deadline| writer.write_with(&bytes, deadline)),
                };
                let received = match call % 3 {
                    0 => reader.try_read(&mut bytes).map(Option::unwrap_or_default),
                    _ => in_time(|deadline| reader.read_with(&mut bytes, deadline)),
                };
                if is_over(sent.err(), received.err()) {
                    return;
                }
            }
        }
    }
}

fn is_over(sent: Option<SendError>, received: Option<ReceiveError>) -> bool {
    if let Some(SendError::Doorbell(error)) = sent {
        panic!("{error}");
    }
    if let Some(ReceiveError::Doorbell(error)) = received {
        panic!("{error}");
    }
    matches!(sent, Some(SendError::Closed | SendError::Corrupt(_)))
        || matches!(received, Some(ReceiveError::Closed | ReceiveError::Corrupt(_)))
}
