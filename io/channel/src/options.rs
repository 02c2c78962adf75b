//! The properties of a channel, said by its maker; and those of an end, said by whoever opens it.

use wire::ring as layout;

/// The unit that the two ends exchange. The maker writes it into the region; it changes nothing in
/// the rings, so it is an agreement and not a protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Messages, whole and in order: [`crate::Sender`] and [`crate::Receiver`].
    #[default]
    Messages,
    /// Bytes, without seams: [`crate::StreamWriter`] and [`crate::StreamReader`].
    Stream,
}

impl Mode {
    /// The word of the header that says it.
    pub(crate) fn word(self) -> u64 {
        match self {
            Mode::Messages => layout::MODE_MESSAGES,
            Mode::Stream => layout::MODE_STREAM,
        }
    }

    /// The mode that a word of the header stands for, if it is one of the two.
    pub(crate) fn of_word(word: u64) -> Option<Mode> {
        match word {
            layout::MODE_MESSAGES => Some(Mode::Messages),
            layout::MODE_STREAM => Some(Mode::Stream),
            _ => None,
        }
    }
}

/// Whether the region of a channel is to lie in huge pages: fewer misses of the processor's address
/// cache for large rings.
///
/// The machine's administrator reserves them (`/proc/sys/vm/nr_hugepages`). **Only for ends that
/// trust each other**: whoever holds such a region can take pages out of it, and if none is free
/// then, the next access kills the other end with `SIGBUS`. So an opener has to agree, by
/// [`OpenOptions::huge_pages`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Ordinary pages.
    #[default]
    No,
    /// If enough are free, and the rings are large enough (512 KiB with huge pages of 2 MiB);
    /// ordinary ones otherwise. [`crate::End::pages`] says what came of it.
    IfFree,
    /// Or no channel: [`crate::CreateError::HugePages`].
    Required,
}

/// In what pages a region lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The machine's ordinary pages.
    Ordinary,
    /// Huge pages.
    Huge {
        /// Bytes of each.
        bytes: u64,
    },
}

/// How large a channel is to be, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of each of the two rings: a power of two from 4 KiB to 16 MiB. The longest message
    /// that goes in one piece is a little under half of it. Memory is taken only when it is first
    /// written.
    pub ring_bytes: u32,
    /// The unit that the two ends exchange.
    pub mode: Mode,
    /// Whether the region lies in huge pages.
    pub huge_pages: HugePages,
    /// The cost of a wake-up on this machine, in ns, as [`crate::wake_price_ns`] measures it: an
    /// end spins for an answer one and a half times as long before it sleeps. The ends keep it
    /// within 1 to 50 us. `None`: 20 us.
    pub spin_ns: Option<u32>,
    /// Whether one of the two ends is in a guest, where no futex and no barrier of this kernel
    /// reaches. The region is as large as the next power of two then, of which what is not needed
    /// is never touched.
    pub apart: bool,
}

impl Default for Config {
    /// Messages, and 256 KiB: several pieces of 64 KiB in flight.
    fn default() -> Self {
        Config {
            ring_bytes: 256 << 10,
            mode: Mode::Messages,
            huge_pages: HugePages::No,
            spin_ns: None,
            apart: false,
        }
    }
}

/// The wishes of an end for its memory when it opens. By default nothing: memory comes as it is
/// first touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Have all of the region's memory provided now, so that the first message through each page
    /// does not wait for the kernel. Where the limit of a memory cgroup is too low for it, the
    /// kernel's answer is an error only if the cgroup's killer is off (`memory.oom_control`);
    /// otherwise a process of the cgroup is killed, as it would be at the first message that goes
    /// beyond.
    pub populate: bool,
    /// Accept a region in huge pages, whose maker and other end must be trusted (see
    /// [`HugePages`]); and where the region lies in ordinary pages, ask for transparent huge ones.
    pub huge_pages: bool,
    /// Keep the region in memory (mlock(2)), never swapped out. Counts against `RLIMIT_MEMLOCK`.
    /// Includes `populate`.
    pub lock: bool,
}
