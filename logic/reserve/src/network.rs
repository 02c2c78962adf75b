//! Classes of a link: what is promised of it, with headers, in bits and bytes and nothing in
//! between.

use crate::refusal::Span;

/// Most bits per second that are believed of a link: a hundred terabits.
pub const FASTEST_BITS: u64 = 100_000_000_000_000;
/// Most bytes of a burst: what a fast link carries in some milliseconds.
pub const MAX_BURST_BYTES: u64 = 1 << 32;

/// One class: a token bucket, and its share of what others leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Class {
    /// The promised rate, in bits per second on the wire, headers included.
    pub rate_bits: u64,
    /// The rate that it may use if others do not, in bits per second; at least the promised one.
    pub ceiling_bits: u64,
    /// How much may come at once, in bytes on the wire.
    pub burst_bytes: u64,
    /// The order in which classes get spare time: 0 is gold.
    pub precedence: u8,
}

/// A link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// In bits per second.
    pub rate_bits: u64,
    /// The bytes that its queues hold: all bursts at once have to fit.
    pub queue_bytes: u64,
    /// The longest packet, in bytes with headers: no burst is shorter, and no packet is
    /// interrupted.
    pub packet_bytes: u64,
}

/// Why classes do not fit on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// More is promised than the link has.
    #[error("classes of {asked_bits} bit/s do not fit on a link of {rate_bits} bit/s; they would if one asked for {} bit/s less", asked_bits - u128::from(*rate_bits))]
    Rate {
        /// The sum, in bits per second.
        asked_bits: u128,
        /// The rate that there is.
        rate_bits: u64,
    },
    /// More may come at once than the queues hold.
    #[error("bursts of {asked_bytes} bytes do not fit into queues of {queue_bytes} bytes; they would if one asked for {} bytes less", asked_bytes - u128::from(*queue_bytes))]
    Burst {
        /// The sum, in bytes.
        asked_bytes: u128,
        /// The bytes that there are.
        queue_bytes: u64,
    },
    /// A class that contradicts itself or the link.
    #[error("class {}: {what}", who + 1)]
    Class {
        /// Its index.
        who: usize,
        /// The fault, and what would do.
        what: ClassError,
    },
}

/// The fault of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClassError {
    /// Nothing is promised.
    #[error("a rate of 0 promises nothing; leave the class out, or give it a rate")]
    NoRate,
    /// The ceiling is below the floor.
    #[error(
        "a ceiling of {ceiling_bits} bit/s is below the rate of {rate_bits} bit/s; give at least the rate"
    )]
    LowCeiling {
        /// The ceiling.
        ceiling_bits: u64,
        /// The rate.
        rate_bits: u64,
    },
    /// The ceiling is above the link.
    #[error("a ceiling of {ceiling_bits} bit/s is above the link's {link_bits} bit/s; give at most that")]
    HighCeiling {
        /// The ceiling.
        ceiling_bits: u64,
        /// The link.
        link_bits: u64,
    },
    /// Not even one packet may come.
    #[error(
        "a burst of {burst_bytes} bytes holds no packet of {packet_bytes} bytes, so nothing would ever be sent; give at least that"
    )]
    ShortBurst {
        /// The burst.
        burst_bytes: u64,
        /// The longest packet.
        packet_bytes: u64,
    },
    /// Too long a burst.
    #[error("a burst of {0} bytes is more than {MAX_BURST_BYTES}, the most that is held")]
    LongBurst(u64),
}

impl Link {
    /// Whether all `classes` fit together: exact sums.
    ///
    /// # Errors
    /// Where they do not: what is too much, and by how much.
    pub fn admit(&self, classes: &[Class]) -> Result<(), LinkError> {
        for (who, class) in classes.iter().enumerate() {
            self.check(class).map_err(|what| LinkError::Class { who, what })?;
        }
        let asked_bits = classes.iter().map(|class| u128::from(class.rate_bits)).sum();
        if asked_bits > u128::from(self.rate_bits) {
            return Err(LinkError::Rate { asked_bits, rate_bits: self.rate_bits });
        }
        let asked_bytes = classes.iter().map(|class| u128::from(class.burst_bytes)).sum();
        if asked_bytes > u128::from(self.queue_bytes) {
            return Err(LinkError::Burst { asked_bytes, queue_bytes: self.queue_bytes });
        }
        Ok(())
    }

