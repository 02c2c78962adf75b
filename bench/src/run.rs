//! All scenarios, and how one is run from the command line.

use crate::environment::Environment;
use crate::report;
use crate::scenario::{Arguments, BenchError, Scenario, Summary};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// All scenarios.
#[must_use]
pub fn scenarios() -> Vec<Box<dyn Scenario>> {
    use crate::channel::between::{Between, plan::Ends};
    vec![
        Box::new(crate::directory::Directory),
        Box::new(crate::directory::guest::Guest),
        Box::new(crate::channel::Channel),
        Box::new(Between(Ends::VmHost)),
        Box::new(Between(Ends::VmVm)),
        Box::new(crate::ipc::Ipc),
        Box::new(crate::links::Link),
        Box::new(crate::reserve::Reserve),
        Box::new(crate::reserve::Tables),
        Box::new(crate::idle::Idle),
        Box::new(crate::sockets::Sockets),
        Box::new(crate::services::Services),
    ]
}

/// Runs what was asked for and writes the report to `out`.
///
/// # Errors
/// [`BenchError`] where it can't be run; a promise that does not hold is no error.
pub fn run(
    arguments: &Arguments,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(&str),
) -> Result<Summary, BenchError> {
    let all = scenarios();
    let scenario = all.iter().find(|scenario| scenario.name() == arguments.scenario).ok_or_else(|| {
        let known = all.iter().map(|scenario| scenario.name()).collect::<Vec<_>>().join(", ");
        BenchError::Unknown { asked: arguments.scenario.clone(), known }
    })?;
    match scenario.choices() {
        Some(choices) => arguments.choice.check(&choices)?,
        None if arguments.choice.is_all() => {}
        None => return Err(BenchError::Whole(scenario.name())),
    }
    let mut recording = arguments.record.as_ref().map(create).transpose()?;
    let environment = Environment::read(scenario.peers());
    let results = scenario.measure(arguments, progress)?;
    let verdicts = scenario.verdicts(&results);
    let write = if arguments.json { report::json } else { report::text };
    write(out, scenario.as_ref(), &environment, &results, &verdicts)
        .map_err(BenchError::io("writing the report"))?;
    if let Some(recording) = &mut recording {
        report::json(recording, scenario.as_ref(), &environment, &results, &verdicts)
            .and_then(|()| recording.flush())
            .map_err(BenchError::io("writing the recording"))?;
    }
    Ok(Summary { verdicts })
}

/// Made before the minutes that a run takes, so that a wrong path is told at once.
fn create(path: &PathBuf) -> Result<io::BufWriter<File>, BenchError> {
    let doing = format!("making {}", path.display());
    File::create(path).map(io::BufWriter::new).map_err(BenchError::io(doing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::Choice;

    #[test]
    fn an_unknown_scenario_is_told_with_those_that_there_are() {
        let arguments = Arguments {
            scenario: "directroy".into(),
            quick: true,
            choice: Choice::default(),
            domains: vec![],
            launches: None,
            json: false,
            record: None,
            binary: "/bin/false".into(),
        };
        let error = run(&arguments, &mut Vec::new(), &mut |_| {}).expect_err("there is none");
        assert!(error.to_string().contains("`directroy`") && error.to_string().contains("directory"));
    }
}
