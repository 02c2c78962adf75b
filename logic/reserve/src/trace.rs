//! The inputs and decisions of a dispatcher, so that the same can be asked again.

use crate::dispatch::{Decision, DispatchError, Dispatcher, Inside};
use crate::table::Table;
use crate::task::Task;

/// Something that a dispatcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A machine comes.
    Add {
        /// How its jobs are ordered.
        inside: Inside,
    },
    /// A machine goes.
    Remove {
        /// Index of the virtual task machine.
        vtm: usize,
    },
    /// A job comes.
    Join {
        /// Index of the virtual task machine.
        vtm: usize,
        /// The task that it asks for.
        task: Option<Task>,
    },
    /// A job goes.
    Leave {
        /// Index of the virtual task machine.
        vtm: usize,
        /// Index of the job.
        job: usize,
    },
    /// A job has work, in a period that began at that time, in ns.
    Ready {
        /// Index of the virtual task machine.
        vtm: usize,
        /// Index of the job.
        job: usize,
        /// When its period began, in ns.
        begun_ns: u64,
    },
    /// A job has none, or is gone.
    Blocked {
        /// Index of the virtual task machine.
        vtm: usize,
        /// Index of the job.
        job: usize,
    },
    /// Another table takes over, not before that time, in ns.
    Adopt {
        /// The table.
        table: Table,
        /// Not before then, in ns.
        not_before_ns: u64,
    },
}

/// One step: what was told, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// When, in ns.
    pub at_ns: u64,
    /// The inputs before the decision, in their order.
    pub inputs: Vec<Input>,
    /// The decision.
    pub decision: Decision,
}

/// Why a replay ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Another decision than the one that was recorded.
    #[error("step {step} at {at_ns} ns: {found:?} was decided, and {recorded:?} is recorded")]
    Differs {
        /// The step, from 0.
        step: usize,
        /// When, in ns.
        at_ns: u64,
        /// The recorded decision.
        recorded: Decision,
        /// The decision now.
        found: Decision,
    },
    /// The trace speaks of what is not there.
    #[error("step {step}: {source}")]
    Input {
        /// The step, from 0.
        step: usize,
        /// Why.
        source: DispatchError,
    },
}

/// Tells a dispatcher something.
///
/// # Errors
/// Where it speaks of what is not there.
pub fn tell(dispatcher: &mut Dispatcher, input: &Input) -> Result<(), DispatchError> {
    match input {
        Input::Add { inside } => dispatcher.add(*inside).map(drop),
        Input::Remove { vtm } => dispatcher.remove(*vtm),
        Input::Join { vtm, task } => dispatcher.join(*vtm, *task).map(drop),
        Input::Leave { vtm, job } => dispatcher.leave(*vtm, *job),
        Input::Ready { vtm, job, begun_ns } => dispatcher.ready(*vtm, *job, *begun_ns),
        Input::Blocked { vtm, job } => dispatcher.blocked(*vtm, *job),
        Input::Adopt { table, not_before_ns } => {
            dispatcher.adopt(table.clone(), *not_before_ns);
            Ok(())
        }
    }
}

/// Tells a dispatcher that is as the recorded one was at first all that the recorded one was told,
/// and compares the decisions.
///
/// # Errors
/// At the first that differs.
pub fn replay(dispatcher: &mut Dispatcher, trace: &[Step]) -> Result<(), ReplayError> {
    for (step, recorded) in trace.iter().enumerate() {
        for input in &recorded.inputs {
            tell(dispatcher, input).map_err(|source| ReplayError::Input { step, source })?;
        }
        let found = dispatcher.decide(recorded.at_ns);
        if found != recorded.decision {
            let (at_ns, recorded) = (recorded.at_ns, recorded.decision);
            return Err(ReplayError::Differs { step, at_ns, recorded, found });
        }
    }
    Ok(())
}
