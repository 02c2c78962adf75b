//! Programs for the kernel's own machine (bpf(2)), loaded and attached to cgroups of version 2, and
//! the maps that they share. A program is a few dozen instructions, put together here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// linux/bpf.h
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_MAP_GET_NEXT_KEY: libc::c_long = 4;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_MAP_GET_FD_BY_ID: libc::c_long = 14;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_BTF_LOAD: libc::c_long = 18;
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_SK_STORAGE: u32 = 24;
/// A connection that is accepted has what its listener has.
const BPF_F_CLONE: u32 = 1 << 9;
/// The program takes the place of one that is there; those of cgroups above that are attached
/// beside others run, too.
const BPF_F_ALLOW_OVERRIDE: u32 = 1;
/// Memory for an entry is taken when the entry is made.
const BPF_F_NO_PREALLOC: u32 = 1;
/// The program's licence, as the kernel asks for it.
const LICENCE: &[u8] = b"Dual MIT/GPL\0";
/// Bytes of `struct bpf_insn`.
const INSTRUCTION_BYTES: usize = 8;

// Instructions: class, size or operation, where the operand comes from (RFC 9669).
pub(crate) const MOVE: u8 = 0xb7;
pub(crate) const MOVE_REGISTER: u8 = 0xbf;
pub(crate) const ADD: u8 = 0x07;
pub(crate) const AND: u8 = 0x57;
pub(crate) const SHIFT_LEFT: u8 = 0x67;
pub(crate) const SHIFT_RIGHT: u8 = 0x77;
pub(crate) const LOAD_8: u8 = 0x71;
pub(crate) const LOAD_16: u8 = 0x69;
pub(crate) const LOAD_32: u8 = 0x61;
pub(crate) const STORE_32: u8 = 0x63;
pub(crate) const STORE_64: u8 = 0x7b;
pub(crate) const STORE_VALUE_32: u8 = 0x62;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;
pub(crate) const JUMP: u8 = 0x05;
pub(crate) const IF_EQUAL: u8 = 0x15;
pub(crate) const IF_NOT_EQUAL: u8 = 0x55;
pub(crate) const IF_ANY_BIT: u8 = 0x45;

/// Loads 64 bits, which are in two instructions; with [`MAP`] as the register it is from, a map.
const LOAD_WIDE: u8 = 0x18;
const MAP: u8 = 1;

/// A place in a program that is jumped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// A program that is being put together.
#[derive(Debug, Default)]
pub(crate) struct Program {
    instructions: Vec<[u8; INSTRUCTION_BYTES]>,
    /// Where the labels are.
    labels: Vec<Option<usize>>,
    /// The instructions that jump, and where to.
    jumps: Vec<(usize, Label)>,
}

impl Program {
    /// One instruction: what it does, to which register, from which, at which offset, with which
    /// value.
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

    /// Gives a register a map of the program.
    pub(crate) fn map(&mut self, to: u8, map: &Map) -> &mut Self {
        self.put(LOAD_WIDE, to, MAP, 0, map.0.as_raw_fd()).put(0, 0, 0, 0, 0)
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

    /// Hands the program to the kernel, which proves that it ends and touches nothing else. `kind`:
    /// `enum bpf_prog_type`, `attach`: `enum bpf_attach_type`.
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
        // SAFETY: `load` has the layout of the kernel's attributes for this command and its size
        // goes with it; the program and the licence that it points to live until the call returns,
        // and the kernel only reads them.
        descriptor(unsafe { command(BPF_PROG_LOAD, &raw mut load) }?)
    }
}

/// Attaches a program to a cgroup of version 2, in place of one of its kind. It goes with the
/// cgroup.
pub(crate) fn attach(cgroup: BorrowedFd<'_>, program: &OwnedFd, kind: u32) -> io::Result<()> {
    let mut attach = Attach {
        target: cgroup.as_raw_fd(),
        program: program.as_raw_fd(),
        kind,
        flags: BPF_F_ALLOW_OVERRIDE,
    };
    // SAFETY: `attach` has the layout of the kernel's attributes for this command, its size goes
    // with it, and both descriptors are open.
    unsafe { command(BPF_PROG_ATTACH, &raw mut attach) }.map(|_| ())
}

/// A map of the kernel that programs share, with values of 32 bits.
#[derive(Debug)]
pub(crate) struct Map(OwnedFd);

