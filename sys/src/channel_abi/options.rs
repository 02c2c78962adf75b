//! `struct tombolo_options`.

use super::{Failure, Outcome};
use libc::c_int;

/// A caller's wishes: `struct tombolo_options` of the header. All zero, but for the size, is what
/// null means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Options {
    /// Bytes of the structure that the caller was compiled with.
    pub size: u32,
    /// `TOMBOLO_STREAM` and the others: [`Options::FLAGS`].
    pub flags: u32,
    /// Bytes of each ring; 0: the default.
    pub ring_bytes: u32,
    /// As of `tombolo_set_batch`.
    pub batch_bytes: u32,
    /// How long `tombolo_open` waits for an offerer, ns; 0: it must be there; -1: for ever.
    pub wait_ns: i64,
    /// Zero.
    pub reserved: [u64; 5],
}

const _: () = assert!(size_of::<Options>() == 64 && align_of::<Options>() == 8);

/// Most bytes of a caller's structure: more is no structure of any version to come.
const SIZE_MAX: usize = 4096;

impl Default for Options {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            flags: 0,
            ring_bytes: 0,
            batch_bytes: 0,
            wait_ns: 0,
            reserved: [0; 5],
        }
    }
}

impl Options {
    /// Bytes without seams instead of messages.
    pub const STREAM: u32 = 1;
    /// Calls do not wait.
    pub const NONBLOCK: u32 = 2;
    /// Other users' programs are welcome at the path.
    pub const ANY_USER: u32 = 4;
    /// Never spin before sleeping.
    pub const NO_SPIN: u32 = 8;
    /// Memory is provided now, and not as it is first touched.
    pub const POPULATE: u32 = 16;
    /// Memory is provided now and kept (mlock(2)).
    pub const LOCK: u32 = 32;
    /// Memory in huge pages, if enough are free; the other end is trusted not to take them back.
    pub const HUGE_PAGES: u32 = 64;
    /// Waits of an endpoint end when a signal handler has run.
    pub const INTERRUPTIBLE: u32 = 128;
    /// All flags of channels and offers.
    pub const FLAGS: u32 = Self::STREAM
        | Self::NONBLOCK
        | Self::ANY_USER
        | Self::NO_SPIN
        | Self::POPULATE
        | Self::LOCK
        | Self::HUGE_PAGES;
    /// All flags of endpoints.
    pub const ENDPOINT_FLAGS: u32 = Self::NO_SPIN | Self::INTERRUPTIBLE;

    /// Whether a flag is set.
    #[must_use]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Reads what a caller points to, for a channel or an offer. A newer caller's structure is
    /// longer: what this library does not know must be zero.
    ///
    /// # Safety
    /// `options` is null, or valid for reading four bytes, and for as many as they say.
    pub(crate) unsafe fn read(options: *const Self) -> Outcome<Self> {
        // SAFETY: the caller says so.
        unsafe { Self::read_for(options, Self::FLAGS) }
    }

    /// As [`Options::read`], for what has other flags.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn read_for(options: *const Self, flags: u32) -> Outcome<Self> {
        if options.is_null() {
            return Ok(Self::default());
        }
        let start: *const u8 = options.cast();
        // SAFETY: four bytes can be read, as the caller says; no alignment is needed for it.
        let size = unsafe { start.cast::<u32>().read_unaligned() } as usize;
        if !(size_of::<Self>()..=SIZE_MAX).contains(&size) {
            let text = format!(
                "struct tombolo_options says that it has {size} bytes, not {}: set its `size` to sizeof of it",
                size_of::<Self>()
            );
            return Err(Failure { errno: libc::EINVAL, text });
        }
        // SAFETY: `size` bytes can be read, and that is at least one of our structures; any bytes
        // are a valid one.
        let known = unsafe { start.cast::<Self>().read_unaligned() };
        // SAFETY: the bytes behind ours, which the caller says can be read; bytes need no
        // alignment.
        let unknown =
            unsafe { std::slice::from_raw_parts(start.add(size_of::<Self>()), size - size_of::<Self>()) };
        known.check(unknown, flags)?;
        Ok(known)
    }

    fn check(&self, unknown: &[u8], flags: u32) -> Outcome<()> {
        let refused = |errno: c_int, text: String| Err(Failure { errno, text });
        if unknown.iter().any(|byte| *byte != 0) {
            let text = "struct tombolo_options asks for something that this libtombolo does not know: take a newer one";
            return refused(libc::E2BIG, text.to_owned());
        }
        if self.reserved.iter().any(|word| *word != 0) {
            let text =
                "struct tombolo_options has a reserved word that is not zero: clear it before you fill it in";
            return refused(libc::EINVAL, text.to_owned());
        }
        let odd = self.flags & !flags;
        if odd != 0 {
            let known = self.flags & !(Self::FLAGS | Self::ENDPOINT_FLAGS) == 0;
            let what = if known { "flags that are not for this call" } else { "the unknown flags" };
            return refused(libc::EINVAL, format!("struct tombolo_options has {what}: {odd:#x}"));
        }
        if self.wait_ns < -1 {
            let text =
                format!("struct tombolo_options has wait_ns = {}: take ns, or -1 for ever", self.wait_ns);
            return refused(libc::EINVAL, text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(options: Options) -> c_int {
        // SAFETY: a whole structure, whose size is right or out of bounds.
        unsafe { Options::read(&raw const options) }.map_or_else(|failure| failure.errno, |_| 0)
    }

    #[test]
    fn null_is_the_default() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { Options::read(std::ptr::null()) }, Ok(Options::default()));
        assert_eq!(errno(Options::default()), 0);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Options::default();
        for bad in [
            Options { size: 0, ..good },
            Options { size: 63, ..good },
            Options { size: u32::MAX, ..good },
            Options { flags: 1 << 31, ..good },
            Options { wait_ns: -2, ..good },
            Options { reserved: [0, 0, 0, 0, 1], ..good },
        ] {
            assert_eq!(errno(bad), libc::EINVAL, "{bad:?}");
        }
    }

    #[test]
    fn a_newer_structure_is_taken_if_it_asks_for_nothing_new() {
        #[repr(C)]
        struct Newer {
            known: Options,
            more: [u8; 16],
        }
        let mut newer = Newer { known: Options { size: 80, ..Options::default() }, more: [0; 16] };
        // SAFETY: as many bytes as its size says.
        let read = |newer: &Newer| unsafe { Options::read((&raw const *newer).cast()) };
        assert_eq!(read(&newer).unwrap(), newer.known);
        newer.more[15] = 1;
        assert_eq!(read(&newer).unwrap_err().errno, libc::E2BIG);
    }
}
