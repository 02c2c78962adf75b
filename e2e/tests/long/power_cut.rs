//! Images are on the disk before they are trusted: a guest's power is cut after an import, while an
//! image is unpacked, and when it has its name.

use e2e::power_cut::run;

#[test]
fn an_image_is_whole_or_not_there_after_each_power_cut() {
    let report = match run() {
        Ok(report) => report,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let failed: Vec<_> = report.checks.iter().filter(|(_, result)| result.is_err()).collect();
    let cuts: Vec<&String> = report.notes.iter().filter(|note| note.starts_with("cut ")).collect();
    assert!(
        failed.is_empty() && cuts.len() == 3 && report.done == Some(report.checks.len()),
        "{failed:?} after {cuts:?}, of {:?} checks {:?} were made\n--- the console of the last boot\n{}",
        report.done,
        report.checks.keys(),
        report.console
    );
}
