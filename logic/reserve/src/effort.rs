//! A bound on how long an analysis may take, counted in steps, so that it ends at the same point on
//! every machine.

/// Most steps of one analysis, each the share of one task in a sum: a fraction of a second. Two
/// hundred reservations need a hundredth of it; only periods and budgets that somebody chose for
/// that purpose need more.
pub const MAX_STEPS: u64 = 20_000_000;

/// The steps that are left.
#[derive(Debug)]
pub(crate) struct Effort {
    left: u64,
}

/// The analysis did not end within [`MAX_STEPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "whether these reservations fit can't be told in {MAX_STEPS} steps, so they are refused; \
     use periods that are multiples of each other, or leave the processor some time"
)]
pub struct Undecided;

impl Effort {
    pub fn new() -> Self {
        Self { left: MAX_STEPS }
    }

    /// Takes `steps` away.
    pub fn spend(&mut self, steps: usize) -> Result<(), Undecided> {
        let steps = u64::try_from(steps).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(steps).ok_or(Undecided)?;
        Ok(())
    }
}
