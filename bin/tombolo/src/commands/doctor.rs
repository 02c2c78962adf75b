//! `tombolo doctor`: what this machine has and lacks.

use super::{daemon::program, place};
use crate::cli::{DoctorArgs, PlaceArgs};
use node::doctor::{Finding, State, can_run, examine};
use terminal::{FAILED, Failure, Paint, print, print_json};

/// Looks at the machine and prints what was found.
pub fn run(arguments: &PlaceArgs, options: &DoctorArgs) -> Result<(), Failure> {
    let findings = examine(&place(arguments)?, program()?);
    if options.json {
        print_json(&findings)?;
    } else {
        print(&report(&findings, Paint::of(&std::io::stdout())))?;
    }
    if can_run(&findings) { Ok(()) } else { Err(Failure { code: FAILED, ..Failure::silent() }) }
}

/// One paragraph for each area, one line for each finding, and below it what to do.
fn report(findings: &[Finding], paint: Paint) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut area = "";
    for finding in findings {
        if finding.area != area {
            let gap = if area.is_empty() { "" } else { "\n" };
            area = finding.area;
            text += &format!("{gap}{}{area}{}\n", paint.bold, paint.end);
        }
        let (colour, word) = match finding.state {
            State::Works => (paint.green, "works"),
            State::Limited => (paint.yellow, "limited"),
            State::Missing => (paint.red, "missing"),
        };
        let found = &finding.found;
        text += &format!("  {colour}{word:7}{} {:width$}  {found}\n", paint.end, finding.name);
        if let Some(advice) = &finding.advice {
            text += &format!("          {}{advice}{}\n", paint.dim, paint.end);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_each_area_once_and_puts_advice_below() {
        let finding = |area, name, state, advice: Option<&str>| Finding {
            area,
            name,
            state,
            found: "evidence".into(),
            advice: advice.map(str::to_owned),
        };
        let findings = [
            finding("containers", "runc", State::Works, None),
            finding("guests", "QEMU", State::Missing, Some("install it")),
            finding("guests", "KVM", State::Limited, Some("emulated")),
        ];
        assert_eq!(
            report(&findings, Paint::default()),
            "containers\n  works   runc  evidence\n\nguests\n  missing QEMU  evidence\n          install it\n  \
             limited KVM   evidence\n          emulated\n"
        );
    }
}
