//! The ring that ships, model-checked: every interleaving and every legal reordering of tiny rings.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p ring --release --test model`. A lost wake-up
//! shows as a deadlock, a lost or half-written message as a failed assertion.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test may")]

mod scenes;
mod weakened;
mod world;

use scenes::Scene;
use wire::ring as layout;
use world::{ALL_NAPS, MODEST, Naps, SMALL, TINY};

#[test]
fn a_message_that_finds_a_sleeper_wakes_it() {
    for naps in ALL_NAPS {
        Scene { naps, ..Scene::new(TINY, &[b"8 bytes."]) }.all_arrive();
    }
}

#[test]
fn messages_arrive_in_order_and_a_full_ring_is_waited_for() {
    for naps in ALL_NAPS {
        Scene { naps, ..Scene::new(TINY, &[b"message1", b"message2", b"message3"]) }.all_arrive();
    }
}

#[test]
fn empty_messages_of_one_word_go_round() {
    Scene::new(TINY, &[b"", b"", b"", b"", b""]).all_arrive();
}

/// The payload of one message is what the *next* round's word at its place would be, so a consumer
/// that looked there before the producer has made it "not yet" would take it for a message.
#[test]
fn old_bytes_that_look_like_a_record_are_not_taken_for_one() {
    // Offsets: [word 0][payload 8][word 16][word 24] then round again: [word 0][word 8, where the
    // payload was].
    static LOOKS_COMMITTED: [u8; 8] =
        layout::record_word(layout::RECORD_MESSAGE, 8, TINY as u64 + 8).to_le_bytes();
    static MESSAGES: [&[u8]; 5] = [&LOOKS_COMMITTED, b"", b"", b"", b"the last"];
    Scene::new(TINY, &MESSAGES).all_arrive();
}

/// The producer needs all of the ring, while the consumer has released, but not published, a little
/// of it.
#[test]
fn room_that_was_not_worth_publishing_is_published_before_a_sleep() {
    const MESSAGES: &[&[u8]] = &[b"twenty-four bytes: long.", b"", b"twenty-four bytes: more."];
    for naps in ALL_NAPS {
        Scene { naps, ..Scene::new(SMALL, MESSAGES) }.all_arrive();
    }
}

/// The fifth message goes where the first was; that the consumer has read it, the producer knows
/// from `consumed` alone.
#[test]
fn bytes_are_written_over_only_after_they_were_read() {
    const LONG: &[u8] = b"forty bytes, so that it takes six words.";
    Scene::new(MODEST, &[b"the 1st.", LONG, LONG, b"the 4th.", b"the 5th."]).all_arrive();
}

/// The second message does not fit before the end of the ring: a padding goes before it.
#[test]
fn a_message_behind_a_padding_is_whole() {
    Scene::new(TINY, &[b"", b"8 bytes.", b"more....", b""]).all_arrive();
}

/// Three messages show at once, or not at all; the fourth when it is flushed.
#[test]
fn a_batch_shows_at_once() {
    for naps in ALL_NAPS {
        Scene { naps, batch_bytes: 32, ..Scene::new(MODEST, &[b"", b"message2", b"", b"message4"]) }
            .all_arrive();
    }
}

/// A batch that begins with a padding, and one that is flushed because there is no room for more.
#[test]
fn batches_go_round_and_make_room() {
    const LONG: &[u8] = b"forty bytes, so that it takes six words.";
    const MESSAGES: &[&[u8]] = &[LONG, b"message2", LONG, b"", b"message5"];
    Scene { batch_bytes: 32, preemptions: 2, ..Scene::new(MODEST, MESSAGES) }.all_arrive();
}

#[test]
fn a_producer_without_fences_wakes_a_sleeper() {
    for naps in ALL_NAPS {
        Scene { naps, barriers: true, ..Scene::new(SMALL, &[b"", b"", b""]) }.all_arrive();
    }
}

#[test]
fn what_was_committed_before_a_close_is_received() {
    for naps in ALL_NAPS {
        Scene { naps, ..Scene::new(TINY, &[b"farewell"]) }.all_arrive_and_then_the_end();
        Scene { naps, barriers: true, ..Scene::new(TINY, &[b"", b""]) }.all_arrive_and_then_the_end();
    }
}

#[test]
fn a_consumer_that_closes_wakes_a_producer_that_waits_for_room() {
    for naps in ALL_NAPS {
        Scene { naps, ..Scene::new(TINY, &[]) }.the_consumer_closes();
    }
}

#[test]
fn a_producer_that_waits_for_room_is_woken_by_whoever_makes_it() {
    for naps in ALL_NAPS {
        Scene { naps, ..Scene::new(TINY, &[b"message1", b"message2"]) }.one_is_taken();
    }
}

/// More than the messages take, waits included: the last of these lives die of old age.
const LIVES: usize = 18;

#[test]
fn a_producer_may_die_at_any_step() {
    for naps in ALL_NAPS {
        for life in 0..LIVES {
            Scene { naps, preemptions: 2, ..Scene::new(TINY, &[b"message1", b"message2"]) }
                .the_producer_dies(life);
        }
    }
}

#[test]
fn a_producer_may_die_at_any_step_of_a_batch() {
    for life in 0..LIVES {
        let scene = Scene::new(MODEST, &[b"", b"message2", b"", b"message4"]);
        Scene { naps: Naps::LongEnough, batch_bytes: 32, preemptions: 2, ..scene }.the_producer_dies(life);
    }
}
