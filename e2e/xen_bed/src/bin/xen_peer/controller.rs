//! In dom0: creates the guests, runs what is to be run, and reports line by line on standard
//! output.

use std::process::Command;
use std::time::Instant;

use crate::place::Place;
use crate::{Failure, chain};

/// Where the consoles of the guests and the words of the toolstack are.
const LOGS: &str = "/var/log/xen";
/// How many lines of each explain a failure.
const LAST_LINES: usize = 6;

/// The three domains.
pub struct Domains {
    /// dom0.
    pub dom0: Place,
    /// A guest.
    pub one: Place,
    /// Another.
    pub two: Place,
}

/// Checks, counted and reported.
pub struct Checks {
    begin: Instant,
    count: usize,
    /// Part of the names of those that are made; behind a `!`, of those that are not.
    only: String,
}

impl Checks {
    /// Makes one check.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<(), Failure>) {
        let is_wanted = match self.only.strip_prefix('!') {
            Some(not) => !name.contains(not),
            None => name.contains(&self.only),
        };
        if !is_wanted {
            return;
        }
        self.count += 1;
        match check() {
            Ok(()) => println!("ok {name}"),
            Err(failure) => {
                let said = [chain(&*failure), evidence()].concat();
                println!("not ok {name}: {}", said.replace('\n', "|"));
            }
        }
        self.note(name);
    }

    /// Says how far it is.
    pub fn note(&self, what: &str) {
        println!("{:.2} s: {what}", self.begin.elapsed().as_secs_f32());
    }
}

/// The evidence of a failure: which domains there are, and the last words of the guests and of the
/// toolstack about them.
fn evidence() -> String {
    let mut text = match toolstack(&["list"]) {
        Ok(domains) => format!("\n{domains}"),
        Err(failure) => format!("\n{failure}\n"),
    };
    let logs = std::fs::read_dir(LOGS).into_iter().flatten().flatten().map(|entry| entry.path());
    for log in logs {
        let said = std::fs::read(&log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        text += &format!("--- {}\n", log.display());
        for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
            text += line.trim();
            text.push('\n');
        }
    }
    text
}

/// Creates the guests and runs it all.
pub fn run(all: impl FnOnce(&mut Checks, &Domains)) -> Result<(), Failure> {
    let only = std::env::var("TOMBOLO_XEN_ONLY").unwrap_or_default();
    let mut checks = Checks { begin: Instant::now(), count: 0, only };
    let create = |name: &'static str| std::thread::spawn(move || create(name));
    let (one, two) = (create("one"), create("two"));
    let place = |creating: std::thread::JoinHandle<Result<Place, Failure>>| {
        creating.join().unwrap_or_else(|_| Err("its thread panicked".into()))
    };
    let domains = Domains { dom0: Place::here(), one: place(one)?, two: place(two)? };
    checks.note("two guests");
    all(&mut checks, &domains);
    println!("done {}", checks.count);
    Ok(())
}

/// Has the toolstack make a guest; its domain.
fn create(name: &str) -> Result<Place, Failure> {
    let file = format!("/tmp/{name}");
    let text = format!(
        "name=\"{name}\"\ntype=\"pvh\"\nkernel=\"/guest/kernel\"\nramdisk=\"/guest/initramfs\"\n\
         extra=\"console=hvc0 quiet panic=-1\"\nmemory=200\nvcpus=1\ntsc_mode=\"native\"\n\
         vif=[\"script=/etc/xen/scripts/vif\"]\non_crash=\"destroy\"\non_reboot=\"destroy\"\n"
    );
    std::fs::write(&file, text)?;
    toolstack(&["create", "-q", &file])?;
    let number = toolstack(&["domid", name])?;
    Place::guest(number.trim().parse()?)
}

/// Asks the toolstack; what it prints.
pub fn toolstack(arguments: &[&str]) -> Result<String, Failure> {
    tool("xl", arguments)
}

/// Runs a program of dom0; what it prints.
pub fn tool(name: &str, arguments: &[&str]) -> Result<String, Failure> {
    let output = Command::new(name).args(arguments).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name} {}: {}", arguments.join(" "), why.trim()).into())
}
