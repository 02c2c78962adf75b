//! A module in its engine.

use crate::error::{Failure, ModuleError, detail};
use wasmi::{
    CompilationMode, Config, EnforcedLimits, Engine, Error, Instance, Linker, Memory, Store, StoreLimits,
    StoreLimitsBuilder, TrapCode, TypedFunc, ValType,
};
use wire::events::EVENT_BYTES_MAX;
use wire::events::module::{
    BYTES_MAX, CALLS_MAX, FUEL_PER_BYTE, FUEL_PER_EVENT, FUEL_START, MEMORY_BYTES_MAX, STACK_BYTES_MAX,
    TABLE_ENTRIES_MAX, export,
};

/// The fate of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody gets it.
    Drop,
    /// It goes on as it is.
    Pass,
    /// Other bytes go on in its place.
    Replaced,
}

/// The resources that a module has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Events that it has judged.
    pub judged: u64,
    /// The most fuel that one of them took.
    pub fuel_most: u64,
    /// Fuel that all of them took.
    pub fuel: u64,
    /// Bytes of its memory.
    pub memory_bytes: usize,
}

/// The function that judges.
#[derive(Debug)]
enum Judge {
    Filter(TypedFunc<(u32, u32), u32>),
    Transform(TypedFunc<(u32, u32), u64>),
}

/// An installed module.
pub struct Module {
    store: Store<StoreLimits>,
    memory: Memory,
    judge: Judge,
    /// The place of an event's bytes in its memory.
    buffer: u32,
    usage: Usage,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Module")
            .field("judge", &self.judge)
            .field("usage", &self.usage)
            .finish_non_exhaustive()
    }
}

fn engine() -> Engine {
    let mut config = Config::default();
    config
        .consume_fuel(true)
        .ignore_custom_sections(true)
        // What is translated at the first call would be done on the thread that delivers events.
        .compilation_mode(CompilationMode::Eager)
        .enforced_limits(EnforcedLimits::strict())
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_custom_page_sizes(false)
        .wasm_tail_call(false)
        .wasm_wide_arithmetic(false)
        .set_max_recursion_depth(CALLS_MAX)
        .set_max_stack_height(STACK_BYTES_MAX)
        .set_max_cached_stacks(1);
    Engine::new(&config)
}

fn limits() -> StoreLimits {
    StoreLimitsBuilder::new()
        .instances(1)
        .memories(1)
        .tables(1)
        .memory_size(MEMORY_BYTES_MAX)
        .table_elements(TABLE_ENTRIES_MAX)
        .trap_on_grow_failure(true)
        .build()
}

impl Module {
    /// Checks the bytes of a module, and has it begin. May take long: some ms for a plain module,
    /// and up to a second for a hostile one.
    ///
    /// # Errors
    /// [`ModuleError`] says what is wrong with it.
    pub fn install(bytes: &[u8]) -> Result<Self, ModuleError> {
        guarded(|| Self::check(bytes)).unwrap_or_else(|| Err(ModuleError::Invalid(ENGINE.into())))
    }

    fn check(bytes: &[u8]) -> Result<Self, ModuleError> {
        if bytes.len() > BYTES_MAX {
            return Err(ModuleError::Long(bytes.len()));
        }
        let engine = engine();
        let module =
            wasmi::Module::new(&engine, bytes).map_err(|error| ModuleError::Invalid(detail(&error)))?;
        if let Some(import) = module.imports().next() {
            let name = format!("{}.{}", import.module(), import.name());
            return Err(ModuleError::Imports(detail(&name)));
        }
        check_exports(&module)?;
        let mut store = Store::new(&engine, limits());
        store.limiter(|limits| limits);
        fill(&mut store, FUEL_START);
        let begun = Linker::new(&engine).instantiate_and_start(&mut store, &module);
        let instance = begun.map_err(|error| not_begun(&error))?;
        Self::of(store, &instance)
    }

    fn of(mut store: Store<StoreLimits>, instance: &Instance) -> Result<Self, ModuleError> {
        let memory = instance.get_memory(&store, export::MEMORY).ok_or(MEMORY_MISSING)?;
        let buffer =
            instance.get_typed_func::<u32, u32>(&store, export::BUFFER).map_err(|_| BUFFER_MISSING)?;
        let judge = match instance.get_typed_func(&store, export::FILTER) {
            Ok(filter) => Judge::Filter(filter),
            Err(_) => Judge::Transform(
                instance
                    .get_typed_func(&store, export::TRANSFORM)
                    .map_err(|_| ModuleError::Verdicts("neither"))?,
            ),
        };
        fill(&mut store, FUEL_START);
        let buffer = buffer.call(&mut store, LONGEST).map_err(|error| ModuleError::Start {
            function: "`buffer`",
            failure: failure(&error, FUEL_START),
        })?;
        let usage = Usage { memory_bytes: memory.data_size(&store), ..Usage::default() };
        let module = Self { store, memory, judge, buffer, usage };
        module.place(buffer, LONGEST).ok_or(ModuleError::Buffer(buffer))?;
        Ok(module)
    }

    /// Whether it may put other bytes in an event's place.
    #[must_use]
    pub fn transforms(&self) -> bool {
        matches!(self.judge, Judge::Transform(_))
    }

