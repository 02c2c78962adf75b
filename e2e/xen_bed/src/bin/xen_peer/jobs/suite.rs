//! One half of the suite that every kind of channel has to pass.

use std::io;
use std::time::Instant;

use channel::{OpenError, Receiver, Sender};
use conformance::{Failure as Found, Party, SCENARIOS};
use sys::region::Region;
use xen::End;

use crate::Failure;

/// An end between domains.
struct Between(End);

impl Party for Between {
    fn open(self: Box<Self>) -> Result<(Sender, Receiver), OpenError> {
        self.0.open()
    }

    fn look(&self) -> io::Result<Region> {
        let text = "an end between domains maps its grants once: `scribble` lies in its place";
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    fn side(&self) -> usize {
        self.0.side
    }
}

/// Runs the half of each scenario, over a channel of its own. Where one fails, the others are run as well.
pub fn run(near: bool, how: &str, peer: u16, name: &str) -> Result<(), Failure> {
    let mut failed = 0;
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        let begin = Instant::now();
        let end = Between(super::end(how, peer, &format!("{name}-{number}"))?);
        let done = if near { scenario.near(end) } else { scenario.far(end) };
        failed += usize::from(matches!(done, Err(Found::Wrong(_))));
        let word = done.map_or_else(|found| found.to_string(), |()| "holds".to_owned());
        println!("{}: {word} ({:.1} s)", scenario.name, begin.elapsed().as_secs_f32());
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} scenarios failed").into()) }
}
