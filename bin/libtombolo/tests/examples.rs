//! The programs of `examples/channel` talk to each other, in whichever language each is.

mod stage;

use stage::{Stage, assert_went_well, root, text};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use testing::FakeDaemon;
use wire::control::{SOCKET_VARIABLE, ServedService};

/// A program of the examples, ready to run.
struct Example {
    name: &'static str,
    command: Box<dyn Fn(&Stage) -> Command>,
}

/// A program that offers; killed if the test ends before it.
struct Offering(Child);

impl Offering {
    /// Starts it, and waits until it says that it offers.
    fn start(command: &mut Command, name: impl AsRef<Path>) -> Self {
        let mut offering = Self(command.stdout(Stdio::piped()).spawn().expect("it starts"));
        let output = offering.0.stdout.take().expect("its output");
        let mut said = String::new();
        BufReader::new(output).read_line(&mut said).expect("it speaks");
        assert_eq!(said, format!("offering at {}\n", name.as_ref().display()));
        offering
    }

    fn end(&mut self) -> ExitStatus {
        self.0.wait().expect("it ends")
    }
}

impl Drop for Offering {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

fn python(file: &'static str) -> Example {
    let script = root().join("examples/channel").join(file);
    let command = move |stage: &Stage| {
        let mut command = stage.command("python3");
        command.args(["-W", "error"]).arg(&script);
        command
    };
    Example { name: file, command: Box::new(command) }
}

fn c(stage: &Stage, file: &'static str) -> Option<Example> {
    let program: PathBuf = stage.compile(&root().join("examples/channel").join(file))?;
    Some(Example { name: file, command: Box::new(move |stage| stage.command(&program)) })
}

fn examples(stage: &Stage) -> Option<(Vec<Example>, Vec<Example>)> {
    if Command::new("python3").arg("-V").output().is_err() {
        println!("skipped: python3 is not installed (apt-get install python3)");
        return None;
    }
    Some((vec![c(stage, "offer.c")?, python("offer.py")], vec![c(stage, "open.c")?, python("open.py")]))
}

#[test]
fn every_offerer_answers_every_opener() {
    let stage = Stage::set();
    let Some((offerers, openers)) = examples(&stage) else { return };
    for offerer in &offerers {
        let path = stage.folder().join("louder");
        let mut command = (offerer.command)(&stage);
        let mut offering = Offering::start(command.arg(&path).arg(openers.len().to_string()), &path);
        for opener in &openers {
            let together = format!("{} and {}", offerer.name, opener.name);
            let output = (opener.command)(&stage).arg(&path).args(["hello", "", "wörld"]).output();
            let output = output.expect("it starts");
            assert_went_well(&together, &output);
            assert_eq!(text(&output.stdout).to_lowercase(), "hello\n\nwörld\n", "{together}");
            assert!(text(&output.stdout).starts_with("HELLO\n"), "{together}");
        }
        assert!(offering.end().success(), "{}", offerer.name);
        assert!(!path.exists(), "{} left its socket", offerer.name);
    }
}

/// An offerer that is killed leaves a socket at which nobody listens: an opener waits, and the next
/// offerer takes the place.
#[test]
fn openers_wait_for_the_one_that_takes_a_dead_offerers_place() {
    let stage = Stage::set();
    let Some((offerers, openers)) = examples(&stage) else { return };
    let path = stage.folder().join("louder");
    for (dead, (next, opener)) in offerers.iter().zip(offerers.iter().rev().zip(&openers)) {
        drop(Offering::start((dead.command)(&stage).arg(&path), &path));
        assert!(path.exists(), "{} was not killed", dead.name);
        let mut command = (opener.command)(&stage);
        let opening = command.arg(&path).arg("hello").stdout(Stdio::piped()).spawn().expect("it starts");
        let mut offering = Offering::start((next.command)(&stage).arg(&path).arg("1"), &path);
        let output = opening.wait_with_output().expect("it ends");
        assert_went_well(opener.name, &output);
        assert_eq!(text(&output.stdout), "HELLO\n");
        assert!(offering.end().success(), "{}", next.name);
    }
}

/// By the name of a service, in two domains, introduced by a stand-in for the daemon.
#[test]
fn programs_of_two_domains_meet_by_the_name_of_a_service() {
    let stage = Stage::set();
    let Some((offerers, openers)) = examples(&stage) else { return };
    let settings = serde_json::json!({
        "ring_bytes": 65536, "mode": "messages", "max_channels": 8, "channels_per_domain": 8
    });
    let louder = ServedService { name: "louder".into(), kind: "channel".into(), settings };
    let daemon = FakeDaemon::start(stage.folder(), &["speaker", "listener"], vec![louder]);
    let inside = |command: &mut Command, domain: &str| {
        command.env(SOCKET_VARIABLE, daemon.socket(domain));
    };
    for offerer in &offerers {
        let mut command = (offerer.command)(&stage);
        inside(command.arg("louder").arg(openers.len().to_string()), "speaker");
        let mut offering = Offering::start(&mut command, "louder");
        for opener in &openers {
            let mut command = (opener.command)(&stage);
            inside(command.args(["louder", "hello", "world"]), "listener");
            let output = command.output().expect("it starts");
            assert_went_well(&format!("{} and {}", offerer.name, opener.name), &output);
            assert_eq!(text(&output.stdout), "HELLO\nWORLD\n");
        }
        assert!(offering.end().success(), "{}", offerer.name);
    }
    // What the daemon says no to has its errno and its words.
    let mut command = (openers[0].command)(&stage);
    inside(command.args(["quieter", "hello"]), "listener");
    let output = command.output().expect("it starts");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("the daemon refused"), "{said}");
}
