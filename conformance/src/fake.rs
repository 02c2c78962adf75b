//! A device without a machine: ends such as guests have them, where a thread of this process stands
//! for the hypervisor. It carries rings between eventfds, a register and pipes, and notices when
//! either side is gone. What it can't show is a real device; what it can is all that the end does
//! with one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use channel::End;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use sys::doorbell::{self, Heard};
use sys::eventfd::Eventfd;
use sys::region::Region;
use wire::ring as layout;

/// A register in ordinary memory tells nobody that it was written: it is looked at so often.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// Bytes of the memory that stands for the registers.
const REGISTERS_BYTES: usize = 4096;

/// The thread's descriptors: the end that it makes a device of, and the other sides of the device's
/// descriptors.
struct Hypervisor {
    hears: [OwnedFd; 2],
    rings: [OwnedFd; 2],
    interrupts: [Eventfd; 2],
    registers: Region,
    /// The writing half alone: one that is open for reading as well would never learn that nobody
    /// reads any more.
    life: OwnedFd,
    /// The other end is gone, and the device's has been told.
    told: bool,
}

/// Makes a device of an end whose ends are apart. The thread ends when both ends of the channel are
/// gone.
///
/// # Errors
/// Those of making descriptors, of mapping the registers and of starting the thread.
pub fn device(end: End) -> io::Result<End> {
    let descriptors = end.into_descriptors();
    let side = usize::from(!sys::memfd::is_file(&descriptors[0])?);
    let (region, [hears_data, rings_data, hears_room, rings_room]) = if side == 0 {
        let [region, a, b, c, d] = descriptors;
        (region, [a, b, c, d])
    } else {
        let [a, b, c, d, region] = descriptors;
        (region, [a, b, c, d])
    };
    let bell = sys::memfd::sealed("tombolo-registers", REGISTERS_BYTES as u64)?;
    let (life, keeps) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let interrupts = [Eventfd::new()?, Eventfd::new()?];
    let [data, room] = [&interrupts[0], &interrupts[1]].map(|event| event.as_fd().try_clone_to_owned());
    let hypervisor = Hypervisor {
        hears: [hears_data, hears_room],
        rings: [rings_data, rings_room],
        registers: Region::map(&bell, REGISTERS_BYTES)?,
        life: keeps,
        told: false,
        interrupts,
    };
    std::thread::Builder::new().name("hypervisor".into()).spawn(move || hypervisor.run())?;
    let others = [data?, room?, bell, life];
    let [a, b, c, d] = others;
    let all = if side == 0 { [region, a, b, c, d] } else { [a, b, c, d, region] };
    End::from_descriptors(all.into()).map_err(io::Error::other)
}

impl Hypervisor {
    fn run(mut self) {
        while !self.is_unplugged() && self.carry().is_ok() {}
        // What it holds of the other end goes with it, and that hangs up.
    }

    fn is_unplugged(&self) -> bool {
        let mut polled = [PollFd::new(&self.life, PollFlags::empty())];
        let polled = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        !matches!(polled, Ok(0))
    }

    /// Waits for a moment, and carries what there is.
    fn carry(&mut self) -> io::Result<()> {
        // A register holds one word: whichever it is by now, each of the two may have been stored
        // before, and a ring too many is none.
        let at = layout::BELL_OFFSET - layout::BELL_OFFSET % 8;
        if self.registers.swap_u64(at, 0, Ordering::AcqRel) != 0 {
            for ringer in &self.rings {
                doorbell::ring(ringer)?;
            }
        }
        let mut gone = false;
        for (pipe, interrupt) in self.hears.iter().zip(&self.interrupts) {
            match doorbell::listen(pipe)? {
                Heard::Silence => {}
                Heard::Ring => interrupt.signal(),
                Heard::Death => gone = true,
            }
        }
        if gone && !self.told {
            // By a byte, as an agent does that has to learn yet when the end is closed: the device
            // stays as long as somebody has it.
            self.told = true;
            rustix::io::write(&self.life, &[1])?;
        }
        self.pause(gone)
    }

    fn pause(&self, gone: bool) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_EVERY.subsec_nanos()) };
        let mut polled = vec![PollFd::new(&self.life, PollFlags::empty())];
        if !gone {
            // Pipes that have hung up are ready for good.
            polled.extend(self.hears.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        }
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
