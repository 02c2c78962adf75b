//! Adaptation: figures that monitors read, rules and a controller that judge them, and how budgets
//! move because of that.
//!
//! | question | answer |
//! | --- | --- |
//! | what did a program write, or a counter say? | [`Figure`], [`Share`] |
//! | is that too bad, fine, or neither, and for long enough? | [`Selector`] |
//! | how much is to be promised now, and is it time for that? | [`Adapter::decide`] |
//! | and where the node has no room? | [`arbitrate`]: who gives, and what would fit |
//!
//! There is no clock, no wait and no float: times come in as milliseconds, figures are whole
//! thousandths. `docs/spec/adaptation.md` is the arithmetic.

#![forbid(unsafe_code)]

mod adapter;
mod amounts;
mod arbiter;
mod feedback;
mod figure;
mod selector;

pub use adapter::{Action, Adapter, CHANGES_PER_MINUTE_MAX, Decision, LOST_SAMPLES, Settings};
pub use amounts::{Amounts, Range, RangeError};
pub use arbiter::{Giver, Granted, SEARCH_STEPS_MAX, arbitrate, give_back};
pub use feedback::{FEEDBACK_GROWTH_MAX, Feedback, Load};
pub use figure::{FIGURE_BYTES_MAX, FIGURE_MAX, Figure, FigureError, Share};
pub use selector::{BACKOFF_MAX, Judgement, Selector, SelectorError, Threshold};
