//! The guest that shows whether KVM works: it goes the way of every kernel, from real mode to a
//! program in user mode, and says at a port how far it is.

/// Where it begins.
pub(super) const START: u16 = 0x1000;
/// The port at which it says how far it is: the one for that on every PC, which does nothing else.
pub(super) const PORT: u16 = 0x80;

/// How far a guest came: each step needs something of the processor that the one before does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Step {
    /// Not as far as its first instruction.
    Nothing = 0,
    /// Instructions of 16 bits.
    RealMode,
    /// Instructions of 32 bits.
    ProtectedMode,
    /// Instructions of 64 bits, with pages that it had translated: the byte that says so lies in
    /// one.
    LongMode,
    /// The registers of SSE.
    Vectors,
    /// An exception, and the way back from it.
    Exception,
    /// A program in user mode that counts, and its call of the kernel.
    UserMode,
}

impl Step {
    /// All that a guest can say, in the order in which it does.
    pub const ALL: [Self; 6] =
        [Self::RealMode, Self::ProtectedMode, Self::LongMode, Self::Vectors, Self::Exception, Self::UserMode];

    /// The step that is said by this byte.
    pub fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|step| *step as u8 == byte)
    }

    /// In words: "it came as far as ...".
    pub fn words(self) -> &'static str {
        match self {
            Self::Nothing => "nowhere",
            Self::RealMode => "real mode",
            Self::ProtectedMode => "protected mode",
            Self::LongMode => "long mode",
            Self::Vectors => "computing with vectors",
            Self::Exception => "its first exception",
            Self::UserMode => "user mode",
        }
    }
}

/// How far the program in user mode counts: some ms of a processor's time, and ten seconds where
/// each instruction is interpreted. A kernel that is to boot on the latter has no end of it.
const COUNT: u32 = 1 << 24;
/// Bytes of memory: all that the tables and the code below take.
const MEMORY_BYTES: usize = 0x1_6000;
/// Bytes of a page.
const PAGE_BYTES: usize = 0x1000;

// Where what is. Each part of the code has a page of its own, so that no distance has to be known.
const PROTECTED: usize = 0x2000;
const LONG: usize = 0x3000;
const ON_BREAKPOINT: usize = 0x4000;
const ON_CALL: usize = 0x4800;
const USER: usize = 0x5000;
const SEGMENTS: usize = 0x6000;
const SEGMENTS_POINTER: usize = 0x6080;
const GATES_POINTER: usize = 0x6090;
const TASK: usize = 0x6100;
const GATES: usize = 0x7000;
const TABLES: usize = 0x1_0000;
/// A page that is also at [`ALIAS`], which is known from the tables alone.
const ALIASED: usize = 0x1_4000;
const ALIAS: usize = 0x20_0000;
/// The table in which the alias is.
const ALIAS_TABLE: usize = 0x1_5000;
/// Where the kernel's stack begins after the program's call; its own and the program's are `0x9000`
/// and `0xa000`.
const STACK_OF_CALL: u32 = 0xb000;

// Descriptors (Intel SDM 3A, 3.4.5 and 7.2.3): code and data that span all memory, and the task.
const CODE_32: u64 = 0x00cf_9b00_0000_ffff;
const DATA: u64 = 0x00cf_9300_0000_ffff;
const CODE_64: u64 = 0x00af_9b00_0000_ffff;
const USER_CODE: u64 = 0x00af_fb00_0000_ffff;
const USER_DATA: u64 = 0x00cf_f300_0000_ffff;
const TASK_64: u64 = 0x0000_8900_0000_0067 | (TASK as u64) << 16;
/// The selector of [`CODE_64`].
const CODE_64_AT: u16 = 0x18;
/// The gate that a breakpoint takes, and the one that a program may take.
const BREAKPOINT: usize = 3;
const CALL: usize = 0x20;
/// A gate that is there, for an interrupt; and one that user mode may use.
const GATE: u16 = 0x8e00;
const USER_GATE: u16 = 0xee00;
/// A page that is there, may be written, and is user mode's, too.
const PAGE: u64 = 7;

const IN_REAL_MODE: &[&[u8]] = &[
    &[0xb0, 1, 0xe6, 0x80],          // mov al, RealMode; out PORT, al
    &[0x0f, 0x01, 0x16, 0x80, 0x60], // lgdt [SEGMENTS_POINTER]
    &[0x0f, 0x20, 0xc0],             // mov eax, cr0
    &[0x0c, 0x01],                   // or al, PE
    &[0x0f, 0x22, 0xc0],             // mov cr0, eax
    &[0xea, 0x00, 0x20, 0x08, 0x00], // jmp CODE_32:PROTECTED
];

