//! How domains end, in words.

use domain::{Ending, Exit, Outcome};

/// The outcome of a machine whose guest's command ended: then its exit code says more.
const MACHINE_EXITED: &str = "exited";

/// How an incarnation ended, in words.
pub(crate) fn exit_text(exit: &Exit) -> String {
    let own = exit.outcome.as_ref().filter(|outcome| outcome.outcome != MACHINE_EXITED);
    let text = match exit.ending {
        // Beside how the machine process ended, which is ours, a machine says how its guest did.
        _ if own.is_some() => own.map_or_else(String::new, |outcome| outcome_text(outcome, exit)),
        Ending::Code(code) => format!("exit {code}"),
        Ending::Signal(signal) => format!("signal {signal}"),
        Ending::Lost => "its monitor died".into(),
    };
    if exit.out_of_memory { format!("{text}, out of memory") } else { text }
}

/// How a machine ended, in words.
fn outcome_text(outcome: &Outcome, exit: &Exit) -> String {
    format!("{outcome} (exit {})", exit.shell_code())
}