/// The keys by which a map's values are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// 64 bits, and there are at most so many.
    Numbers(u32),
    /// The sockets that they belong to, and end with.
    Sockets,
}

impl Keys {
    /// `enum bpf_map_type`, and bytes of a key.
    fn kind(self) -> (u32, u32) {
        match self {
            Self::Numbers(_) => (BPF_MAP_TYPE_HASH, 8),
            Self::Sockets => (BPF_MAP_TYPE_SK_STORAGE, 4),
        }
    }
}

impl Map {
    pub(crate) fn new(keys: Keys, name: &str) -> io::Result<Self> {
        let (kind, key_bytes) = keys.kind();
        let mut create = CreateMap {
            kind,
            key_bytes,
            value_bytes: VALUE_BYTES,
            flags: BPF_F_NO_PREALLOC,
            ..CreateMap::default()
        };
        for (to, from) in create.name.iter_mut().take(15).zip(name.bytes()) {
            *to = from;
        }
        let types;
        match keys {
            Keys::Numbers(entries) => create.entries = entries,
            Keys::Sockets => {
                types = load_types()?;
                create.flags |= BPF_F_CLONE;
                (create.types, create.key_type, create.value_type) = (types.as_raw_fd(), 1, 1);
            }
        }
        // SAFETY: `create` has the layout of the kernel's attributes for this command, its size
        // goes with it, and it points to nothing.
        descriptor(unsafe { command(BPF_MAP_CREATE, &raw mut create) }?).map(Self)
    }

    /// The map of a program that the kernel has: the only one, and such as [`Self::new`] makes.
    /// `None` where the program has another.
    pub(crate) fn of_program(id: u32, keys: Keys) -> io::Result<Option<Self>> {
        let mut by_id = ById { id, ..ById::default() };
        // SAFETY: `by_id` has the layout of the kernel's attributes for this command, its size goes
        // with it, and it points to nothing.
        let program = descriptor(unsafe { command(BPF_PROG_GET_FD_BY_ID, &raw mut by_id) }?)?;
        let mut map_id = 0_u32;
        let mut info = ProgramInfo {
            map_count: 1,
            map_ids: (&raw mut map_id).expose_provenance() as u64,
            ..ProgramInfo::default()
        };
        information(&program, &raw mut info)?;
        if info.map_count != 1 {
            return Ok(None);
        }
        let mut by_id = ById { id: map_id, ..ById::default() };
        // SAFETY: as above.
        let map = descriptor(unsafe { command(BPF_MAP_GET_FD_BY_ID, &raw mut by_id) }?)?;
        let mut info = MapInfo::default();
        information(&map, &raw mut info)?;
        let is_such =
            (info.kind, info.key_bytes, info.value_bytes) == (keys.kind().0, keys.kind().1, VALUE_BYTES);
        Ok(is_such.then_some(Self(map)))
    }

    pub(crate) fn set(&self, key: u64, mut value: u32) -> io::Result<()> {
        let mut next = 0;
        self.element(BPF_MAP_UPDATE_ELEM, key, &raw mut value, &raw mut next)
    }

    pub(crate) fn get(&self, key: u64) -> io::Result<Option<u32>> {
        let (mut value, mut next) = (0, 0);
        found(self.element(BPF_MAP_LOOKUP_ELEM, key, &raw mut value, &raw mut next), || value)
    }

    /// Takes an entry away; there being none is no error.
    pub(crate) fn remove(&self, key: u64) -> io::Result<()> {
        let (mut value, mut next) = (0, 0);
        found(self.element(BPF_MAP_DELETE_ELEM, key, &raw mut value, &raw mut next), || ()).map(|_| ())
    }

    /// The key after this one, in the kernel's order; the first after one that is not there.
    pub(crate) fn next(&self, key: u64) -> io::Result<Option<u64>> {
        let (mut value, mut next) = (0, 0);
        found(self.element(BPF_MAP_GET_NEXT_KEY, key, &raw mut value, &raw mut next), || next)
    }

