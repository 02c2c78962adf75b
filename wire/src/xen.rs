//! How two domains of a Xen hypervisor get the two ends of a channel: what the offerer writes into
//! XenStore, and the page that says which grants make the region. Described in `docs/spec/xen.md`.

use std::fmt;

/// First word of a directory page: the bytes `TOMBXGRA`, read as a little-endian number.
pub const MAGIC: u64 = 0x4152_4758_424d_4f54;
/// Version of the directory page and of what stands in XenStore.
pub const VERSION: u64 = 1;
/// Bytes of a page, which is what can be granted.
pub const PAGE_BYTES: usize = 4096;
/// Most bytes of a ring: the references of such a region have room in the directory, and its pages
/// are half of what the kernel lets a domain grant from user space (1,024).
pub const RING_BYTES_MAX: u32 = 1 << 20;
/// Most references in a directory: a header page and two rings of [`RING_BYTES_MAX`].
pub const REFERENCES_MAX: usize = 513;

/// Where [`MAGIC`] stands.
pub const OFFSET_MAGIC: usize = 0;
/// Where [`VERSION`] stands.
pub const OFFSET_VERSION: usize = 8;
/// Where the number of references stands.
pub const OFFSET_PAGES: usize = 16;
/// Where the offer's mark stands: numbers of grants and of event channels are used again, by
/// whatever comes next.
pub const OFFSET_MARK: usize = 24;
/// Where end 0, the offerer, says that it lives; end 1 by [`END_STRIDE`] further.
pub const OFFSET_ENDS: usize = 64;
/// From one end's words to the other's.
pub const END_STRIDE: usize = 64;
/// In an end's words: 1 as long as its process lives. The kernel under that process clears the low
/// byte.
pub const END_ALIVE: usize = 0;
/// In an end's words: 1 once it has come, for good.
pub const END_CAME: usize = 8;
/// Where the references stand, 32 bits each, in the order of the region's pages.
pub const OFFSET_REFERENCES: usize = 256;

/// Longest name of a channel, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest text of an offer, in bytes: six decimal numbers.
pub const OFFER_BYTES_MAX: usize = 80;
/// The largest number of a domain; those above are Xen's own.
pub const DOMAIN_MAX: u16 = 0x7fef;

const _: () = assert!(OFFSET_REFERENCES + 4 * REFERENCES_MAX <= PAGE_BYTES);
const _: () = assert!(REFERENCES_MAX == 1 + 2 * RING_BYTES_MAX as usize / PAGE_BYTES);

/// Where the words of end `side` stand in a directory page.
#[must_use]
pub const fn end(side: usize) -> usize {
    OFFSET_ENDS + side * END_STRIDE
}

/// The offer that an offerer writes into XenStore: all numbers are of its own domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Grant reference of the directory page.
    pub directory: u32,
    /// Event channel that is rung for messages.
    pub data: u32,
    /// Event channel that is rung for room.
    pub room: u32,
    /// Event channel that is rung when an end comes or goes.
    pub life: u32,
    /// Of this offer and no other: random.
    pub mark: u64,
}

/// Why a text is no offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadOffer {
    /// It is not six decimal numbers with a space between.
    #[error("it is not six numbers")]
    Form,
    /// It is of another version.
    #[error("it is of version {found}, and this program speaks {VERSION}")]
    Version {
        /// The value in its place.
        found: u64,
    },
}

impl fmt::Display for Offer {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directory, data, room, life, mark } = self;
        write!(to, "{VERSION} {directory} {data} {room} {life} {mark}")
    }
}

