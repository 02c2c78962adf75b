//! One direction of a channel: the ring algorithm, without waiting.