    /// One command about one entry: the kernel reads or writes `value`, or writes `next`.
    fn element(&self, what: libc::c_long, key: u64, value: *mut u32, next: *mut u64) -> io::Result<()> {
        let other = match what {
            BPF_MAP_GET_NEXT_KEY => next.expose_provenance(),
            // The kernel insists that what a command does not use is 0.
            BPF_MAP_DELETE_ELEM => 0,
            _ => value.expose_provenance(),
        };
        let mut element = Element {
            map: self.0.as_raw_fd(),
            padding: 0,
            key: (&raw const key).expose_provenance() as u64,
            value: other as u64,
            flags: 0,
        };
        // SAFETY: `element` has the layout of the kernel's attributes for these commands and its
        // size goes with it. A map's values have 32 bits and its keys 64, or 32 of which the kernel
        // reads no more (checked where a map is not made here); key, value and next key have those
        // sizes and live until the call returns.
        unsafe { command(what, &raw mut element) }.map(|_| ())
    }
}

/// A value that may be absent; the kernel says `ENOENT` where it is.
fn found<T>(done: io::Result<()>, value: impl FnOnce() -> T) -> io::Result<Option<T>> {
    match done {
        Ok(()) => Ok(Some(value())),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The kernel's knowledge of a program or a map.
fn information<T>(of: &OwnedFd, info: *mut T) -> io::Result<()> {
    let mut ask = Information {
        of: of.as_raw_fd(),
        bytes: u32::try_from(size_of::<T>()).map_err(|_| io::ErrorKind::InvalidInput)?,
        info: info.expose_provenance() as u64,
    };
    // SAFETY: `ask` has the layout of the kernel's attributes for this command and its size goes
    // with it. The kernel writes as many bytes of `info` as it has, and to the addresses in it as
    // many entries as it says there is room for: both callers give room for one, or none.
    unsafe { command(BPF_OBJ_GET_INFO_BY_FD, &raw mut ask) }.map(|_| ())
}

/// One command of bpf(2).
///
/// # Safety
/// `attributes` is what the kernel expects for this command, or the head of it, and what it points
/// to lives until this returns.
unsafe fn command<T>(what: libc::c_long, attributes: *mut T) -> io::Result<libc::c_long> {
    // SAFETY: as the caller guarantees.
    let done = unsafe { libc::syscall(libc::SYS_bpf, what, attributes, size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// The descriptor that a command has made.
fn descriptor(made: libc::c_long) -> io::Result<OwnedFd> {
    let made = i32::try_from(made).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

const VALUE_BYTES: u32 = 4;

/// Describes the types that a map of sockets has (BPF Type Format): one, an integer of 32 bits.
fn load_types() -> io::Result<OwnedFd> {
    // struct btf_header with lengths of both parts, struct btf_type of an integer, its encoding;
    // names.
    let words: [u32; 10] = [0x0001_eb9f, 24, 0, 16, 16, 5, 1, 1 << 24, 4, 1 << 24 | 32];
    let mut types: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    types.extend_from_slice(b"\0int\0");
    let mut load = LoadTypes {
        types: types.as_ptr().expose_provenance() as u64,
        bytes: u32::try_from(types.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        ..LoadTypes::default()
    };
    // SAFETY: `load` has the layout of the kernel's attributes for this command and its size goes
    // with it; `types` lives until the call returns, and the kernel only reads it.
    descriptor(unsafe { command(BPF_BTF_LOAD, &raw mut load) }?)
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

/// The head of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C)]
#[derive(Default)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: [u8; 16],
    interface: u32,
    types: i32,
    key_type: u32,
    value_type: u32,
}

/// The same for `BPF_BTF_LOAD`.
#[repr(C)]
#[derive(Default)]
struct LoadTypes {
    types: u64,
    log: u64,
    bytes: u32,
    log_bytes: u32,
    log_level: u32,
    padding: u32,
}

/// The same for `BPF_PROG_ATTACH`.
#[repr(C)]
struct Attach {
    target: i32,
    program: i32,
    kind: u32,
    flags: u32,
}

/// The same for commands about an entry of a map.
#[repr(C)]
struct Element {
    map: i32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The same for `BPF_*_GET_FD_BY_ID`.
#[repr(C)]
#[derive(Default)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

/// The same for `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct Information {
    of: i32,
    bytes: u32,
    info: u64,
}

/// The head of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_bytes: u32,
    translated_bytes: u32,
    jited: u64,
    translated: u64,
    load_time: u64,
    user: u32,
    map_count: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// The head of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

const _: () = assert!(
    size_of::<Load>() == 72
        && size_of::<CreateMap>() == 60
        && size_of::<LoadTypes>() == 32
        && size_of::<Attach>() == 16
        && size_of::<Element>() == 32
        && size_of::<Information>() == 16
        && size_of::<ProgramInfo>() == 80
);

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
