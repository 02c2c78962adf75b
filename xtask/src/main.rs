//! Chores of the repository that want a program: `cargo xtask tidy` checks what the compiler does
//! not, `cargo xtask test` runs every test and counts honestly, and `cargo xtask figures` keeps
//! what benches measured.

mod figures;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask tidy              the rules of the house: dependencies, unsafe, spec pages, documents
       cargo xtask figures FILE...   adds what `tombolo bench --record FILE` wrote to docs/figures.tsv and docs/performance.md
       cargo xtask product           builds what tests start (tombolo, its libraries) into target/product
       cargo xtask test check        formatting, lints, tidy, unit tests
       cargo xtask test fuzz         the fuzz targets, for some seconds each (TOMBOLO_FUZZ_SECONDS)
       cargo xtask test xen          channels between domains of a real Xen, under emulation
       cargo xtask test tipc         the suite of links over TIPC, in a guest under emulation; some minutes
       cargo xtask test everything   all that, the model checker, every other test, the end-to-end tests
       cargo xtask test affected --since REV   the tests that a change since REV can have touched
       cargo xtask test long         what takes too long for that: Xen, TIPC, old kernels, long fuzzing
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => tidy(),
        ["figures", recordings @ ..] if !recordings.is_empty() => add_figures(recordings),
        ["product"] => test::run(&root(), test::Extent::Product),
        ["test", "check"] => test::run(&root(), test::Extent::Check),
        ["test", "fuzz"] => test::run(&root(), test::Extent::Fuzz),
        ["test", "xen"] => test::run(&root(), test::Extent::Xen),
        ["test", "tipc"] => test::run(&root(), test::Extent::Tipc),
        ["test", "long"] => test::run(&root(), test::Extent::Long),
        ["test", "affected", "--since", since] => {
            test::run(&root(), test::Extent::Affected((*since).to_owned()))
        }
        ["test", "everything"] => test::run(&root(), test::Extent::Everything),
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn add_figures(recordings: &[&str]) -> ExitCode {
    match figures::add(&root(), recordings) {
        Ok(added) => {
            println!("figures: {added} more");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("figures: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tidy() -> ExitCode {
    // Old figures are told, and measured anew before they are quoted; they are no fault of a
    // change.
    match figures::stale(&root()) {
        Ok(said) => said.iter().for_each(|line| println!("note: {line}")),
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::FAILURE;
        }
    }
    match tidy::check_repository(&root()) {
        Ok(violations) if violations.is_empty() => ExitCode::SUCCESS,
        Ok(violations) => {
            for violation in &violations {
                println!("{violation}");
            }
            println!("tidy: {} to mend", violations.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace: the parent of this package's.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Where cargo builds.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}
