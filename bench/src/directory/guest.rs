//! Look-ups of names in a virtual machine, through each entrance of the directory service, beside
//! the guest's own resolver over a virtio-net card; and how long it takes from nothing to the first
//! answer.

use super::place::{Place, SUFFIX};
use super::{Arm, Bench, CACHES, Plan};
use crate::machines::{self, Image};
use crate::promise::{Promise, Relation, Verdict};
use crate::results::{Condition, Figure, Results};
use crate::scenario::{Arguments, BenchError, Scenario};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Instant;

/// Where the guest has our libraries.
pub const LIBRARIES: &str = "/usr/lib/tombolo";
/// The only domain's number, and how many there are.
const DOMAIN: usize = 0;
const DOMAINS: usize = 1;
/// Asks for a name at the service's file, as any shell can.
const ASK: &str = "exec 3<>/srv/dns/query; echo \"$1\" >&3; head -n 1 <&3";
/// The figure behind `directory.vm.first_name`.
const FIRST_NAME: &str = "from `up` to the first answer in a virtual machine";

const PROMISES: [Promise; 1] = [Promise {
    id: "directory.vm.first_name",
    about: "a virtual machine: from `tombolo up`, without a daemon, to the first name's answer in the guest",
    unit: "s",
    relation: Relation::AtMost,
    goal: 8.0,
}];

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Guest;

impl Scenario for Guest {
    fn name(&self) -> &'static str {
        "directory --kind vm"
    }

    fn about(&self) -> &'static str {
        "look-ups of names in a virtual machine, by each entrance, beside its own resolver over virtio-net"
    }

    fn promises(&self) -> &'static [Promise] {
        &PROMISES
    }

    fn base(&self, _: &Condition) -> &'static str {
        Arm::Naive.name()
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "io/machine", "services/agent", "services/directory"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[&["qemu-system-x86_64", "--version"], &["dnsmasq", "--version"], &["runc", "--version"]]
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        machines::check()?;
        // The guest has one processor.
        let plan = Plan { domains: vec![DOMAINS], processors: vec![0], ..Plan::new(arguments) };
        progress("packing the guest's image");
        let kept = tempfile::tempdir().map_err(BenchError::io("making a folder"))?;
        let image = Image::build(&arguments.binary, &["lookup-worker"], kept.path())?;
        let mut results = Results::default();
        for launch in 0..plan.launches {
            for cache in CACHES {
                progress(&format!(
                    "launch {} of {}, cache {cache}: starting the guest",
                    launch + 1,
                    plan.launches
                ));
                let mut place = Place::make(&arguments.binary, Some(&image))?;
                let value = first_name(&mut place, cache)?;
                results.figures.push(Figure { name: FIRST_NAME, unit: "s", launch, value });
                place.plug_card(DOMAIN)?;
                let mut bench = Bench { plan: &plan, place, cache, launch, workers: BTreeMap::new() };
                bench.measure(&mut results, progress)?;
                bench.place.end()?;
            }
        }
        Ok(results)
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let measured = results.figures.iter().filter(|figure| figure.name == FIRST_NAME).count() as u64;
        let first = results.figure(FIRST_NAME).map(|estimate| PROMISES[0].judge(estimate, measured));
        first.into_iter().collect()
    }
}

/// Brings the domain up where nothing runs yet, and asks for a name in it; how long that took, in
/// s.
fn first_name(place: &mut Place, cache: &str) -> Result<f64, BenchError> {
    let begin = Instant::now();
    place.up(DOMAINS, cache)?;
    let mut exec = place.exec(DOMAIN, &[]);
    exec.args(["sh", "-c", ASK, "sh", &format!("n0.{SUFFIX}")]).stdin(Stdio::null());
    let output = exec.output().map_err(BenchError::io("asking for the first name"))?;
    let took = begin.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && said.contains("192.0.2.1") {
        return Ok(took);
    }
    let complained = String::from_utf8_lossy(&output.stderr);
    let said = format!("{said}{complained}").trim().to_owned();
    Err(BenchError::Protocol { who: "the guest's shell".into(), said, expected: "an address" })
}
