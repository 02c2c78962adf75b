//! Scenarios of `tombolo bench`.

use crate::product;
use arguments::BenchArgs;
use bench::choice::Choice;
use bench::{Arguments, BenchError};
use std::io::{IsTerminal, stderr, stdout};
use terminal::{Failure, print, with_causes};

/// Runs a scenario and prints its report.
pub fn run(arguments: &BenchArgs) -> Result<(), Failure> {
    let Some(scenario) = scenario(arguments) else {
        let names: String =
            bench::scenarios().iter().map(|scenario| format!("{}\n", scenario.name())).collect();
        return print(&names);
    };
    let asked = Arguments {
        scenario,
        quick: arguments.quick,
        choice: Choice { cases: arguments.case.clone(), arms: arguments.arm.clone() },
        domains: arguments.domains.clone(),
        launches: arguments.launches,
        json: arguments.json,
        record: arguments.record.clone(),
        binary: product()?,
    };
    let shown = stderr().is_terminal();
    let mut progress = |text: &str| {
        if shown {
            eprintln!("{text}");
        }
    };
    match bench::run(&asked, &mut stdout().lock(), &mut progress) {
        Ok(_promises) => Ok(()),
        Err(error @ (BenchError::Unknown { .. } | BenchError::Choice { .. } | BenchError::Whole(_))) => {
            Err(Failure::misuse(error.to_string()))
        }
        Err(error) => Err(Failure::new(with_causes(&error))),
    }
}

/// The scenario by its whole name, as the list has it.
fn scenario(arguments: &BenchArgs) -> Option<String> {
    let name = arguments.scenario.as_ref()?;
    Some(match (&arguments.between, &arguments.kind, &arguments.part) {
        (Some(ends), _, _) => format!("{name} --between {ends}"),
        (_, Some(kind), _) => format!("{name} --kind {kind}"),
        (_, _, Some(part)) => format!("{name} --part {part}"),
        _ => name.clone(),
    })
}
