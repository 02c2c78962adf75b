//! Modules of people, and modules that mean harm, in the real engine.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

use modules::{Failure, Module, ModuleError, Verdict};
use wire::events::EVENT_BYTES_MAX;
use wire::events::module::{BYTES_MAX, FUEL_PER_BYTE, FUEL_PER_EVENT, FUEL_START, MEMORY_BYTES_MAX};

/// Room for an event, as a module gives it.
const ROOM: &str =
    "(memory (export \"memory\") 2) (func (export \"buffer\") (param i32) (result i32) i32.const 1024)";

fn bytes_of(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

fn install(text: &str) -> Result<Module, ModuleError> {
    Module::install(&bytes_of(text))
}

/// A filter with this body, which has the address and the length.
fn filter(body: &str) -> String {
    format!("(module {ROOM} (func (export \"filter\") (param i32 i32) (result i32) {body}))")
}

fn transform(body: &str) -> String {
    format!("(module {ROOM} (func (export \"transform\") (param i32 i32) (result i64) {body}))")
}

fn judge(module: &mut Module, event: &[u8]) -> Result<Verdict, Failure> {
    module.judge(event, &mut Vec::new())
}

fn refused(text: &str) -> String {
    install(text).unwrap_err().to_string()
}

#[test]
fn a_filter_sees_each_event_and_says_yes_or_no() {
    // Events that begin with `!`.
    let mut module = install(&filter("(i32.eq (i32.load8_u (local.get 0)) (i32.const 33))")).unwrap();
    assert!(!module.transforms());
    assert_eq!(judge(&mut module, b"!fire"), Ok(Verdict::Pass));
    assert_eq!(judge(&mut module, b"calm"), Ok(Verdict::Drop));
    let usage = module.usage();
    assert_eq!((usage.judged, usage.memory_bytes), (2, 128 * 1024));
    assert!(usage.fuel_most > 0 && usage.fuel_most < 100 && usage.fuel >= usage.fuel_most, "{usage:?}");
}

#[test]
fn a_transform_gives_other_bytes_or_the_same_or_none() {
    // Writes `>` before the event; drops empty ones.
    let mut module = install(&transform(
        "(if (result i64) (local.get 1) (then
           (i32.store8 (i32.const 1023) (i32.const 62))
           (i64.or (i64.const 0x3ff00000000) (i64.extend_i32_u (i32.add (local.get 1) (i32.const 1)))))
         (else (i64.const 0)))",
    ))
    .unwrap();
    assert!(module.transforms());
    let mut output = b"kept".to_vec();
    assert_eq!(module.judge(b"", &mut output), Ok(Verdict::Drop));
    assert_eq!(output, b"kept");
    assert_eq!(module.judge(b"abc", &mut output), Ok(Verdict::Replaced));
    assert_eq!(output, b">abc");
    let longest = vec![7; EVENT_BYTES_MAX];
    assert_eq!(
        module.judge(&longest, &mut output),
        Err(Failure::Output { address: 1023, length: EVENT_BYTES_MAX as u32 + 1 })
    );
}

