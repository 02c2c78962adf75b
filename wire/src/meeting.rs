//! How two ends of a channel meet at a Unix socket that has a path: what the offerer says to
//! whoever connects. Described in `docs/spec/meeting.md`.
//!
//! The socket is `SOCK_SEQPACKET`. The offerer speaks first and says one packet, a [`Greeting`];
//! the descriptors of one end travel with [`Greeting::Channel`]. The opener says nothing at all, so
//! nobody waits for it.

/// First word of a greeting: the bytes `TOMBMEET`, read as a little-endian number.
pub const MAGIC: u64 = 0x5445_454d_424d_4f54;
/// Version of this protocol.
pub const VERSION: u32 = 1;
/// Bytes in front of the text.
pub const HEADER_BYTES: usize = 16;
/// Most bytes of a refusal's text.
pub const TEXT_BYTES_MAX: usize = 240;
/// Longest greeting, in bytes.
pub const GREETING_BYTES_MAX: usize = HEADER_BYTES + TEXT_BYTES_MAX;
/// The largest status that is an errno (Linux: `MAX_ERRNO`).
pub const STATUS_MAX: u32 = 4095;
/// Longest path of a socket, in bytes: what `struct sockaddr_un` has room for, less the NUL
/// (unix(7)).
pub const PATH_BYTES_MAX: usize = 107;

/// The offerer's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Greeting {
    /// Here is your end: five descriptors come along, in the order of `docs/spec/ring.md`.
    Channel,
    /// There is none for you.
    Refused {
        /// The errno that fits: 1 to [`STATUS_MAX`].
        errno: u32,
        /// The fault and what to do about it; [`TEXT_BYTES_MAX`] at most, longer ones are cut.
        text: String,
    },
}

/// Why a packet is no greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadGreeting {
    /// Its length is none that a greeting has.
    Length {
        /// Bytes of the packet.
        bytes: usize,
    },
    /// It begins with something else.
    Magic {
        /// The first word.
        found: u64,
    },
    /// It is of another version.
    Version {
        /// The value in its place.
        found: u32,
    },
    /// The status is no errno, or a channel comes with a text.
    Status {
        /// The value in its place.
        found: u32,
    },
    /// The text is not UTF-8.
    Text,
}

impl std::fmt::Display for BadGreeting {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Length { bytes } => {
                write!(to, "it has {bytes} bytes, not {HEADER_BYTES} to {GREETING_BYTES_MAX}")
            }
            Self::Magic { found } => {
                write!(to, "it begins with {found:#018x}, which is not the mark of a greeting")
            }
            Self::Version { found } => {
                write!(to, "it is of version {found}, and this program speaks {VERSION}")
            }
            Self::Status { found } => write!(to, "its status {found} is none"),
            Self::Text => write!(to, "its text is not UTF-8"),
        }
    }
}

impl std::error::Error for BadGreeting {}

impl Greeting {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (status, text) = match self {
            Self::Channel => (0, ""),
            Self::Refused { errno, text } => ((*errno).clamp(1, STATUS_MAX), cut(text)),
        };
        let mut packet = Vec::with_capacity(HEADER_BYTES + text.len());
        packet.extend(MAGIC.to_le_bytes());
        packet.extend(VERSION.to_le_bytes());
        packet.extend(status.to_le_bytes());
        packet.extend(text.as_bytes());
        packet
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`BadGreeting`]: nothing of it may be used then, nor what came along.
    pub fn decode(packet: &[u8]) -> Result<Self, BadGreeting> {
        let bytes = packet.len();
        let (header, text) =
            packet.split_first_chunk::<HEADER_BYTES>().ok_or(BadGreeting::Length { bytes })?;
        let [m0, m1, m2, m3, m4, m5, m6, m7, v0, v1, v2, v3, s0, s1, s2, s3] = *header;
        let magic = u64::from_le_bytes([m0, m1, m2, m3, m4, m5, m6, m7]);
        if magic != MAGIC {
            return Err(BadGreeting::Magic { found: magic });
        }
        let version = u32::from_le_bytes([v0, v1, v2, v3]);
        if version != VERSION {
            return Err(BadGreeting::Version { found: version });
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(BadGreeting::Length { bytes });
        }
        match u32::from_le_bytes([s0, s1, s2, s3]) {
            0 if text.is_empty() => Ok(Self::Channel),
            errno @ 1..=STATUS_MAX => {
                let text = str::from_utf8(text).map_err(|_| BadGreeting::Text)?.to_owned();
                Ok(Self::Refused { errno, text })
            }
            found => Err(BadGreeting::Status { found }),
        }
    }
}

/// As much of a text as a greeting takes.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_comes_back_as_it_was() {
        let refused = Greeting::Refused { errno: 13, text: "not for you: ünïcödé".into() };
        for greeting in [Greeting::Channel, refused] {
            assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_page() {
        let packet = Greeting::Refused { errno: 13, text: "no".into() }.encode();
        assert_eq!(packet, b"TOMBMEET\x01\0\0\0\x0d\0\0\0no");
    }

    #[test]
    fn a_long_text_is_cut_where_a_character_begins() {
        let packet = Greeting::Refused { errno: 13, text: "é".repeat(200) + "x" }.encode();
        assert!(packet.len() <= GREETING_BYTES_MAX);
        let Ok(Greeting::Refused { text, .. }) = Greeting::decode(&packet) else { panic!("refused") };
        assert_eq!(text, "é".repeat(120));
    }

    #[test]
    fn nonsense_is_named() {
        let good = Greeting::Channel.encode();
        let with = |at: usize, byte: u8| {
            let mut packet = good.clone();
            packet[at] = byte;
            Greeting::decode(&packet)
        };
        assert_eq!(Greeting::decode(b""), Err(BadGreeting::Length { bytes: 0 }));
        assert_eq!(Greeting::decode(&good[..15]), Err(BadGreeting::Length { bytes: 15 }));
        assert_eq!(
            Greeting::decode(&[&good[..], &[0; 241]].concat()),
            Err(BadGreeting::Length { bytes: 257 })
        );
        assert!(matches!(with(0, b'X'), Err(BadGreeting::Magic { .. })));
        assert_eq!(with(8, 2), Err(BadGreeting::Version { found: 2 }));
        assert_eq!(with(13, 0x10), Err(BadGreeting::Status { found: 4096 }));
        assert_eq!(Greeting::decode(&[&good[..], b"x"].concat()), Err(BadGreeting::Status { found: 0 }));
        let refused = Greeting::Refused { errno: 1, text: String::new() }.encode();
        assert_eq!(Greeting::decode(&[&refused[..], b"\xff"].concat()), Err(BadGreeting::Text));
    }
}
