//! Where the time goes: a factorial of two factors at two levels, middleware and virtualization.
//!
//! |  | bare | virtualized |
//! | --- | --- | --- |
//! | ideal | `ideal_bare` | `ideal_virtual` |
//! | middleware | `middleware_bare` | `middleware_virtual` |
//!
//! The cost of virtualization for the ideal and that of middleware on the bare machine seldom add
//! up to what both cost together; the rest is their interaction. To leave it out, or to divide it
//! among the two, hides just what is asked for.

use crate::estimate::{Estimate, estimate_of, median};

/// One launch of all four cells, one value each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Square {
    /// The ideal on the bare machine.
    pub ideal_bare: f64,
    /// The middleware on the bare machine.
    pub middleware_bare: f64,
    /// The ideal, virtualized.
    pub ideal_virtual: f64,
    /// The middleware, virtualized.
    pub middleware_virtual: f64,
}

/// The four parts of the time of virtualized middleware, in its unit: their sum is the whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decomposition {
    /// The ideal on the bare machine: nobody goes below.
    pub ideal: Estimate,
    /// The cost of middleware on the bare machine.
    pub middleware: Estimate,
    /// The cost of virtualization for the ideal.
    pub virtualization: Estimate,
    /// The cost of the two together beyond that; below 0 where one hides the other.
    pub interaction: Estimate,
    /// Virtualized middleware.
    pub whole: Estimate,
}

/// Decomposes medians over launches. Launches are resampled as a whole, so that what moved all four
/// cells of one moves no part. `None` without launches.
#[must_use]
pub fn decompose(launches: &[Square]) -> Option<Decomposition> {
    let of = |part: fn(&Medians) -> f64| estimate_of(launches, |sample| Some(part(&Medians::of(sample)?)));
    Some(Decomposition {
        ideal: of(|cell| cell.ideal_bare)?,
        middleware: of(|cell| cell.middleware_bare - cell.ideal_bare)?,
        virtualization: of(|cell| cell.ideal_virtual - cell.ideal_bare)?,
        interaction: of(|cell| {
            cell.middleware_virtual - cell.middleware_bare - cell.ideal_virtual + cell.ideal_bare
        })?,
        whole: of(|cell| cell.middleware_virtual)?,
    })
}

/// The medians of the cells.
type Medians = Square;

impl Square {
    fn of(launches: &[Square]) -> Option<Self> {
        let over = |cell: fn(&Square) -> f64| median(&launches.iter().map(cell).collect::<Vec<_>>());
        Some(Self {
            ideal_bare: over(|square| square.ideal_bare)?,
            middleware_bare: over(|square| square.middleware_bare)?,
            ideal_virtual: over(|square| square.ideal_virtual)?,
            middleware_virtual: over(|square| square.middleware_virtual)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SplitMix;

    #[test]
    fn the_parts_are_those_that_were_put_in_and_add_up() {
        let mut random = SplitMix(5);
        let launches: Vec<Square> = (0..15)
            .map(|_| {
                let mut noise = || random.unit() - 0.5;
                Square {
                    ideal_bare: 20.0 + noise(),
                    middleware_bare: 20.0 + 30.0 + noise(),
                    ideal_virtual: 20.0 + 40.0 + noise(),
                    middleware_virtual: 20.0 + 30.0 + 40.0 + 10.0 + noise(),
                }
            })
            .collect();
        let found = decompose(&launches).expect("launches");
        let parts = [found.ideal, found.middleware, found.virtualization, found.interaction];
        for (part, truth) in parts.iter().zip([20.0, 30.0, 40.0, 10.0]) {
            assert!(part.low <= truth + 0.3 && truth - 0.3 <= part.high, "{part:?} is not {truth}");
            assert!(part.high - part.low < 2.5, "{part:?}");
        }
        let sum: f64 = parts.iter().map(|part| part.value).sum();
        assert!((sum - found.whole.value).abs() < 1e-9, "{sum} {found:?}");
        assert_eq!(decompose(&[]), None);
    }
}
