//! Channels as the broker makes them: the two ends of each, and what tells of their ends.

use super::{Ends, Shape};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use topology::ChannelMode;
use wire::ring::{RING_BYTES_MAX, RING_BYTES_MIN};

/// The cost of a wake-up on this machine, measured as the daemon starts: so long ends spin before
/// they sleep.
static WAKE_NS: OnceLock<Option<u32>> = OnceLock::new();

/// See [`WAKE_NS`].
pub(crate) fn wake_ns() -> Option<u32> {
    *WAKE_NS.get_or_init(channel::wake_price_ns)
}

/// Makes a channel; the wish for a size is clamped to what there is.
pub(crate) fn make_channel(shape: Shape) -> io::Result<Ends> {
    let mut config = channel::Config::default();
    if shape.ring_bytes != 0 {
        config.ring_bytes = shape.ring_bytes.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two();
    }
    config.mode = match shape.mode {
        ChannelMode::Messages => channel::Mode::Messages,
        ChannelMode::Stream => channel::Mode::Stream,
    };
    config.apart = shape.guests.contains(&true);
    config.spin_ns = WAKE_NS.get().copied().flatten();
    let (consumer, server) = channel::pair(&config).map_err(io::Error::other)?;
    // A guest's host is told of the rings of the other end.
    let sight = |is_guest: bool, other: &channel::End| is_guest.then(|| other.sight()).transpose();
    let [consumer_is_guest, server_is_guest] = shape.guests;
    let (consumer_sight, server_sight) =
        (sight(consumer_is_guest, &server)?, sight(server_is_guest, &consumer)?);
    let (consumer, server) = (consumer.into_descriptors(), server.into_descriptors());
    // The listening half of the doorbell that the other end rings: `docs/spec/ring.md`, the
    // descriptors of an end. The first end's region stands before it.
    let consumer_gone = server.first().map(OwnedFd::try_clone).transpose()?;
    let server_gone = consumer.get(1).map(OwnedFd::try_clone).transpose()?;
    let consumer = consumer.into_iter().chain(consumer_sight).collect();
    let server = server.into_iter().chain(server_sight).collect();
    Ok(Ends { consumer, server, consumer_gone, server_gone })
}
