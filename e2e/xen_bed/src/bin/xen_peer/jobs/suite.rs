//! One half of the suite that every kind of channel has to pass.

use std::io;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Instant;

use channel::{OpenError, Receiver, Sender};
use conformance::{Failure as Found, Party, SCENARIOS};
use sys::region::Region;
use sys::xen::grant::map;
use wire::xen::{self as layout, Offer};
use xen::End;

use crate::{Failure, chain};

/// Scenarios whose near half looks at the region beside its end. An opener can, by mapping the
/// grants once more.
const NEAR_LOOKS: [&str; 3] =
    ["a record that is none", "an index that is none", "a peer that writes whatever it likes"];
/// Those of which both do, which an offerer can't: its own grants it must not map. They are about
/// memory, and that of two domains is the memory of one machine.
const BOTH_LOOK: [&str; 2] = ["atomic accesses are atomic", "fences are fences"];

/// An end between domains.
struct Between {
    end: End,
    peer: u16,
    name: String,
}

impl Party for Between {
    fn open(self: Box<Self>) -> Result<(Sender, Receiver), OpenError> {
        self.end.open()
    }

    fn look(&self) -> io::Result<Region> {
        let own = read("domid")?.parse().map_err(io::Error::other)?;
        let offer = read(&layout::offer_path(self.peer, own, &self.name))?;
        let offer = Offer::parse(offer.as_bytes()).map_err(io::Error::other)?;
        let directory = map(self.peer, &[offer.directory], None)?;
        let pages = directory.load_u64(layout::OFFSET_PAGES, Ordering::Relaxed) as usize;
        let mut bytes = vec![0; 4 * pages.min(layout::REFERENCES_MAX)];
        directory.copy_out(layout::OFFSET_REFERENCES, &mut bytes);
        let references: Vec<u32> =
            bytes.as_chunks::<4>().0.iter().map(|reference| u32::from_le_bytes(*reference)).collect();
        map(self.peer, &references, None)
    }

    fn side(&self) -> usize {
        self.end.side
    }
}

/// The entry in XenStore.
fn read(path: &str) -> io::Result<String> {
    let output = Command::new("xenstore-read").arg(path).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Runs the half of each scenario, over a channel of its own, up to the first that fails: the other
/// half would wait for each further one.
pub fn run(near: bool, how: &str, peer: u16, name: &str) -> Result<(), Failure> {
    let near_offers = near == (how == "offer");
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        if BOTH_LOOK.contains(&scenario.name) || near_offers && NEAR_LOOKS.contains(&scenario.name) {
            continue;
        }
        let begin = Instant::now();
        let name = format!("{name}-{number}");
        let named =
            |failure: Failure| -> Failure { format!("{}: {}", scenario.name, chain(&*failure)).into() };
        let end = Between { end: super::end(how, peer, &name).map_err(named)?, peer, name };
        let done = if near { scenario.near(end) } else { scenario.far(end) };
        let word = match done {
            Ok(()) => "holds".to_owned(),
            Err(found @ Found::Skipped(_)) => found.to_string(),
            Err(found) => return Err(named(found.into())),
        };
        println!("{}: {word} ({:.1} s)", scenario.name, begin.elapsed().as_secs_f32());
    }
    Ok(())
}
