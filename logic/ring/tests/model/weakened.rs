//! Each labelled ordering is needed: weakened alone, it makes a scene fail that holds otherwise.

use ring::Label;

use super::scenes::{PREEMPTIONS, Scene};
use super::world::{MODEST, Naps, SMALL, TINY};

const LONG: &[u8] = b"forty bytes, so that it takes six words.";

/// Preemptions that it takes to miss the two orderings of REFENCED. The scene holds with as many
/// (it takes a minute or two to see: `LOOM_MAX_PREEMPTIONS=4`), and is shown to hold with fewer
/// here.
const REFENCED_PREEMPTIONS: usize = 4;

/// The scene that fails without the label, and holds with it.
fn scene(label: Label, refenced_preemptions: usize) {
    let long = Scene { naps: Naps::LongEnough, ..Scene::new(TINY, &[b"8 bytes."]) };
    let unfenced = Scene { barriers: true, ..Scene::new(SMALL, &[b"", b"", b""]) };
    match label {
        Label::CommitStore | Label::CommitLoad | Label::SleepProducer | Label::SleepConsumer => {
            Scene::new(TINY, &[b"8 bytes."]).all_arrive();
        }
        Label::RoomStore => {
            Scene::new(MODEST, &[b"the 1st.", LONG, LONG, b"the 4th.", b"the 5th."]).all_arrive()
        }
        // The third goes over the first, and no fence stands between the look for room and that.
        Label::RoomLoad => Scene::new(MODEST, &[LONG, LONG, LONG]).all_arrive(),
        Label::SleepBarrier | Label::Unfence => unfenced.all_arrive(),
        // A doorbell keeps the ring that this would miss; a futex does not.
        Label::RefenceStore | Label::RefenceLoad => {
            Scene { naps: Naps::LongEnough, preemptions: refenced_preemptions, ..unfenced }.all_arrive()
        }
        Label::WantProducer | Label::WantConsumer => {
            Scene::new(TINY, &[b"message1", b"message2"]).one_is_taken();
        }
        // Behind a fence there would be no need of the store's own ordering.
        Label::EndStore => {
            Scene { barriers: true, ..Scene::new(MODEST, &[b"", b""]) }.all_arrive_and_then_the_end()
        }
        Label::EndLoad => Scene::new(TINY, &[b"farewell"]).all_arrive_and_then_the_end(),
        Label::RouseSwap => long.all_arrive_and_then_the_end(),
    }
}

const LABEL: &str = "TOMBOLO_TEST_LABEL";
/// Loom's words when a model fails: a thread that is never woken, an access that nothing orders; or
/// a scene's own assertion.
const FAILURES: [&str; 3] = ["deadlock; threads", "Causality violation", "assertion"];

#[test]
#[ignore = "the other process of the test below, which starts it"]
fn child() {
    let Ok(name) = std::env::var(LABEL) else { return };
    let label = Label::ALL.into_iter().find(|label| format!("{label:?}") == name).unwrap();
    label.weaken();
    scene(label, REFENCED_PREEMPTIONS);
}

/// Whether the scene of a label fails with the label weakened. In a process of its own: a model
/// whose threads are all stuck takes the process with it.
fn is_caught(label: Label) -> bool {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "weakened::child", "--ignored", "--nocapture"])
        .env(LABEL, format!("{label:?}"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let caught = FAILURES.iter().any(|failure| said.contains(failure));
    assert_eq!(!output.status.success(), caught, "{label:?} ended otherwise than by a failed model: {said}");
    caught
}

#[test]
fn each_ordering_is_missed_when_it_is_weakened() {
    let missed: Vec<Label> = Label::ALL.into_iter().filter(|label| !is_caught(*label)).collect();
    assert!(missed.is_empty(), "weakened, and nothing failed: {missed:?}");
}

#[test]
fn each_scene_holds_with_the_ordering_that_ships() {
    for label in Label::ALL {
        scene(label, PREEMPTIONS);
    }
}
