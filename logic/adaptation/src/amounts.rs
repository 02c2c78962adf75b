//! How much of what: a budget of the processor, a rate of the link, a level of quality.

use serde::{Deserialize, Serialize};

/// The amounts that a domain has, or is to have. One that its adaptation does not move is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// Budget of the processor in each period, in ns.
    pub cpu_ns: Option<u64>,
    /// Rate of the link, in bits per second.
    pub network_bits: Option<u64>,
    /// Level of quality: 0 is the best.
    pub level: u32,
}

/// Between what something moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// It is never less.
    pub least: u64,
    /// It is never more.
    pub most: u64,
    /// By how much it moves at a time; 0: as far as the controller says.
    pub step: u64,
}

/// Why a range is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The ends are exchanged.
    #[error("the least is more than the most")]
    Reversed,
    /// The amount that the file promises is outside.
    #[error("what is promised is not between the least and the most")]
    Outside,
    /// It would never move.
    #[error("the step is more than there is between the least and the most")]
    StepTooGreat,
}

impl Range {
    /// Looks at whether something that is promised can move in it.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, promised: u64) -> Result<(), RangeError> {
        if self.least > self.most {
            return Err(RangeError::Reversed);
        }
        if !(self.least..=self.most).contains(&promised) {
            return Err(RangeError::Outside);
        }
        if self.step > self.most - self.least {
            return Err(RangeError::StepTooGreat);
        }
        Ok(())
    }

    /// The nearest value of the range.
    #[must_use]
    pub fn clamp(&self, value: u64) -> u64 {
        value.clamp(self.least, self.most.max(self.least))
    }

    /// One step up.
    #[must_use]
    pub fn up(&self, value: u64) -> u64 {
        self.clamp(value.saturating_add(self.step))
    }

    /// One step down.
    #[must_use]
    pub fn down(&self, value: u64) -> u64 {
        self.clamp(value.saturating_sub(self.step))
    }
}
