//! Each labelled ordering is needed: weakened alone, it makes a scene fail that holds otherwise.

use super::scenes::Scene;
use super::world::Label;

/// The scenes that fail without a label, and hold with it.
const NEEDED: [(Label, Scene); 7] = [
    (Label::Fence, Scene::Rendezvous),
    (Label::Fence, Scene::Notice),
    (Label::Fence, Scene::Deadlock),
    (Label::Listen, Scene::Notice),
    (Label::Listen, Scene::Deadlock),
    (Label::EndLoad, Scene::End),
    (Label::Replace, Scene::Late),
];

const NUMBER: &str = "TOMBOLO_TEST_LABEL";
/// Loom's words when a model fails: a thread that is never woken, an access that nothing orders; or
/// a scene's own assertion.
const FAILURES: [&str; 3] = ["deadlock; threads", "Causality violation", "assertion"];

#[test]
#[ignore = "the other process of the test below, which starts it"]
fn child() {
    let Ok(number) = std::env::var(NUMBER) else { return };
    let (label, scene) = NEEDED[number.parse::<usize>().unwrap()];
    label.weaken();
    scene.check();
}

/// Whether a scene fails with its label weakened. In a process of its own: a model whose threads
/// are all stuck takes the process with it.
fn is_caught(number: usize) -> bool {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "weakened::child", "--ignored", "--nocapture"])
        .env(NUMBER, number.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let caught = FAILURES.iter().any(|failure| said.contains(failure));
    assert_eq!(!output.status.success(), caught, "{number} ended otherwise than by a failed model: {said}");
    caught
}

#[test]
fn each_ordering_is_missed_when_it_is_weakened() {
    let missed: Vec<_> =
        (0..NEEDED.len()).filter(|number| !is_caught(*number)).map(|number| NEEDED[number]).collect();
    assert!(missed.is_empty(), "weakened, and nothing failed: {missed:?}");
    for label in Label::ALL {
        assert!(NEEDED.iter().any(|(needed, _)| *needed == label), "{label:?} is tried nowhere");
    }
}