#[test]
fn what_is_no_module_is_refused_with_the_reason() {
    let invalid = |bytes: &[u8]| Module::install(bytes).unwrap_err().to_string();
    assert!(invalid(b"").contains("no valid WebAssembly"), "{}", invalid(b""));
    assert!(invalid(b"\0asm\x01\0\0\0\x01").contains("no valid WebAssembly"));
    assert!(invalid(b"\x7fELF").contains("no valid WebAssembly"));
    assert_eq!(Module::install(&vec![0; BYTES_MAX + 1]).unwrap_err(), ModuleError::Long(BYTES_MAX + 1));
    assert!(refused("(module)").contains("exports `memory` as a memory"));
    assert!(refused("(module (memory (export \"memory\") 1))").contains("exports `buffer`"));
    assert!(refused(&format!("(module {ROOM})")).contains("exports neither"));
    assert!(
        refused("(module (import \"env\" \"read\" (func)))")
            .contains("imports nothing; this one imports `env.read`")
    );
    assert!(
        refused("(module (import \"wasi_snapshot_preview1\" \"memory\" (memory 1)))")
            .contains("imports nothing")
    );
    let shape = format!("(module {ROOM} (func (export \"filter\") (result i32) i32.const 1))");
    assert!(refused(&shape).contains("`filter` as a function (i32, i32) -> i32"), "{}", refused(&shape));
    let both = format!(
        "(module {ROOM} (func (export \"filter\") (param i32 i32) (result i32) i32.const 1)
         (func (export \"transform\") (param i32 i32) (result i64) i64.const 1))"
    );
    assert!(refused(&both).contains("exports both"));
    // A body of another type than it says: the validator's own words.
    assert!(Module::install(&broken_body()).unwrap_err().to_string().contains("type mismatch"));
}

/// A valid filter whose constant was made one of another type.
fn broken_body() -> Vec<u8> {
    let mut bytes = bytes_of(&filter("i32.const 1"));
    let at = bytes.len() - 3;
    assert_eq!(bytes[at], 0x41, "i32.const");
    bytes[at] = 0x42;
    bytes
}

#[test]
fn room_that_is_none_is_refused() {
    let with = |pages: u32, address: &str| {
        format!(
            "(module (memory (export \"memory\") {pages}) (func (export \"buffer\") (param i32) (result i32) {address})
             (func (export \"filter\") (param i32 i32) (result i32) i32.const 1))"
        )
    };
    assert!(install(&with(1, "i32.const 1024")).is_ok());
    assert!(refused(&with(1, "i32.const 1025")).contains("lie outside of its memory"));
    assert!(refused(&with(1, "i32.const -1")).contains("lie outside of its memory"));
    assert!(refused(&with(1, "unreachable")).contains("`buffer` has failed: it has trapped"));
    assert!(refused(&with(1, "(loop br 0) i32.const 0")).contains("has used the fuel"));
}

#[test]
fn a_loop_ends_with_its_fuel_and_more_bytes_give_more() {
    let mut module = install(&filter("(loop br 0) i32.const 1")).unwrap();
    let failure = judge(&mut module, b"event").unwrap_err();
    assert_eq!(failure, Failure::Fuel(FUEL_PER_EVENT + 5 * FUEL_PER_BYTE));
    assert!(failure.to_string().contains("the fuel of one event"));
    // Eight instructions a byte are within it, for the longest event, too.
    let mut sum = install(&filter(
        "(local i32) (loop (local.set 2 (i32.add (local.get 2) (i32.load8_u (local.get 0))))
           (local.set 0 (i32.add (local.get 0) (i32.const 1)))
           (br_if 0 (local.tee 1 (i32.sub (local.get 1) (i32.const 1))))) (local.get 2)",
    ))
    .unwrap();
    assert_eq!(judge(&mut sum, &vec![1; EVENT_BYTES_MAX]), Ok(Verdict::Pass));
    assert!(sum.usage().fuel_most > EVENT_BYTES_MAX as u64);
    // What is done in bulk costs by its bytes.
    let mut bulk = install(&filter(
        "(loop (memory.fill (i32.const 0) (i32.const 0) (i32.const 131072)) br 0) i32.const 1",
    ))
    .unwrap();
    assert!(matches!(judge(&mut bulk, b"x"), Err(Failure::Fuel(_))));
}

#[test]
fn memory_and_tables_end_at_their_bounds() {
    let mut grows = install(&filter("(drop (memory.grow (i32.const 1000))) i32.const 1")).unwrap();
    let failure = judge(&mut grows, b"x").unwrap_err();
    assert_eq!(failure, Failure::Memory);
    assert!(failure.to_string().contains("more than 2097152 bytes"));
    assert!(grows.usage().memory_bytes <= MEMORY_BYTES_MAX);
    let mut creeps = install(&filter("(loop (drop (memory.grow (i32.const 1))) br 0) i32.const 1")).unwrap();
    assert_eq!(judge(&mut creeps, &[0; 4096]), Err(Failure::Memory));
    assert_eq!(creeps.usage().memory_bytes, MEMORY_BYTES_MAX);
    let begins = |memory: &str| {
        refused(&format!(
            "(module {memory} (func (export \"buffer\") (param i32) (result i32) i32.const 0)
             (func (export \"filter\") (param i32 i32) (result i32) i32.const 1))"
        ))
    };
    assert!(begins("(memory (export \"memory\") 65536)").contains("can't begin"));
    assert!(begins("(memory (export \"memory\") 1) (table 4000000000 funcref)").contains("can't begin"));
    assert!(
        begins("(memory (export \"memory\") 1) (table 1 funcref) (table 1 funcref)").contains("can't begin")
    );
    assert!(
        begins("(memory (export \"memory\") 1) (data (i32.const 65536) \"x\")").contains("has failed"),
        "data outside of the memory"
    );
    let wide = format!(
        "(module {ROOM} (table 1 funcref) (func (export \"filter\") (param i32 i32) (result i32)
         (table.grow (ref.null func) (i32.const 100000))))"
    );
    assert_eq!(judge(&mut install(&wide).unwrap(), b"x"), Err(Failure::Memory));
}

#[test]
fn recursion_ends_before_any_stack() {
    let deep = format!(
        "(module {ROOM} (func $f (param i32 i32) (result i32) (call $f (local.get 0) (local.get 1)))
         (export \"filter\" (func $f)))"
    );
    assert_eq!(judge(&mut install(&deep).unwrap(), &[0; 60_000]), Err(Failure::Deep));
    let locals = "i64 ".repeat(20_000);
    let fat = format!(
        "(module {ROOM} (func $f (param i32 i32) (result i32) (local {locals}) (call $f (local.get 0) (local.get 1)))
         (export \"filter\" (func $f)))"
    );
    match install(&fat) {
        Ok(mut module) => assert_eq!(judge(&mut module, &[0; 60_000]), Err(Failure::Deep)),
        Err(error) => assert!(matches!(error, ModuleError::Invalid(_)), "{error}"),
    }
}

#[test]
fn a_start_function_runs_within_its_own_fuel() {
    let with = |start: &str| {
        format!(
            "(module {ROOM} (global $g (mut i32) (i32.const 0)) (func $s {start}) (start $s)
             (func (export \"filter\") (param i32 i32) (result i32) global.get $g))"
        )
    };
    let mut good = install(&with("(global.set $g (i32.const 1))")).unwrap();
    assert_eq!(judge(&mut good, b"x"), Ok(Verdict::Pass));
    assert_eq!(
        install(&with("(loop br 0)")).unwrap_err(),
        ModuleError::Start { function: "start function", failure: Failure::Fuel(FUEL_START) }
    );
    assert!(refused(&with("unreachable")).contains("start function has failed: it has trapped"));
}

#[test]
fn traps_are_told_in_words() {
    for (body, words) in [
        ("unreachable", "unreachable"),
        ("(i32.div_s (i32.const 1) (i32.const 0))", "divide by zero"),
        ("(i32.load (i32.const -1))", "out of bounds"),
    ] {
        let failure = judge(&mut install(&filter(body)).unwrap(), b"x").unwrap_err().to_string();
        assert!(failure.starts_with("it has trapped") && failure.contains(words), "{failure}");
    }
    for (body, address, length) in [
        ("(i64.const 0x0000040000020001)", 1024, 0x2_0001),
        ("(i64.const -1)", u32::MAX, u32::MAX),
        ("(i64.const 0x0001ffff00000002)", 0x1_ffff, 2),
    ] {
        let failure = judge(&mut install(&transform(body)).unwrap(), b"x");
        assert_eq!(failure, Err(Failure::Output { address, length }), "{body}");
    }
}

/// Bytes as LEB128.
fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        bytes.push(if number == 0 { low } else { low | 0x80 });
        if number == 0 {
            return bytes;
        }
    }
}

fn section(id: u8, body: &[u8]) -> Vec<u8> {
    [&[id][..], &leb(body.len()), body].concat()
}

/// A module of one type `() -> ()` and these bodies, each without its locals' head.
fn module_of(bodies: &[Vec<u8>]) -> Vec<u8> {
    let count = bodies.len();
    let functions = [leb(count), vec![0; count]].concat();
    let mut code = leb(count);
    for body in bodies {
        code.extend(leb(body.len()));
        code.extend(body);
    }
    [&b"\0asm\x01\0\0\0"[..], &section(1, &[1, 0x60, 0, 0]), &section(3, &functions), &section(10, &code)]
        .concat()
}

#[test]
fn modules_that_are_bombs_for_the_translator_are_refused_or_translated() {
    // As many functions as there is room for; each with as many locals as can be; one with all of
    // its room for a table of branches; one of blocks within each other; counts that lie.
    let empty = vec![0, 0x0b];
    let many = module_of(&vec![empty.clone(); BYTES_MAX / 4 - 20]);
    let locals = [vec![1], leb(50_000), vec![0x7e, 0x0b]].concat();
    let fat = module_of(&vec![locals; BYTES_MAX / 8 - 20]);
    let padded = [vec![1], leb(30_000), vec![0x7e], vec![0x01; 50], vec![0x0b]].concat();
    let padded = module_of(&vec![padded; BYTES_MAX / 60]);
    let targets = BYTES_MAX - 200;
    let table = [vec![0, 0x41, 0, 0x0e], leb(targets), vec![0; targets + 1], vec![0x0b]].concat();
    let nested = 20_000;
    let blocks = [vec![0], [0x02, 0x40].repeat(nested), vec![0x0b; nested + 1]].concat();
    let lies = [&b"\0asm\x01\0\0\0"[..], &section(1, &leb(0xffff_ffff))].concat();
    for (name, bytes) in [
        ("functions", many),
        ("locals", fat),
        ("locals of long functions", padded),
        ("branches", module_of(&[table])),
        ("blocks", module_of(&[blocks])),
        ("count", lies),
    ] {
        assert!(bytes.len() <= BYTES_MAX, "{name}: {}", bytes.len());
        let begun = std::time::Instant::now();
        let error = Module::install(&bytes).unwrap_err();
        println!("{name}: {:?}: {error}", begun.elapsed());
        assert!(error.to_string().len() < 300, "{name}: {error}");
    }
}

#[test]
fn the_module_of_the_page_for_users_does_what_it_says() {
    let page = include_str!("../../../docs/events.md");
    let (_, rest) = page.split_once("```wat hot.wat\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let mut module = install(text).unwrap();
    assert_eq!(judge(&mut module, b"!hot"), Ok(Verdict::Pass));
    assert_eq!(judge(&mut module, b"cold"), Ok(Verdict::Drop));
    assert_eq!(judge(&mut module, b""), Ok(Verdict::Drop), "nothing of the event before is read");
}
