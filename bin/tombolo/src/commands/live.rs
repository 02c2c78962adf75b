//! Tables that are shown once, or anew each second on a terminal.

use serde::Serialize;
use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};
use terminal::{Failure, print, print_json};

/// The time over which rates are measured, and after which a page is shown anew.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
/// Has a terminal begin a new page: the cursor at the top, and nothing below it (ECMA-48).
pub(super) const NEW_PAGE: &str = "\x1b[H\x1b[2J";

/// Takes samples with `sample`, makes a page of each two with `between` (the earlier one first),
/// and shows it: as JSON, once, or as `table` prints it.
pub(super) fn run<S, P: Serialize>(
    once: bool,
    json: bool,
    mut sample: impl FnMut() -> Result<S, Failure>,
    mut between: impl FnMut(&S, &S) -> Result<P, Failure>,
    table: impl Fn(&P) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let lives = !once && !json && stdout().is_terminal();
    let mut before = sample()?;
    let mut sampled = Instant::now();
    loop {
        // A rate is between two moments.
        std::thread::park_timeout(INTERVAL.saturating_sub(sampled.elapsed()));
        let now = sample()?;
        sampled = Instant::now();
        let page = between(&before, &now)?;
        if json {
            return print_json(&page);
        }
        if lives {
            print(NEW_PAGE)?;
        }
        table(&page)?;
        if !lives {
            return Ok(());
        }
        before = now;
    }
}