    fn check(&self, class: &Class) -> Result<(), ClassError> {
        let Class { rate_bits, ceiling_bits, burst_bytes, .. } = *class;
        if rate_bits == 0 {
            Err(ClassError::NoRate)
        } else if ceiling_bits < rate_bits {
            Err(ClassError::LowCeiling { ceiling_bits, rate_bits })
        } else if ceiling_bits > self.rate_bits {
            // A rate above the link is refused with the sum, which says it better.
            if rate_bits > self.rate_bits {
                Ok(())
            } else {
                Err(ClassError::HighCeiling { ceiling_bits, link_bits: self.rate_bits })
            }
        } else if burst_bytes < self.packet_bytes {
            Err(ClassError::ShortBurst { burst_bytes, packet_bytes: self.packet_bytes })
        } else if burst_bytes > MAX_BURST_BYTES {
            Err(ClassError::LongBurst(burst_bytes))
        } else {
            Ok(())
        }
    }

    /// How long a packet of an admitted class waits at worst until it is on the wire, where each
    /// class keeps to its rate: all bursts are before it, and a packet of somebody else's that
    /// can't be interrupted. Rounded up.
    pub fn worst_wait(&self, classes: &[Class]) -> Span {
        let bytes = classes.iter().map(|class| u128::from(class.burst_bytes)).sum::<u128>()
            + u128::from(self.packet_bytes);
        let ns = (bytes * 8 * 1_000_000_000).div_ceil(u128::from(self.rate_bits.max(1)));
        Span(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// The bits per second on the wire of a stream whose packets carry `payload_bytes` behind
/// `header_bytes` each; rounded up. `None` where packets carry nothing.
pub fn on_wire_bits(payload_bits: u64, payload_bytes: u32, header_bytes: u32) -> Option<u64> {
    let (payload, whole) = (u128::from(payload_bytes), u128::from(payload_bytes) + u128::from(header_bytes));
    if payload == 0 {
        return None;
    }
    u64::try_from((u128::from(payload_bits) * whole).div_ceil(payload)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { rate_bits: 10_000_000, queue_bytes: 100_000, packet_bytes: 1_514 };

    fn class(rate_bits: u64) -> Class {
        Class { rate_bits, ceiling_bits: 10_000_000, burst_bytes: 15_000, precedence: 0 }
    }

    fn refused(classes: &[Class]) -> String {
        LINK.admit(classes).unwrap_err().to_string()
    }

    #[test]
    fn rates_fit_to_the_last_bit() {
        assert_eq!(LINK.admit(&[class(6_000_000), class(4_000_000)]), Ok(()));
        let words = "classes of 10000001 bit/s do not fit on a link of 10000000 bit/s; they would if one asked for 1 bit/s less";
        assert_eq!(refused(&[class(6_000_000), class(4_000_001)]), words);
    }

    #[test]
    fn each_impossible_class_is_refused_with_what_is_possible() {
        let wrong = |change: fn(&mut Class)| {
            let mut one = class(1_000_000);
            change(&mut one);
            refused(&[one])
        };
        assert!(wrong(|class| class.rate_bits = 0).contains("class 1: a rate of 0"));
        assert!(wrong(|class| class.ceiling_bits = 1).contains("give at least the rate"));
        assert!(wrong(|class| class.ceiling_bits = 10_000_001).contains("above the link's 10000000 bit/s"));
        assert!(wrong(|class| class.burst_bytes = 1_513).contains("holds no packet of 1514 bytes"));
        assert!(wrong(|class| class.burst_bytes = u64::MAX).contains("the most that is held"));
        assert!(
            refused(&[class(1); 7]).contains("bursts of 105000 bytes do not fit into queues of 100000 bytes")
        );
        assert!(
            wrong(|class| (class.rate_bits, class.ceiling_bits) = (u64::MAX, u64::MAX))
                .contains("bit/s less")
        );
    }

    #[test]
    fn headers_count_and_so_do_the_bursts_of_all() {
        // RTP in UDP in IP in Ethernet: 54 bytes before 1,316 of video.
        assert_eq!(on_wire_bits(1_214_000, 1_316, 54), Some(1_263_815));
        assert_eq!(on_wire_bits(1, 0, 54), None);
        // 31,514 bytes at 10 Mbit/s.
        assert_eq!(LINK.worst_wait(&[class(1), class(1)]), Span(25_211_200));
    }
}
