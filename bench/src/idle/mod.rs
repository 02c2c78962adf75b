//! The cost of things that do nothing: memory, descriptors, threads and wake-ups of each further
//! idle domain, mounted service and open file.
//!
//! A node of the bench's own runs a topology without the things, then one with some more of them;
//! the difference, divided by their number, is the cost of one. The first time warms the page cache
//! and is not counted.

mod things;

use crate::node::Node;
use crate::promise::{Promise, Verdict};
use crate::report::Column;
use crate::results::{Condition, Figure, Results};
use crate::scenario::{Arguments, BenchError, Scenario};
use crate::undo::Undo;
use crate::usage::Usage;
use std::path::Path;
use std::time::Duration;
use things::{THINGS, Thing};

/// How long a node settles after `up`: caches are filled, programs have come to rest.
const SETTLING: Duration = Duration::from_secs(4);
/// How long wake-ups are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// Launches, where nobody asks for another number.
const LAUNCHES: usize = 3;

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Idle;

impl Scenario for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn about(&self) -> &'static str {
        "memory, descriptors, threads and wake-ups of each further idle thing"
    }

    fn promises(&self) -> &'static [Promise] {
        &things::PROMISES
    }

    fn base(&self, _: &Condition) -> &'static str {
        ""
    }

    fn columns(&self, _: &Condition) -> &'static [Column] {
        &[]
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "io/domain", "io/frontend", "io/entrance", "io/machine", "services/agent", "services/node"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[&["runc", "--version"], &["qemu-system-x86_64", "--version"]]
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        let mut results = Results::default();
        let launches = if arguments.quick { 1 } else { arguments.launches.unwrap_or(LAUNCHES) };
        for thing in &THINGS {
            if let Err(error) = thing.check() {
                results.note(vec![format!("{} is not measured: {error}", thing.name)]);
                continue;
            }
            for launch in 0..launches {
                progress(&format!("{}: launch {} of {launches}", thing.name, launch + 1));
                let values = cost(thing, arguments)?;
                let named = thing.figures.into_iter().zip(values);
                results.figures.extend(named.map(|((name, unit), value)| Figure {
                    name,
                    unit,
                    launch,
                    value,
                }));
            }
        }
        Ok(results)
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let judge = |promise: &Promise| {
            let estimate = results.figure(promise.id)?;
            let measured = results.figures.iter().filter(|figure| figure.name == promise.id).count() as u64;
            Some(promise.judge(estimate, measured))
        };
        things::PROMISES.iter().filter_map(judge).collect()
    }
}

/// Memory in KiB, descriptors, threads, and wake-ups per second of one thing.
fn cost(thing: &Thing, arguments: &Arguments) -> Result<[f64; 4], BenchError> {
    let folder = tempfile::tempdir().map_err(BenchError::io("making a folder"))?;
    let prepared = thing.prepare(&arguments.binary, folder.path())?;
    let (settling, window) = if arguments.quick { (SETTLING / 4, WINDOW / 5) } else { (SETTLING, WINDOW) };
    let measured = |count: usize, number: usize| {
        let folder = folder.path().join(number.to_string());
        std::fs::create_dir(&folder).map_err(BenchError::io("making a folder"))?;
        at_rest(&arguments.binary, &folder, &thing.topology(count, &prepared), settling, window)
    };
    let _warm = measured(thing.count, 0)?;
    let (without, calm) = measured(0, 1)?;
    let (with, busy) = measured(thing.count, 2)?;
    let each = |with: u64, without: u64| (with as f64 - without as f64) / thing.count as f64;
    Ok([
        each(with.memory_bytes, without.memory_bytes) / 1024.0,
        each(with.descriptors, without.descriptors),
        each(with.threads, without.threads),
        (busy - calm) / thing.count as f64,
    ])
}

/// A node with this topology after it has come to rest, and its wake-ups per second.
fn at_rest(
    binary: &Path,
    folder: &Path,
    topology: &str,
    settling: Duration,
    window: Duration,
) -> Result<(Usage, f64), BenchError> {
    let mut undo = Undo::start().map_err(BenchError::io("starting the cleaner"))?;
    let node = Node::start(binary, folder, &mut undo, topology)?;
    let usage = || {
        Usage::of_node(&node.run_dir()).ok_or_else(|| BenchError::Missing {
            what: "a memory control group".into(),
            how: "mount the memory controller of cgroups",
        })
    };
    // tidy(sleep): nothing tells that programs of others have come to rest.
    std::thread::sleep(settling);
    let before = usage()?;
    // tidy(sleep): the window in which wake-ups are counted.
    std::thread::sleep(window);
    let after = usage()?;
    let wake_ups = after.switches_since(&before) as f64 / window.as_secs_f64();
    undo.finish().map_err(BenchError::io("cleaning up"))?;
    Ok((after, wake_ups))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_promise_and_each_promise_its_figure() {
        let figures: Vec<&str> =
            THINGS.iter().flat_map(|thing| thing.figures).map(|(name, _)| name).collect();
        let promises: Vec<&str> = things::PROMISES.iter().map(|promise| promise.id).collect();
        assert_eq!(figures, promises);
    }
}
