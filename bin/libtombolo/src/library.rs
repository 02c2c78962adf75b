//! The calls of the header, each a few lines: find the handle, do it.

use crate::failure;
use crate::member::Member;
use crate::naming::Name;
use crate::offering::{self, Offering, config_of, mode_of};
use crate::reading::Reading;
use crate::serving::ServiceTable;
use crate::slot::{Entry, Left, New};
use crate::table::Table;
use crate::whole::{Kind, Whole};
use crate::writing::Writing;
use channel::{End, OpenError};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{OwnedFd, RawFd};
use sys::channel_abi::{Channels, DESCRIPTORS, Direction, Handle, Options, Outcome, Patience};

const _: () = assert!(DESCRIPTORS == End::DESCRIPTORS);

/// All that this process holds.
#[derive(Debug)]
pub struct Library {
    pub(crate) table: Table,
    pub(crate) services: ServiceTable,
}

impl Library {
    pub const fn new() -> Self {
        Self { table: Table::new(), services: ServiceTable::new() }
    }

    /// For each call by which a program comes to hold something: from the first one on, descriptors
    /// are known by what they are.
    pub(crate) fn begin(&self) {
        sys::known::live_in_a_foreign_program();
    }

    /// A handle for an end whose mode is what the options say.
    fn add(&self, end: End, peer: String, options: &Options) -> Outcome<Handle> {
        let opening = |error: OpenError| failure::opening(&error);
        let (found, wanted) = (end.mode().map_err(opening)?, mode_of(options));
        if found != wanted {
            return Err(opening(OpenError::WrongMode { found, wanted }));
        }
        self.table.insert(New::Channel { end: Box::new(end), peer, options: *options })
    }

    /// As [`Library::add`], and in use: what is wrong with the end is said now.
    fn add_open(&self, end: End, peer: String, options: &Options) -> Outcome<Handle> {
        let handle = self.add(end, peer, options)?;
        let opened = self.table.find(handle).and_then(|slot| slot.open(handle));
        if let Err(failure) = opened {
            self.close(handle)?;
            return Err(failure);
        }
        Ok(handle)
    }

    fn read_half<T>(
        &self,
        channel: Handle,
        work: impl FnOnce(&mut Reading, Patience) -> Outcome<T>,
    ) -> Outcome<T> {
        let slot = self.table.find(channel)?;
        slot.read(channel, Entry::IfFree, |half| work(half, slot.patience(Direction::Reading)))
    }

    fn write_half<T>(
        &self,
        channel: Handle,
        work: impl FnOnce(&mut Writing, Patience) -> Outcome<T>,
    ) -> Outcome<T> {
        let slot = self.table.find(channel)?;
        slot.write(channel, Entry::IfFree, |half| work(half, slot.patience(Direction::Writing)))
    }

    /// Memory that comes back after its handle was closed.
    fn give_back(&self, channel: Handle, direction: Direction) -> Outcome<()> {
        let slot = self.table.place(channel).ok_or_else(|| failure::closed(channel))?;
        let left = slot.give_back(direction, channel)?;
        self.table.forget(channel, &left);
        Ok(())
    }

    /// Does what gives memory back, also where the handle is closed meanwhile: `orphaned` is what
    /// the program hears then.
    fn or_give_back(
        &self,
        channel: Handle,
        direction: Direction,
        done: Outcome<()>,
        orphaned: Outcome<()>,
    ) -> Outcome<()> {
        match done {
            Err(failure) if failure.errno == Errno::BADF.raw_os_error() => {
                if self.give_back(channel, direction).is_ok() { orphaned } else { Err(failure) }
            }
            done => done,
        }
    }

    /// For what is waited for as a whole: only what comes in can be.
    fn must_come_in(kind: Kind, direction: Direction) -> Outcome<()> {
        match direction {
            Direction::Reading => Ok(()),
            Direction::Writing => Err(failure::wrong_kind(kind, Kind::Channel)),
        }
    }
}

impl Channels for Library {
    fn offer(&self, name: &CStr, options: &Options) -> Outcome<Handle> {
        self.begin();
        let offering = Offering::new(Name::of(name)?, options)?;
        let options = offering.options();
        self.table.insert(New::Whole { whole: Whole::Offer(Box::new(offering)), options })
    }

    fn accept(&self, offer: Handle) -> Outcome<Handle> {
        let slot = self.table.find(offer)?;
        let patience = slot.patience(Direction::Reading);
        let ((end, peer), options) =
            slot.offer(offer, |offering| Ok((offering.accept(patience)?, offering.options())))?;
        self.add(end, peer, &options)
    }

    fn open(&self, name: &CStr, options: &Options) -> Outcome<Handle> {
        self.begin();
        let (end, peer) = offering::open(Name::of(name)?, options)?;
        self.add_open(end, peer, options)
    }

    fn pair(&self, options: &Options) -> Outcome<[Handle; 2]> {
        self.begin();
        let (one, other) = channel::pair(&config_of(options)).map_err(|error| failure::creating(&error))?;
        let one = self.add(one, String::new(), options)?;
        match self.add(other, String::new(), options) {
            Ok(other) => Ok([one, other]),
            Err(failure) => {
                self.close(one)?;
                Err(failure)
            }
        }
    }

    fn give_descriptors(&self, channel: Handle) -> Outcome<[OwnedFd; DESCRIPTORS]> {
        let end = self.table.find(channel)?.give_up(channel)?;
        self.table.forget(channel, &Left::Nothing);
        end.check_descriptors().map_err(|error| {
            failure::system("give a channel's descriptors, of which the program has closed some", &error)
        })?;
        Ok(end.into_descriptors())
    }

