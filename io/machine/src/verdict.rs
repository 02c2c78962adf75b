//! How a machine has ended, out of what is known of it: the table of `docs/spec/machine.md`.

use crate::outcome::{CODE_OF_KILL, CODE_OF_MACHINE, Outcome, Word};
use wire::guest::Exited;

/// The facts that are known when QEMU has ended.
#[derive(Debug, Default, Clone)]
pub(crate) struct Facts {
    /// Why this process ended the machine by itself.
    pub verdict: Option<(Word, String)>,
    /// Whether the machine was asked to end.
    pub asked: bool,
    /// How the command ended, and whether the machine had been asked to end by then.
    pub exited: Option<(Exited, bool)>,
    /// Why the guest could not be what it was to be.
    pub failed: Option<String>,
    /// Whether the guest's kernel said that it panicked.
    pub panicked: bool,
    /// QEMU's word for why the machine went off.
    pub shutdown: Option<String>,
    /// Whether QEMU's monitor has spoken.
    pub greeted: bool,
    /// The line of a panic, and the last line, of the console.
    pub panic_line: Option<String>,
    pub last_line: Option<String>,
    /// How the process ended, and what it said last.
    pub status: String,
    pub words: String,
}

/// The outcome, and what this process exits with.
pub(crate) fn judge(facts: &Facts) -> (Outcome, u8) {
    if let Some((word, message)) = &facts.verdict {
        let code = match word {
            Word::Killed => CODE_OF_KILL,
            Word::Stopped => 0,
            _ => CODE_OF_MACHINE,
        };
        return (Outcome::new(*word, message), code);
    }
    if let Some(message) = &facts.failed {
        return (Outcome::new(Word::Failed, message), CODE_OF_MACHINE);
    }
    if let Some((exited, asked)) = facts.exited {
        return of_command(exited, asked);
    }
    let (word, message, code) = of_machine(facts);
    (Outcome::new(word, message), code)
}

fn of_command(exited: Exited, asked: bool) -> (Outcome, u8) {
    let (word, code) = if asked { (Word::Stopped, 0) } else { (Word::Exited, exited.ending.code()) };
    let outcome = Outcome { out_of_memory: exited.out_of_memory, ..Outcome::new(word, "") };
    (outcome, u8::try_from(code).unwrap_or(u8::MAX))
}

fn of_machine(facts: &Facts) -> (Word, String, u8) {
    let reset = facts.shutdown.as_deref() == Some("guest-reset");
    let line = |line: &Option<String>| line.clone().unwrap_or_default();
    if facts.panicked || (reset && facts.panic_line.is_some()) {
        return (Word::Panicked, with_advice(line(&facts.panic_line)), CODE_OF_MACHINE);
    }
    match facts.shutdown.as_deref() {
        Some("guest-reset") => (Word::Rebooted, line(&facts.last_line), CODE_OF_MACHINE),
        Some("guest-shutdown") if facts.asked => (Word::Stopped, String::new(), 0),
        Some("guest-shutdown") => (Word::PoweredOff, line(&facts.last_line), 0),
        Some("guest-panic") => (Word::Panicked, with_advice(line(&facts.panic_line)), CODE_OF_MACHINE),
        _ => (if facts.greeted { Word::QemuDied } else { Word::NoQemu }, words(facts), CODE_OF_MACHINE),
    }
}

/// A panic that the file can prevent says by which key. The kernel has these words for what ran out
/// before and after its first process.
fn with_advice(panic: String) -> String {
    if panic.contains("deadlocked on memory") || panic.contains("Out of memory") {
        return format!("{panic}: it needs more than its `machine.memory`");
    }
    panic
}