    /// Returns what it has used.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Asks it what becomes of an event. Bytes that go on in the event's place are put into
    /// `output`, which is left as it is otherwise.
    ///
    /// # Errors
    /// [`Failure`]: it must not be asked again.
    pub fn judge(&mut self, event: &[u8], output: &mut Vec<u8>) -> Result<Verdict, Failure> {
        let length = u32::try_from(event.len()).unwrap_or(u32::MAX).min(LONGEST);
        let event = event.get(..length as usize).unwrap_or(event);
        let buffer = self.buffer as usize;
        // Memory never shrinks, and the buffer was within it.
        if self.memory.write(&mut self.store, buffer, event).is_err() {
            return Err(Failure::Output { address: self.buffer, length });
        }
        let fuel = fuel_of(event.len());
        fill(&mut self.store, fuel);
        let arguments = (self.buffer, length);
        let store = &mut self.store;
        let said = guarded(|| match &self.judge {
            Judge::Filter(filter) => filter.call(store, arguments).map(Said::Filter),
            Judge::Transform(transform) => transform.call(store, arguments).map(Said::Transform),
        });
        let Some(said) = said else { return Err(Failure::Trap(ENGINE.into())) };
        self.count(fuel);
        match said.map_err(|error| failure(&error, fuel))? {
            Said::Filter(0) => Ok(Verdict::Drop),
            Said::Filter(_) => Ok(Verdict::Pass),
            Said::Transform(said) => self.take(said, output),
        }
    }

    fn count(&mut self, fuel: u64) {
        let used = fuel.saturating_sub(self.store.get_fuel().unwrap_or(0));
        self.usage.judged += 1;
        self.usage.fuel = self.usage.fuel.saturating_add(used);
        self.usage.fuel_most = self.usage.fuel_most.max(used);
        self.usage.memory_bytes = self.memory.data_size(&self.store);
    }

    /// The address in the upper half, the length in the lower one; no length: it is dropped.
    fn take(&self, said: u64, output: &mut Vec<u8>) -> Result<Verdict, Failure> {
        let (address, length) = ((said >> 32) as u32, said as u32);
        if length == 0 {
            return Ok(Verdict::Drop);
        }
        let bytes = self.place(address, length).filter(|_| length <= LONGEST);
        let bytes = bytes.ok_or(Failure::Output { address, length })?;
        output.clear();
        output.extend_from_slice(bytes);
        Ok(Verdict::Replaced)
    }

    fn place(&self, address: u32, length: u32) -> Option<&[u8]> {
        let begin = address as usize;
        self.memory.data(&self.store).get(begin..begin.checked_add(length as usize)?)
    }
}

/// The longest event.
const LONGEST: u32 = EVENT_BYTES_MAX as u32;

const MEMORY_MISSING: ModuleError =
    ModuleError::Export { name: export::MEMORY, shape: "a memory", found: "does not, or as something else" };
const BUFFER_MISSING: ModuleError = ModuleError::Export {
    name: export::BUFFER,
    shape: "a function (i32) -> i32",
    found: "does not, or as something else",
};

/// A panic of the engine costs its module, and not the service: a successor would meet it again.
fn guarded<T>(act: impl FnOnce() -> T) -> Option<T> {
    // What was half done is in the module's own store, which is not used again.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).ok()
}

/// The words for a panic of the engine.
const ENGINE: &str = "the engine itself has failed";

enum Said {
    Filter(u32),
    Transform(u64),
}

/// The fuel for an event of so many bytes.
fn fuel_of(bytes: usize) -> u64 {
    FUEL_PER_EVENT + FUEL_PER_BYTE * bytes as u64
}

fn fill(store: &mut Store<StoreLimits>, fuel: u64) {
    let filled = store.set_fuel(fuel);
    debug_assert!(filled.is_ok(), "the engine counts fuel");
}

/// Looks at the exports before anything of the module runs.
fn check_exports(module: &wasmi::Module) -> Result<(), ModuleError> {
    use wasmi::ExternType;
    let has = |name: &str, parameters: &[ValType], results: &[ValType]| match module.get_export(name) {
        Some(ExternType::Func(it)) => Some(it.params() == parameters && it.results() == results),
        Some(_) => Some(false),
        None => None,
    };
    if !matches!(module.get_export(export::MEMORY), Some(ExternType::Memory(_))) {
        return Err(MEMORY_MISSING);
    }
    if has(export::BUFFER, &[ValType::I32], &[ValType::I32]) != Some(true) {
        return Err(BUFFER_MISSING);
    }
    let pair = [ValType::I32, ValType::I32];
    let filter = has(export::FILTER, &pair, &[ValType::I32]);
    let transform = has(export::TRANSFORM, &pair, &[ValType::I64]);
    match (filter, transform) {
        (Some(_), Some(_)) => Err(ModuleError::Verdicts("both")),
        (None, None) => Err(ModuleError::Verdicts("neither")),
        (Some(true), None) | (None, Some(true)) => Ok(()),
        (Some(false), None) => Err(ModuleError::Export {
            name: export::FILTER,
            shape: "a function (i32, i32) -> i32",
            found: "exports something else",
        }),
        (None, Some(false)) => Err(ModuleError::Export {
            name: export::TRANSFORM,
            shape: "a function (i32, i32) -> i64",
            found: "exports something else",
        }),
    }
}

fn not_begun(error: &Error) -> ModuleError {
    match error.as_trap_code() {
        Some(TrapCode::GrowthOperationLimited) | None => ModuleError::Begin(detail(error)),
        Some(_) => ModuleError::Start { function: "start function", failure: failure(error, FUEL_START) },
    }
}

fn failure(error: &Error, fuel: u64) -> Failure {
    match error.as_trap_code() {
        Some(TrapCode::OutOfFuel) => Failure::Fuel(fuel),
        Some(TrapCode::GrowthOperationLimited) => Failure::Memory,
        Some(TrapCode::StackOverflow) => Failure::Deep,
        _ => Failure::Trap(detail(error)),
    }
}
