//! A machine of one processor and a little memory under the kernel's own monitor (`/dev/kvm`,
//! linux/kvm.h): put together, and run from one exit to the next.

use std::io;
use std::ptr::{self, NonNull};

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_run, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::mm::{MapFlags, ProtFlags};

/// Where Intel's processors keep what they need to run real mode: below the firmware, where no
/// memory of ours is (bytes).
const IDENTITY_MAP: u64 = 0xfffb_c000;
/// The three pages above that, for the same.
const TASK_STATE: usize = 0xfffb_d000;
/// A page of memory.
const PAGE_BYTES: usize = 4096;
/// `RFLAGS` with nothing set.
const NO_FLAGS: u64 = 2;
/// Bytes of an instruction that could not be emulated, at most.
const INSTRUCTION_BYTES: usize = 15;
/// `KVM_INTERNAL_ERROR_EMULATION`.
const NOT_EMULATED: u32 = 1;
/// `KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES`.
const HAS_INSTRUCTION: u64 = 1;

/// A machine.
#[derive(Debug)]
pub struct Machine {
    // In this order they go: who uses the memory before the memory.
    processor: VcpuFd,
    _machine: VmFd,
    _memory: Memory,
}

/// Why a processor is no longer in its guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// It wrote this byte to this port.
    Wrote(u16, u8),
    /// It halted.
    Halted,
    /// It failed in handling a failure, which resets a machine.
    Shutdown,
    /// KVM executes instructions by itself, and does not know what stands here: some bytes of it,
    /// or none where it does not say which.
    NotEmulated(Vec<u8>),
    /// The processor refused the guest's state: its reason, as the hardware gives it.
    Refused(u64),
    /// Something else: its name.
    Other(String),
}

impl Machine {
    /// A machine whose memory is `image` from address 0 on, in whole pages, and whose processor is
    /// about to begin at `start` in real mode.
    ///
    /// # Errors
    /// Those of the device, which say little by themselves; the text says what was asked of it.
    pub fn new(image: &[u8], start: u16) -> io::Result<Self> {
        let memory = Memory::holding(image)?;
        let said = |what: &'static str| {
            move |error: kvm_ioctls::Error| {
                let error = io::Error::from_raw_os_error(error.errno());
                io::Error::new(error.kind(), format!("{what}: {error}"))
            }
        };
        let kvm = Kvm::new().map_err(said("opening /dev/kvm"))?;
        let machine = kvm.create_vm().map_err(said("making a machine"))?;
        machine.set_identity_map_address(IDENTITY_MAP).map_err(said("giving it room for real mode"))?;
        machine.set_tss_address(TASK_STATE).map_err(said("giving it room for real mode"))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: memory.bytes as u64,
            userspace_addr: memory.start.as_ptr() as u64,
        };
        // SAFETY: the range is one mapping of ours, readable and writable. It is unmapped when
        // `Memory` is dropped, which is after the machine and its processor, and no reference into
        // it exists while they do.
        unsafe { machine.set_user_memory_region(region) }.map_err(said("giving it memory"))?;
        let processor = machine.create_vcpu(0).map_err(said("making its processor"))?;
        let features = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(said("asking for features"))?;
        processor.set_cpuid2(&features).map_err(said("setting its features"))?;
        let mut special = processor.get_sregs().map_err(said("reading its registers"))?;
        (special.cs.base, special.cs.selector) = (0, 0);
        processor.set_sregs(&special).map_err(said("setting its registers"))?;
        let mut registers = processor.get_regs().map_err(said("reading its registers"))?;
        (registers.rip, registers.rflags) = (start.into(), NO_FLAGS);
        processor.set_regs(&registers).map_err(said("setting its registers"))?;
        Ok(Self { processor, _machine: machine, _memory: memory })
    }

    /// Runs it until it leaves the guest, which may be never: for a process that can be killed.
    ///
    /// # Errors
    /// Those of the device; a signal is `Interrupted`.
    pub fn run(&mut self) -> io::Result<Exit> {
        let exit = match self.processor.run() {
            Ok(VcpuExit::IoOut(port, [byte, ..])) => Exit::Wrote(port, *byte),
            Ok(VcpuExit::Hlt) => Exit::Halted,
            Ok(VcpuExit::Shutdown) => Exit::Shutdown,
            Ok(VcpuExit::FailEntry(reason, _)) => Exit::Refused(reason),
            Ok(VcpuExit::InternalError) => internal_error(self.processor.get_kvm_run()),
            Ok(other) => Exit::Other(format!("{other:?}")),
            Err(error) => return Err(io::Error::from_raw_os_error(error.errno())),
        };
        Ok(exit)
    }
}

/// KVM's report of an error of its own.
fn internal_error(run: &kvm_run) -> Exit {
    // SAFETY: plain numbers, of which any bits are a value; which of the views is meant is for
    // those who look at them.
    let (error, failure) = unsafe { (run.__bindgen_anon_1.internal, run.__bindgen_anon_1.emulation_failure) };
    if error.suberror != NOT_EMULATED {
        return Exit::Other(format!("internal error {}", error.suberror));
    }
    // SAFETY: as above.
    let told = unsafe { failure.__bindgen_anon_1.__bindgen_anon_1 };
    let known = failure.ndata > 1 && failure.flags & HAS_INSTRUCTION != 0;
    let bytes = if known { INSTRUCTION_BYTES.min(told.insn_size.into()) } else { 0 };
    Exit::NotEmulated(told.insn_bytes.get(..bytes).unwrap_or_default().to_vec())
}

/// Memory of a machine: a mapping of our own that nobody refers to.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    fn holding(image: &[u8]) -> io::Result<Self> {
        let bytes = image.len().next_multiple_of(PAGE_BYTES);
        // SAFETY: a null hint lets the kernel choose a free range, so no other mapping is replaced.
        let start = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the mapping is new, ours alone, writable, and at least as long as the image,
        // which lies elsewhere.
        unsafe { start.copy_from_nonoverlapping(NonNull::from_ref(image).cast(), image.len()) };
        Ok(Self { start, bytes })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range that was mapped, to which no reference was ever made; the machine that
        // used it is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}