const IN_PROTECTED_MODE: &[&[u8]] = &[
    &[0x66, 0xb8, 0x10, 0x00],                   // mov ax, DATA
    &[0x8e, 0xd8],                               // mov ds, ax
    &[0x8e, 0xc0],                               // mov es, ax
    &[0x8e, 0xd0],                               // mov ss, ax
    &[0xb0, 2, 0xe6, 0x80],                      // mov al, ProtectedMode; out PORT, al
    &[0x0f, 0x20, 0xe0],                         // mov eax, cr4
    &[0x0d, 0x20, 0x06, 0x00, 0x00],             // or eax, PAE | OSFXSR | OSXMMEXCPT
    &[0x0f, 0x22, 0xe0],                         // mov cr4, eax
    &[0xb8, 0x00, 0x00, 0x01, 0x00],             // mov eax, TABLES
    &[0x0f, 0x22, 0xd8],                         // mov cr3, eax
    &[0xb9, 0x80, 0x00, 0x00, 0xc0],             // mov ecx, EFER
    &[0x0f, 0x32],                               // rdmsr
    &[0x80, 0xcc, 0x01],                         // or ah, LME
    &[0x0f, 0x30],                               // wrmsr
    &[0x0f, 0x20, 0xc0],                         // mov eax, cr0
    &[0x0d, 0x00, 0x00, 0x00, 0x80],             // or eax, PG
    &[0x0f, 0x22, 0xc0],                         // mov cr0, eax
    &[0xea, 0x00, 0x30, 0x00, 0x00, 0x18, 0x00], // jmp CODE_64:LONG
];

const IN_LONG_MODE: &[&[u8]] = &[
    &[0xbc, 0x00, 0x90, 0x00, 0x00],                   // mov esp, 0x9000
    &[0x8a, 0x04, 0x25, 0x00, 0x00, 0x20, 0x00],       // mov al, [ALIAS]
    &[0xe6, 0x80],                                     // out PORT, al: LongMode
    &[0xb8, 2, 0x00, 0x00, 0x00],                      // mov eax, Vectors / 2
    &[0x66, 0x48, 0x0f, 0x6e, 0xc0],                   // movq xmm0, rax
    &[0x66, 0x0f, 0xd4, 0xc0],                         // paddq xmm0, xmm0
    &[0x66, 0x48, 0x0f, 0x7e, 0xc0],                   // movq rax, xmm0
    &[0xe6, 0x80],                                     // out PORT, al: Vectors
    &[0x66, 0xb8, 0x30, 0x00],                         // mov ax, TASK_64
    &[0x0f, 0x00, 0xd8],                               // ltr ax
    &[0x0f, 0x01, 0x1c, 0x25, 0x90, 0x60, 0x00, 0x00], // lidt [GATES_POINTER]
    &[0xcc],                                           // int3
    &[0xe6, 0x80],                                     // out PORT, al: Exception, if it came back
    &[0x6a, 0x2b],                                     // push USER_DATA
    &[0x68, 0x00, 0xa0, 0x00, 0x00],                   // push 0xa000
    &[0x6a, 0x02],                                     // push no flags
    &[0x6a, 0x23],                                     // push USER_CODE
    &[0x68, 0x00, 0x50, 0x00, 0x00],                   // push USER
    &[0x48, 0xcf],                                     // iretq
];

const AT_THE_BREAKPOINT: &[&[u8]] = &[
    &[0xb0, 5],    // mov al, Exception
    &[0x48, 0xcf], // iretq
];

const IN_USER_MODE: &[&[u8]] = &[
    &[0xb9, COUNT.to_le_bytes()[0], COUNT.to_le_bytes()[1], COUNT.to_le_bytes()[2], COUNT.to_le_bytes()[3]], // mov ecx, COUNT
    &[0xff, 0xc9],       // dec ecx
    &[0x75, 0xfc],       // jnz to there
    &[0xcd, CALL as u8], // int CALL
];

const AT_THE_CALL: &[&[u8]] = &[
    &[0xb0, 6, 0xe6, 0x80], // mov al, UserMode; out PORT, al
    &[0xf4],                // hlt
];