    fn take_descriptors(&self, descriptors: Vec<OwnedFd>, options: &Options) -> Outcome<Handle> {
        self.begin();
        let end = End::from_descriptors(descriptors).map_err(|error| failure::opening(&error))?;
        self.add(end, String::new(), options)
    }

    fn read(&self, channel: Handle, into: &mut [IoSliceMut<'_>]) -> Outcome<usize> {
        self.read_half(channel, |half, patience| half.read(into, patience))
    }

    fn write(&self, channel: Handle, from: &[IoSlice<'_>]) -> Outcome<usize> {
        self.write_half(channel, |half, patience| half.write(from, patience))
    }

    fn next_length(&self, channel: Handle) -> Outcome<usize> {
        self.read_half(channel, |half, patience| half.next_length(patience))
    }

    fn loan(&self, channel: Handle, length: usize) -> Outcome<*mut u8> {
        self.write_half(channel, |half, patience| half.loan(length, patience))
    }

    fn commit(&self, channel: Handle, length: usize) -> Outcome<()> {
        let slot = self.table.find(channel);
        let done = slot.and_then(|slot| slot.write(channel, Entry::GivingBack, |half| half.commit(length)));
        let orphaned = Err(failure::sending(&channel::SendError::Closed));
        self.or_give_back(channel, Direction::Writing, done, orphaned)
    }

    fn cancel(&self, channel: Handle) -> Outcome<()> {
        let slot = self.table.find(channel);
        let done = slot.and_then(|slot| slot.write(channel, Entry::GivingBack, Writing::cancel));
        self.or_give_back(channel, Direction::Writing, done, Ok(()))
    }

    fn view(&self, channel: Handle) -> Outcome<Option<(*const u8, usize)>> {
        self.read_half(channel, |half, patience| half.view(patience))
    }

    fn release(&self, channel: Handle) -> Outcome<()> {
        let slot = self.table.find(channel);
        let done = slot.and_then(|slot| slot.read(channel, Entry::GivingBack, Reading::release));
        self.or_give_back(channel, Direction::Reading, done, Ok(()))
    }

    fn set_batch(&self, channel: Handle, bytes: usize) -> Outcome<()> {
        self.write_half(channel, |half, patience| half.set_batch(bytes, patience))
    }

    fn flush(&self, channel: Handle) -> Outcome<()> {
        self.write_half(channel, |half, patience| half.flush(patience))
    }

    fn finish(&self, channel: Handle) -> Outcome<()> {
        self.write_half(channel, |half, patience| half.finish(patience))
    }

    fn set_timeout(&self, handle: Handle, direction: Direction, patience: Patience) -> Outcome<()> {
        let slot = self.table.find(handle)?;
        if let Kind::Endpoint | Kind::Backup | Kind::Buffer = slot.kind(handle)? {
            let text = "each call of an endpoint takes a time-out of its own, so there is none to set";
            return Err(failure::failure(Errno::INVAL, text));
        }
        slot.set_patience(direction, patience);
        Ok(())
    }

    fn wait(&self, handle: Handle, direction: Direction, patience: Patience) -> Outcome<bool> {
        let slot = self.table.find(handle)?;
        let kind = slot.kind(handle)?;
        match (kind, direction) {
            (Kind::Channel, Direction::Reading) => self.read_half(handle, |half, _| half.wait(patience)),
            (Kind::Channel, Direction::Writing) => self.write_half(handle, |half, _| half.wait(patience)),
            (Kind::Offer, _) => {
                Self::must_come_in(kind, direction)?;
                slot.offer(handle, |offering| offering.wait(patience))
            }
            (Kind::Endpoint | Kind::Backup | Kind::Buffer, _) => {
                Self::must_come_in(kind, direction)?;
                slot.whole(handle, |member: &mut Member| member.wait(patience))
            }
        }
    }

    fn poll_descriptor(&self, handle: Handle, direction: Direction) -> Outcome<RawFd> {
        let slot = self.table.find(handle)?;
        let kind = slot.kind(handle)?;
        match (kind, direction) {
            (Kind::Channel, Direction::Reading) => self.read_half(handle, |half, _| half.poll_descriptor()),
            (Kind::Channel, Direction::Writing) => self.write_half(handle, |half, _| half.poll_descriptor()),
            (Kind::Offer, _) => {
                Self::must_come_in(kind, direction)?;
                slot.offer(handle, Offering::poll_descriptor)
            }
            (Kind::Endpoint | Kind::Backup | Kind::Buffer, _) => {
                Self::must_come_in(kind, direction)?;
                slot.whole(handle, Member::poll_descriptor)
            }
        }
    }

    fn set_message_limit(&self, channel: Handle, bytes: usize) -> Outcome<()> {
        self.read_half(channel, |half, _| half.set_message_limit(bytes))
    }

    fn max_message(&self, channel: Handle) -> Outcome<usize> {
        self.write_half(channel, |half, _| Ok(half.max_message()))
    }

    fn is_stream(&self, channel: Handle) -> Outcome<bool> {
        Ok(self.table.find(channel)?.options(channel)?.has(Options::STREAM))
    }

    fn peer(&self, channel: Handle) -> Outcome<String> {
        self.table.find(channel)?.peer(channel)
    }

    fn close(&self, handle: Handle) -> Outcome<()> {
        let left = self.table.find(handle)?.close(handle)?;
        self.table.forget(handle, &left);
        Ok(())
    }
}
