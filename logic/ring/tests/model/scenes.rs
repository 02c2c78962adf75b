//! Scenes between two ends: each is run as it ships, and some of them with one ordering weakened.

use loom::thread;
use ring::{Consumer, Producer};

use super::world::{Naps, View, World, check, place};

/// Enough for every weakened ordering to be caught; one more takes minutes.
pub const PREEMPTIONS: usize = 2;

/// One direction of traffic.
#[derive(Clone, Copy)]
pub struct Scene {
    pub capacity: usize,
    pub messages: &'static [&'static [u8]],
    pub naps: Naps,
    /// Bytes that the producer holds back.
    pub batch_bytes: usize,
    /// The producer may do without fences, and the consumer has barriers.
    pub barriers: bool,
    pub preemptions: usize,
}

impl Scene {
    pub fn new(capacity: usize, messages: &'static [&'static [u8]]) -> Scene {
        Scene {
            capacity,
            messages,
            naps: Naps::None,
            batch_bytes: 0,
            barriers: false,
            preemptions: PREEMPTIONS,
        }
    }

    fn producer(&self, view: &View) -> Producer<View> {
        let mut producer = Producer::new(view.clone(), place(self.capacity));
        producer.set_batch_bytes(self.batch_bytes);
        if self.barriers {
            producer.set_registered();
        }
        producer
    }

    fn view(&self, world: &World) -> View {
        if self.barriers { View::new(world).answering() } else { View::new(world) }
    }

    fn consumer(&self, view: &View) -> Consumer<View> {
        let mut consumer = Consumer::new(view.clone(), place(self.capacity));
        if self.barriers {
            consumer.offer_barrier(true);
        } else {
            // As ends that share no kernel do.
            consumer.forswear_barriers();
        }
        consumer
    }

    /// All messages arrive, whole and in order; then, if the producer closes, the end.
    fn run(self, closes: bool) {
        check(self.preemptions, move || {
            let world = World::new(self.naps);
            let sending = world.clone();
            // Opened before the other end is.
            let view = View::new(&world);
            let mut consumer = self.consumer(&view);
            let sender = thread::spawn(move || {
                let view = self.view(&sending);
                let mut producer = self.producer(&view);
                for message in self.messages {
                    assert!(sending.send(&mut producer, &view, message));
                }
                sending.flush(&mut producer, &view);
                if closes {
                    sending.close(&view, 0);
                }
                view.stop();
            });
            for message in self.messages {
                let got = world.receive(&mut consumer, &view, &mut false);
                assert_eq!(got.as_deref(), Some(*message));
            }
            if closes {
                assert_eq!(world.receive(&mut consumer, &view, &mut false), None);
            }
            sender.join().unwrap();
        });
    }

    pub fn all_arrive(self) {
        self.run(false);
    }

    pub fn all_arrive_and_then_the_end(self) {
        self.run(true);
    }

    /// The consumer takes one message and does something else: the producer, which waits for that
    /// room, is woken.
    pub fn one_is_taken(self) {
        check(self.preemptions, move || {
            let world = World::new(self.naps);
            let sending = world.clone();
            let view = View::new(&world);
            let mut consumer = self.consumer(&view);
            let sender = thread::spawn(move || {
                let view = self.view(&sending);
                let mut producer = self.producer(&view);
                for message in self.messages {
                    assert!(sending.send(&mut producer, &view, message));
                }
                view.stop();
            });
            assert!(world.receive(&mut consumer, &view, &mut false).is_some());
            sender.join().unwrap();
        });
    }

    /// The producer sends until the consumer, which takes at most one message, has closed.
    pub fn the_consumer_closes(self) {
        check(self.preemptions, move || {
            let world = World::new(self.naps);
            let sending = world.clone();
            let view = View::new(&world);
            let mut consumer = self.consumer(&view);
            let sender = thread::spawn(move || {
                let view = self.view(&sending);
                let mut producer = self.producer(&view);
                while sending.send(&mut producer, &view, b"8 bytes.") {}
                view.stop();
            });
            world.take(&mut consumer);
            world.close(&view, 1);
            sender.join().unwrap();
        });
    }

    /// The producer dies before its `life`-th change to memory: the consumer receives a prefix of
    /// what was sent, each message whole, and then the end.
    pub fn the_producer_dies(self, life: usize) {
        check(self.preemptions, move || {
            let world = World::new(self.naps);
            let sending = world.clone();
            let view = View::new(&world);
            let mut consumer = self.consumer(&view);
            let sender = thread::spawn(move || {
                let view = View::mortal(&sending, life);
                let view = if self.barriers { view.answering() } else { view };
                let mut producer = self.producer(&view);
                let mut alive = true;
                for message in self.messages {
                    alive = alive && sending.send(&mut producer, &view, message);
                }
                if alive {
                    sending.flush(&mut producer, &view);
                }
                view.stop();
                sending.bury_producer();
            });
            let (mut received, mut dead) = (0, false);
            while let Some(message) = world.receive(&mut consumer, &view, &mut dead) {
                assert_eq!(message, self.messages[received]);
                received += 1;
            }
            sender.join().unwrap();
        });
    }
}
