//! The judges of a subscription's events: an expression, or a module.

use crate::filter::{Filter, Format};
use modules::{Failure, Module, Usage, Verdict};

/// A module, by the name that capsules and `stats` have of it.
#[derive(Debug)]
pub struct NamedModule {
    name: String,
    module: Module,
    failed: Option<Failure>,
    /// The event whose replacement is in `output`.
    output_of: Option<u64>,
    output: Vec<u8>,
}

impl NamedModule {
    /// A module of this name: those of one name are one.
    #[must_use]
    pub fn new(name: String, module: Module) -> Self {
        Self { name, module, failed: None, output_of: None, output: Vec::new() }
    }

    /// Whether an event passes. One that fails lets nothing through from then on.
    fn passes(&mut self, sequence: u64, event: &[u8]) -> bool {
        if self.failed.is_some() {
            return false;
        }
        self.output_of = None;
        match self.module.judge(event, &mut self.output) {
            Ok(Verdict::Drop) => false,
            Ok(Verdict::Pass) => true,
            Ok(Verdict::Replaced) => {
                self.output_of = Some(sequence);
                true
            }
            Err(failure) => {
                self.failed = Some(failure);
                false
            }
        }
    }
}

/// The outcome for a subscription that gets something in the place of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// It is there: perhaps the event itself.
    There,
    /// Nothing: the module judges otherwise than when the event was published.
    Dropped,
    /// The module has been asked often enough in this round.
    Later,
}

/// Says for each event whether it goes on.
#[derive(Debug)]
pub enum Judge {
    /// An expression over the fields of JSON.
    Expression(Filter),
    /// A WebAssembly module.
    Module(Box<NamedModule>),
}

impl From<Filter> for Judge {
    fn from(filter: Filter) -> Self {
        Self::Expression(filter)
    }
}

impl From<NamedModule> for Judge {
    fn from(module: NamedModule) -> Self {
        Self::Module(Box::new(module))
    }
}

impl Judge {
    /// Its text: two of one text are one.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Expression(filter) => filter.text(),
            Self::Module(module) => &module.name,
        }
    }

    /// The cost of an event: the parts of an expression, or the most fuel that a module has used.
    #[must_use]
    pub fn cost(&self) -> usize {
        match self {
            Self::Expression(filter) => filter.cost(),
            Self::Module(it) => usize::try_from(it.module.usage().fuel_most).unwrap_or(usize::MAX),
        }
    }

    pub(crate) fn expression(&self) -> Option<&Filter> {
        match self {
            Self::Expression(filter) => Some(filter),
            Self::Module(_) => None,
        }
    }

    pub(crate) fn is_module(&self) -> bool {
        matches!(self, Self::Module(_))
    }

    pub(crate) fn transforms(&self) -> bool {
        matches!(self, Self::Module(it) if it.module.transforms())
    }

    pub(crate) fn usage(&self) -> Option<Usage> {
        match self {
            Self::Expression(_) => None,
            Self::Module(it) => Some(it.module.usage()),
        }
    }

    /// Fuel that it has used: of an expression, none.
    pub(crate) fn fuel(&self) -> u64 {
        self.usage().map_or(0, |usage| usage.fuel)
    }

    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Expression(_) => None,
            Self::Module(it) => it.failed.as_ref(),
        }
    }

    /// Whether an event of this format passes.
    pub(crate) fn passes(&mut self, format: &Format, sequence: u64, event: &[u8]) -> bool {
        match self {
            Self::Expression(filter) => filter.passes_event(format, event),
            Self::Module(module) => module.passes(sequence, event),
        }
    }

    /// Puts what goes on in the place of an event that has passed into `event`. The newest event's
    /// replacement is at hand; an older one's is made again, if `may_ask`.
    pub(crate) fn replace(&mut self, sequence: u64, event: &mut Vec<u8>, may_ask: bool) -> Replacement {
        let Self::Module(it) = self else { return Replacement::There };
        if !it.module.transforms() {
            return Replacement::There;
        }
        if it.output_of != Some(sequence) {
            if !may_ask {
                return Replacement::Later;
            }
            if !it.passes(sequence, event) {
                return Replacement::Dropped;
            }
        }
        if it.output_of == Some(sequence) {
            event.clear();
            event.extend_from_slice(&it.output);
        }
        Replacement::There
    }
}
