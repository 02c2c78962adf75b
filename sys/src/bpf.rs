//! Programs for the kernel's own machine (bpf(2)): loaded, and attached to a cgroup of version 2. They are a few dozen instructions each, put together here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// linux/bpf.h
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
/// The program takes the place of one that is there; those of cgroups above that are attached beside others run, too.
const BPF_F_ALLOW_OVERRIDE: u32 = 1;
/// The program's licence, as the kernel asks for it.
const LICENCE: &[u8] = b"Dual MIT/GPL\0";
/// Bytes of `struct bpf_insn`.
const INSTRUCTION_BYTES: usize = 8;

// Instructions: class, size or operation, where the operand comes from (RFC 9669).
pub(crate) const MOVE: u8 = 0xb7;
pub(crate) const MOVE_32: u8 = 0xb4;
pub(crate) const MOVE_REGISTER: u8 = 0xbf;
pub(crate) const ADD: u8 = 0x07;
pub(crate) const AND: u8 = 0x57;
pub(crate) const SHIFT_LEFT: u8 = 0x67;
pub(crate) const SHIFT_RIGHT: u8 = 0x77;
pub(crate) const LOAD_8: u8 = 0x71;
pub(crate) const LOAD_16: u8 = 0x69;
pub(crate) const LOAD_32: u8 = 0x61;
pub(crate) const STORE_32: u8 = 0x63;
pub(crate) const STORE_VALUE_32: u8 = 0x62;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;
pub(crate) const JUMP: u8 = 0x05;
pub(crate) const IF_EQUAL: u8 = 0x15;
pub(crate) const IF_NOT_EQUAL: u8 = 0x55;
pub(crate) const IF_ANY_BIT: u8 = 0x45;

/// A place in a program that is jumped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// A program that is being put together.
#[derive(Debug, Default)]
pub(crate) struct Program {
    instructions: Vec<[u8; INSTRUCTION_BYTES]>,
    /// Where the labels are.
    labels: Vec<Option<usize>>,
    /// Which instructions jump where.
    jumps: Vec<(usize, Label)>,
}

impl Program {
    /// One instruction: what it does, to which register, from which, at which offset, with which value.
    pub(crate) fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) -> &mut Self {
        let (offset, value) = (offset.to_ne_bytes(), value.to_ne_bytes());
        self.instructions.push([
            code,
            from << 4 | to,
            offset[0],
            offset[1],
            value[0],
            value[1],
            value[2],
            value[3],
        ]);
        self
    }

    /// A place that is to be fixed later.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The place is here.
    pub(crate) fn here(&mut self, label: Label) -> &mut Self {
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(self.instructions.len());
        }
        self
    }

    /// Goes on elsewhere, where a register has to do with a value as the code says.
    pub(crate) fn jump(&mut self, code: u8, register: u8, value: i32, to: Label) -> &mut Self {
        self.jumps.push((self.instructions.len(), to));
        self.put(code, register, 0, 0, value)
    }

    fn finish(mut self) -> io::Result<Vec<[u8; INSTRUCTION_BYTES]>> {
        for (at, Label(label)) in std::mem::take(&mut self.jumps) {
            let to = self.labels.get(label).copied().flatten().ok_or(io::ErrorKind::InvalidInput)?;
            let distance = to.checked_sub(at + 1).ok_or(io::ErrorKind::InvalidInput)?;
            let distance = i16::try_from(distance).map_err(|_| io::ErrorKind::InvalidInput)?.to_ne_bytes();
            if let Some(instruction) = self.instructions.get_mut(at) {
                (instruction[2], instruction[3]) = (distance[0], distance[1]);
            }
        }
        Ok(self.instructions)
    }

    /// Hands the program to the kernel, which proves that it ends and touches nothing else. `kind`: `enum bpf_prog_type`, `attach`: `enum bpf_attach_type`.
    pub(crate) fn load(self, kind: u32, attach: u32, name: &str) -> io::Result<OwnedFd> {
        let program = self.finish()?;
        let mut load = Load {
            kind,
            instruction_count: u32::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            instructions: program.as_ptr().addr() as u64,
            licence: LICENCE.as_ptr().addr() as u64,
            expected_attach: attach,
            ..Load::default()
        };
        // The last byte stays 0.
        for (to, from) in load.name.iter_mut().take(15).zip(name.bytes()) {
            *to = from;
        }
        // SAFETY: `load` has the layout of the kernel's attributes for this command and its size goes with it; the program and the licence that it points to
        // live until the call returns, and the kernel only reads them.
        let loaded =
            unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<Load>()) };
        if loaded < 0 {
            return Err(io::Error::last_os_error());
        }
        let loaded = i32::try_from(loaded).map_err(|_| io::ErrorKind::InvalidData)?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(loaded) })
    }
}

/// Attaches a program to a cgroup of version 2, in place of one of its kind. It goes with the cgroup.
pub(crate) fn attach(cgroup: BorrowedFd<'_>, program: &OwnedFd, kind: u32) -> io::Result<()> {
    let attach = Attach {
        target: cgroup.as_raw_fd(),
        program: program.as_raw_fd(),
        kind,
        flags: BPF_F_ALLOW_OVERRIDE,
    };
    // SAFETY: `attach` has the layout of the kernel's attributes for this command, its size goes with it, and both descriptors are open.
    let attached =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, &raw const attach, size_of::<Attach>()) };
    if attached < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The head of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach: u32,
}

/// The head of `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
struct Attach {
    target: i32,
    program: i32,
    kind: u32,
    flags: u32,
}

const _: () = assert!(size_of::<Load>() == 72 && size_of::<Attach>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_goes_forward_to_its_label_and_nowhere_without_one() {
        let mut program = Program::default();
        let end = program.label();
        program.jump(IF_EQUAL, 1, 5, end).put(MOVE, 0, 0, 0, 1).here(end).put(EXIT, 0, 0, 0, 0);
        let bytes = program.finish().expect("all labels are there");
        assert_eq!(
            bytes,
            [[0x15, 1, 1, 0, 5, 0, 0, 0], [0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]]
        );
        let mut program = Program::default();
        let (nowhere, back) = (program.label(), program.label());
        program.here(back).jump(JUMP, 0, 0, back);
        assert!(program.finish().is_err(), "a loop");
        let mut program = Program::default();
        let _ = nowhere;
        let nowhere = program.label();
        program.jump(JUMP, 0, 0, nowhere);
        assert!(program.finish().is_err());
    }
}