/// The memory with all that the guest needs.
pub(super) fn image() -> Vec<u8> {
    let mut memory = vec![0; MEMORY_BYTES];
    let mut put = |at: usize, bytes: &[u8]| {
        memory.iter_mut().skip(at).zip(bytes).for_each(|(place, byte)| *place = *byte);
    };
    let parts = [
        (usize::from(START), IN_REAL_MODE),
        (PROTECTED, IN_PROTECTED_MODE),
        (LONG, IN_LONG_MODE),
        (ON_BREAKPOINT, AT_THE_BREAKPOINT),
        (ON_CALL, AT_THE_CALL),
        (USER, IN_USER_MODE),
    ];
    for (at, code) in parts {
        put(at, &code.concat());
    }
    let segments = [0, CODE_32, DATA, CODE_64, USER_CODE, USER_DATA, TASK_64, 0];
    put(SEGMENTS, &segments.map(u64::to_le_bytes).concat());
    put(SEGMENTS_POINTER, &pointer(segments.len() * 8, SEGMENTS));
    put(TASK + 4, &STACK_OF_CALL.to_le_bytes());
    put(GATES + BREAKPOINT * 16, &gate(ON_BREAKPOINT, GATE));
    put(GATES + CALL * 16, &gate(ON_CALL, USER_GATE));
    put(GATES_POINTER, &pointer((CALL + 1) * 16, GATES));
    // Four levels, of which three have one entry; the fourth has every page where it is, and the
    // next table of it the alias.
    let table = |number: usize| TABLES + number * PAGE_BYTES;
    let entry = |at: usize| (at as u64 | PAGE).to_le_bytes();
    put(table(0), &entry(table(1)));
    put(table(1), &entry(table(2)));
    put(table(2), &entry(table(3)));
    put(table(2) + (ALIAS >> 21) * 8, &entry(ALIAS_TABLE));
    for page in 0..ALIASED / PAGE_BYTES {
        put(table(3) + page * 8, &entry(page * PAGE_BYTES));
    }
    put(ALIAS_TABLE, &entry(ALIASED));
    put(ALIASED, &[Step::LongMode as u8]);
    memory
}

/// The operand that a register of tables is loaded from: the last byte of the table, and where it
/// is.
fn pointer(bytes: usize, at: usize) -> Vec<u8> {
    let last = u16::try_from(bytes - 1).unwrap_or(u16::MAX);
    [&last.to_le_bytes()[..], &(at as u64).to_le_bytes()].concat()
}

/// A gate to code below 64 KiB (Intel SDM 3A, 6.14.1).
fn gate(to: usize, kind: u16) -> [u8; 16] {
    let words = (to as u64 & 0xffff) | u64::from(CODE_64_AT) << 16 | u64::from(kind) << 32;
    u128::from(words).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_code_has_room_and_every_step_is_said_once() {
        for (code, room) in [
            (IN_REAL_MODE, PROTECTED - usize::from(START)),
            (IN_PROTECTED_MODE, LONG - PROTECTED),
            (IN_LONG_MODE, ON_BREAKPOINT - LONG),
            (AT_THE_BREAKPOINT, ON_CALL - ON_BREAKPOINT),
            (AT_THE_CALL, USER - ON_CALL),
            (IN_USER_MODE, SEGMENTS - USER),
        ] {
            assert!(code.concat().len() <= room);
        }
        let said = [IN_REAL_MODE, IN_PROTECTED_MODE, IN_LONG_MODE, AT_THE_CALL].concat().concat();
        let port = u8::try_from(PORT).unwrap();
        assert_eq!(said.windows(2).filter(|two| **two == [0xe6, port]).count(), Step::ALL.len());
        assert_eq!(Step::of(0), None);
        assert_eq!(Step::of(6), Some(Step::UserMode));
        assert!(Step::ALL.is_sorted());
    }

    #[test]
    fn the_image_has_every_part_where_the_others_look_for_it() {
        let image = image();
        assert_eq!(image.len(), MEMORY_BYTES);
        let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
        // Four levels down, as the processor goes.
        let walk = |address: usize| {
            (0..4).fold(TABLES, |table, level| {
                let index = address >> (39 - 9 * level) & 511;
                usize::try_from(word(table + index * 8) & !0xfff).unwrap()
            })
        };
        assert_eq!(walk(ALIAS), ALIASED);
        assert_eq!(walk(USER), USER);
        assert_eq!(image[walk(ALIAS)], 3);
        assert_eq!(word(SEGMENTS + usize::from(CODE_64_AT)), CODE_64);
        assert_eq!(word(GATES + CALL * 16), 0x0000_ee00_0018_4800);
    }
}
