//! The table of handles: a number that a program holds, however wrong it is, leads to what it
//! stands for or to an error.

use crate::failure::{closed, failure};
use crate::slot::{Left, New, Slot, lock, remember_process};
use rustix::io::Errno;
use std::sync::{Mutex, OnceLock};
use sys::channel_abi::{Handle, Outcome};

/// Places of the first part of the table; each further part has twice as many as the one before, so
/// that those who have one channel do not pay for thousands.
const FIRST_PART: usize = 8;
/// Parts of the table.
const PARTS: usize = 13;
/// Handles at a time: more channels than a process may have descriptors for, by default.
const HANDLES_MAX: usize = FIRST_PART * ((1 << PARTS) - 1);
/// Low bits of a handle: its place. Those above count the handles that the place has stood for.
const PLACE_BITS: u32 = 20;

const _: () = assert!(HANDLES_MAX < 1 << PLACE_BITS);

/// All handles of this process.
#[derive(Debug)]
pub struct Table {
    parts: [OnceLock<Box<[Slot]>>; PARTS],
    free: Mutex<Free>,
}

/// Places that stand for nothing.
#[derive(Debug)]
struct Free {
    /// Those that have stood for something.
    used: Vec<usize>,
    /// From here on none has.
    next: usize,
}

impl Table {
    pub const fn new() -> Self {
        Self {
            parts: [const { OnceLock::new() }; PARTS],
            free: Mutex::new(Free { used: Vec::new(), next: 0 }),
        }
    }

    /// Where a handle leads, if it is open.
    pub fn find(&self, handle: Handle) -> Outcome<&Slot> {
        // 0 is what a free place says of itself, and no handle.
        let stands = |slot: &&Slot| handle != 0 && slot.handle() == handle;
        self.place(handle).filter(stands).ok_or_else(|| closed(handle))
    }

    /// Where a handle leads or led.
    pub fn place(&self, handle: Handle) -> Option<&Slot> {
        let place = usize::try_from(handle).ok()? & ((1 << PLACE_BITS) - 1);
        let (part, at) = part_of(place)?;
        self.parts.get(part)?.get()?.get(at)
    }

    /// A new handle.
    pub fn insert(&self, new: New) -> Outcome<Handle> {
        remember_process();
        let place = self.take_place()?;
        let inserted = self.occupy(place, new);
        if inserted.is_err() {
            self.free(place);
        }
        inserted
    }

    fn occupy(&self, place: usize, new: New) -> Outcome<Handle> {
        let (part, at) = part_of(place).ok_or_else(full)?;
        let part = self.parts.get(part).ok_or_else(full)?;
        let slots =
            part.get_or_init(|| (0..FIRST_PART << part_number(place)).map(|_| Slot::default()).collect());
        let slot = slots.get(at).ok_or_else(full)?;
        let number = (slot.next_generation() << PLACE_BITS) | place as u64;
        let handle = Handle::try_from(number).map_err(|_| full())?;
        slot.occupy(handle, new)?;
        Ok(handle)
    }

    /// Forgets a handle of which nothing is left.
    pub fn forget(&self, handle: Handle, left: &Left) {
        if *left == Left::Nothing
            && let Ok(number) = usize::try_from(handle)
        {
            self.free(number & ((1 << PLACE_BITS) - 1));
        }
    }

    fn take_place(&self) -> Outcome<usize> {
        let mut free = lock(&self.free)?;
        if let Some(place) = free.used.pop() {
            return Ok(place);
        }
        if free.next >= HANDLES_MAX {
            return Err(full());
        }
        free.next += 1;
        Ok(free.next - 1)
    }

    fn free(&self, place: usize) {
        // A lock that never comes free is that of a parent's thread: this process will do without
        // the place.
        if let Ok(mut free) = lock(&self.free) {
            free.used.push(place);
        }
    }
}

fn full() -> sys::channel_abi::Failure {
    failure(
        Errno::MFILE,
        format!("this process has {HANDLES_MAX} channels and offers open, which is all that it may"),
    )
}

/// The number of the part of the table that a place is in.
fn part_number(place: usize) -> usize {
    (place / FIRST_PART + 1).ilog2() as usize
}

/// Part, and place in it.
fn part_of(place: usize) -> Option<(usize, usize)> {
    let part = part_number(place);
    let before = FIRST_PART * ((1 << part) - 1);
    (place < HANDLES_MAX).then(|| (part, place - before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::channel_abi::Options;

    fn channel() -> New {
        let (end, _other) = channel::pair(&channel::Config::default()).expect("a channel");
        New::Channel { end: Box::new(end), peer: String::new(), options: Options::default() }
    }

    #[test]
    fn every_place_has_its_own_part() {
        let mut expected = (0, 0);
        for place in 0..HANDLES_MAX {
            assert_eq!(part_of(place), Some(expected));
            expected.1 += 1;
            if expected.1 == FIRST_PART << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(part_of(HANDLES_MAX), None);
    }

    #[test]
    fn a_handle_that_was_closed_never_leads_anywhere_again() {
        let table = Table::new();
        let first = table.insert(channel()).expect("a handle");
        let left = table.find(first).expect("open").close(first).expect("closed");
        table.forget(first, &left);
        assert!(table.find(first).is_err());
        let second = table.insert(channel()).expect("a handle");
        assert_ne!(first, second);
        assert!(std::ptr::eq(table.place(first).expect("the same place"), table.find(second).expect("open")));
        assert!(table.find(first).is_err());
    }

    #[test]
    fn numbers_that_are_no_handles_lead_nowhere() {
        let table = Table::new();
        let handle = table.insert(channel()).expect("a handle");
        for number in [0, 1, -1, Handle::MIN, Handle::MAX, handle - 1, handle + 1, handle + (1 << PLACE_BITS)]
        {
            assert!(table.find(number).is_err(), "{number}");
        }
    }
}