impl Offer {
    /// Reads what somebody wrote.
    ///
    /// # Errors
    /// See [`BadOffer`].
    pub fn parse(text: &[u8]) -> Result<Self, BadOffer> {
        let text = std::str::from_utf8(text).map_err(|_| BadOffer::Form)?;
        if text.len() > OFFER_BYTES_MAX {
            return Err(BadOffer::Form);
        }
        let (version, rest) = text.split_once(' ').ok_or(BadOffer::Form)?;
        let version: u64 = number(version)?;
        if version != VERSION {
            return Err(BadOffer::Version { found: version });
        }
        let (numbers, mark) = rest.rsplit_once(' ').ok_or(BadOffer::Form)?;
        let mark = number(mark)?;
        let numbers: Vec<u32> = numbers.split(' ').map(number).collect::<Result<_, _>>()?;
        let [directory, data, room, life] = <[u32; 4]>::try_from(numbers).map_err(|_| BadOffer::Form)?;
        Ok(Self { directory, data, room, life, mark })
    }
}

/// Digits alone: `from_str` would take a sign.
fn number<N: std::str::FromStr>(digits: &str) -> Result<N, BadOffer> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain).ok_or(BadOffer::Form)
}

/// Whether a channel may have this name: a word of XenStore's paths that is none of its special
/// ones.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Where domain `offerer` offers a channel of this name to domain `opener`.
#[must_use]
pub fn offer_path(offerer: u16, opener: u16, name: &str) -> String {
    format!("/local/domain/{offerer}/data/tombolo/offer/{opener}/{name}")
}

/// Where domain `opener` says that it has opened what domain `offerer` offers by this name: the
/// number of the directory page, as long as it lasts.
#[must_use]
pub fn open_path(offerer: u16, opener: u16, name: &str) -> String {
    format!("/local/domain/{opener}/data/tombolo/open/{offerer}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_offer_is_six_numbers() {
        let offer = Offer { directory: 520, data: 9, room: 10, life: u32::MAX, mark: 1 << 63 };
        assert_eq!(offer.to_string(), "1 520 9 10 4294967295 9223372036854775808");
        assert_eq!(Offer::parse(offer.to_string().as_bytes()), Ok(offer));
    }

    #[test]
    fn what_is_no_offer_is_told_apart() {
        for text in [
            "",
            "1",
            "1 2 3 4 5",
            "1 2 3 4 5 6 7",
            "1  2 3 4 5 6",
            "1 2 3 4 5 6 ",
            " 1 2 3 4 5 6",
            "1 +2 3 4 5 6",
            "1 2 3 4 4294967296 6",
            "1 2 3 4 5 18446744073709551616",
            "x 2 3 4 5 6",
            "1 2 3 4 5 6\n",
        ] {
            assert_eq!(Offer::parse(text.as_bytes()), Err(BadOffer::Form), "{text:?}");
        }
        assert_eq!(Offer::parse(b"2 2 3 4 5 6"), Err(BadOffer::Version { found: 2 }));
        assert_eq!(Offer::parse(&[b'1', 0xff]), Err(BadOffer::Form));
        let long = format!("1 {}2 3 4 5 6", "0".repeat(OFFER_BYTES_MAX));
        assert_eq!(Offer::parse(long.as_bytes()), Err(BadOffer::Form));
    }

    #[test]
    fn names_are_words_of_a_path() {
        for name in ["a", "frames-2", "A_b", &"x".repeat(NAME_BYTES_MAX)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a/b", "..", "@releaseDomain", "a b", "ä", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn each_domain_writes_below_its_own_home() {
        assert_eq!(offer_path(1, 2, "n"), "/local/domain/1/data/tombolo/offer/2/n");
        assert_eq!(open_path(1, 2, "n"), "/local/domain/2/data/tombolo/open/1/n");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_offer_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..90)) {
            if let Ok(offer) = Offer::parse(&bytes) {
                prop_assert_eq!(Offer::parse(offer.to_string().as_bytes()), Ok(offer));
            }
        }

        #[test]
        fn any_offer_comes_back(directory: u32, data: u32, room: u32, life: u32, mark: u64) {
            let offer = Offer { directory, data, room, life, mark };
            prop_assert_eq!(Offer::parse(offer.to_string().as_bytes()), Ok(offer));
        }
    }
}
