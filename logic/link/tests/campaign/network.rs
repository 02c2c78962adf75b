//! Randomness out of a seed, and the way between two sides.

use std::collections::VecDeque;

use link::Transport;
use wire::link::{Decoder, Packet};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// One direction of one connection.
#[derive(Default)]
pub struct Way {
    bytes: VecDeque<u8>,
    decoder: Decoder,
    datagrams: Vec<Vec<u8>>,
}

/// Packets that were carried once, by any connection: what somebody replays.
const HISTORY: usize = 200;

pub struct Network {
    pub transport: Transport,
    /// From side 0, from side 1.
    pub ways: [Way; 2],
    /// Lossy and unkind; or else it does all that it can.
    pub unkind: bool,
    /// Sides whose packets are swallowed, and nobody is told.
    pub black_hole: [bool; 2],
    pub history: [VecDeque<Vec<u8>>; 2],
    pub lost: u64,
}

impl Network {
    pub fn new() -> Self {
        Self {
            transport: Transport::Stream,
            ways: Default::default(),
            unkind: true,
            black_hole: [false; 2],
            history: Default::default(),
            lost: 0,
        }
    }

    /// Drops all packets that are on their way.
    pub fn cut(&mut self) {
        self.ways = Default::default();
        self.black_hole = [false; 2];
    }

    pub fn carry(&mut self, from: usize, packet: &[u8], random: &mut Random) {
        let history = &mut self.history[from];
        history.push_back(packet.to_vec());
        if history.len() > HISTORY {
            history.pop_front();
        }
        if self.black_hole[from] {
            return;
        }
        if !self.transport.is_lossy() {
            self.ways[from].bytes.extend(packet);
            return;
        }
        if self.unkind && random.once_in(6) {
            self.lost += 1;
            return;
        }
        self.ways[from].datagrams.push(packet.to_vec());
        if self.unkind && random.once_in(10) {
            self.ways[from].datagrams.push(packet.to_vec());
        }
    }

    /// Something old comes again.
    pub fn replay(&mut self, from: usize, random: &mut Random) {
        let history = &self.history[from];
        if history.is_empty() || !self.transport.is_lossy() {
            return;
        }
        let old = history[random.below(history.len())].clone();
        self.ways[from].datagrams.push(old);
    }

    /// Something arrives: `most` bytes of a stream, or one datagram.
    pub fn arrive(&mut self, from: usize, most: usize, random: &mut Random) -> Vec<(Packet, Vec<u8>)> {
        let unkind = self.unkind;
        let way = &mut self.ways[from];
        if self.transport.is_lossy() {
            if way.datagrams.is_empty() {
                return Vec::new();
            }
            let which = if unkind { random.below(way.datagrams.len()) } else { 0 };
            let datagram = way.datagrams.remove(which);
            let (header, body) = Packet::split(&datagram).expect("what was sent can be read");
            return vec![(header, body.to_vec())];
        }
        let count = most.min(way.bytes.len());
        let bytes: Vec<u8> = way.bytes.drain(..count).collect();
        let (mut rest, mut packets) = (&bytes[..], Vec::new());
        while let Some(packet) = way.decoder.next(&mut rest).expect("what was sent can be read") {
            packets.push(packet);
        }
        packets
    }

    pub fn is_empty(&self) -> bool {
        self.ways.iter().all(|way| way.bytes.is_empty() && way.datagrams.is_empty())
    }
}