fn words(facts: &Facts) -> String {
    // Nobody of ours does that; the kernel does, to whoever takes the last memory of a domain.
    if facts.status.contains("signal: 9") && facts.words.is_empty() {
        return format!("{}, as the kernel kills for want of memory: see `limits.memory`", facts.status);
    }
    match (facts.words.as_str(), facts.status.as_str()) {
        ("", status) => status.to_owned(),
        (words, status) => format!("{status}: {words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::guest::Ending;

    fn off(reason: &str) -> Facts {
        Facts {
            shutdown: Some(reason.into()),
            greeted: true,
            last_line: Some("last".into()),
            ..Facts::default()
        }
    }

    fn judged(facts: &Facts) -> (Word, String, u8) {
        let (outcome, code) = judge(facts);
        (outcome.outcome, outcome.message, code)
    }

    #[test]
    fn a_command_decides_the_exit_code() {
        let exited = |ending, out_of_memory| Exited { ending, out_of_memory };
        let of = |exited, asked| judge(&Facts { exited: Some((exited, asked)), ..off("guest-shutdown") });
        let (outcome, code) = of(exited(Ending::Code(3), false), false);
        assert_eq!((outcome.outcome, outcome.out_of_memory, code), (Word::Exited, false, 3));
        let (outcome, code) = of(exited(Ending::Signal(9), true), false);
        assert_eq!((outcome.outcome, outcome.out_of_memory, code), (Word::Exited, true, 137));
        let (outcome, code) = of(exited(Ending::Signal(15), false), true);
        assert_eq!((outcome.outcome, code), (Word::Stopped, 0));
        assert_eq!(of(exited(Ending::Code(4000), false), false).1, 255, "a guest says what it likes");
    }

    #[test]
    fn what_the_machine_did_is_told_apart() {
        assert_eq!(judged(&off("guest-reset")), (Word::Rebooted, "last".into(), 125));
        assert_eq!(judged(&off("guest-shutdown")), (Word::PoweredOff, "last".into(), 0));
        let asked = Facts { asked: true, ..off("guest-shutdown") };
        assert_eq!(judged(&asked), (Word::Stopped, String::new(), 0));
        let line = Some("Kernel panic - not syncing: x".to_owned());
        let panicked = Facts { panic_line: line.clone(), ..off("guest-reset") };
        assert_eq!(judged(&panicked), (Word::Panicked, "Kernel panic - not syncing: x".into(), 125));
        let small = Some("Kernel panic - not syncing: System is deadlocked on memory".to_owned());
        let (_, message, _) = judged(&Facts { panic_line: small, ..off("guest-reset") });
        assert!(message.ends_with("memory: it needs more than its `machine.memory`"), "{message}");
        let shown = Facts { panic_line: line, ..off("guest-shutdown") };
        assert_eq!(judged(&shown).0, Word::PoweredOff, "a line alone is no panic");
        assert_eq!(
            judged(&Facts { panicked: true, ..off("guest-panic") }),
            (Word::Panicked, String::new(), 125)
        );
        let failed = Facts { failed: Some("no such user".into()), ..off("guest-shutdown") };
        assert_eq!(judged(&failed), (Word::Failed, "no such user".into(), 125));
    }

    #[test]
    fn qemu_that_dies_has_its_words_told() {
        let died =
            Facts { status: "exit status: 1".into(), words: "no such option".into(), ..Facts::default() };
        assert_eq!(judged(&died), (Word::NoQemu, "exit status: 1: no such option".into(), 125));
        let later = Facts { greeted: true, words: String::new(), ..died };
        assert_eq!(judged(&later), (Word::QemuDied, "exit status: 1".into(), 125));
        let by_signal = Facts { shutdown: Some("host-signal".into()), ..later };
        assert_eq!(judged(&by_signal).0, Word::QemuDied);
    }

    #[test]
    fn our_own_verdict_stands_before_all() {
        let of =
            |word| judged(&Facts { verdict: Some((word, "x".into())), asked: true, ..off("guest-reset") });
        assert_eq!(of(Word::Hung), (Word::Hung, "x".into(), 125));
        assert_eq!(of(Word::Killed), (Word::Killed, "x".into(), 137));
    }
}
