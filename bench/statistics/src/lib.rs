//! The statements that a run of launches allows, without I/O, without a clock.
//!
//! The unit of every interval and every test is the *launch*: all processes fresh, one value per
//! launch. Samples of one launch share their fate (placement, caches, the neighbour of the hour),
//! so their number makes nothing sure.
//!
//! | question | answer |
//! | --- | --- |
//! | how large is it? | [`estimate`], the median with a bootstrap interval |
//! | do two differ? | [`claim::compare_all`]: [`rank::mann_whitney`], its effect size, and [`rank::holm`] over all comparisons of a report |
//! | how many launches would show it? | [`rank::launches_to_show`] |
//! | how often is a deadline missed? | [`binomial::clopper_pearson`] |
//! | when was it warm? | [`warm_up::settled`] |
//! | where does the time go? | [`factorial::decompose`] |
//! | what does a user see under a schedule? | [`open_loop`] |

pub mod binomial;
pub mod claim;
mod estimate;
pub mod factorial;
pub mod open_loop;
mod random;
pub mod rank;
pub mod warm_up;

pub use estimate::{Estimate, estimate, estimate_of, median, quantile};
pub use random::SplitMix;
