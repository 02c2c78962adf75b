//! The command line of `tombolo bench`. The command `tombolo` has its help, its completions and its
//! man pages from here; the program behind it, `tombolo-bench`, reads the same words again.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Plans: run, reported, compared, printed.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure a plan: any subjects, bare and virtualized, with honest statistics and a report of
    /// one page
    #[command(after_help = "Examples:
  tombolo bench run quick --out results
  tombolo bench run plan.toml --out results      goes on where it was interrupted

Results are kept line by line in OUT/results.jsonl; Ctrl-C ends the run after the repetition under way and writes the
report of what there is. Exit codes: 0 complete, 1 failed or interrupted, 2 misuse.")]
    Run {
        /// A plan's file, or a preset: quick, papers, full
        #[arg(value_name = "PLAN")]
        plan: PathBuf,
        /// Where results and report go; results of the same plan are continued
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Write the report of a run's results again
    Report {
        /// The directory of a run
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Hold a run's results against those of an earlier one, as a gate for regressions
    #[command(after_help = "Examples:
  tombolo bench compare before after
  tombolo bench compare before after --threshold 10 > comment.md

Exit codes: 0 nothing became slower as far as the launches tell, 1 something did, 2 the two can't be compared.")]
    Compare {
        /// The earlier run: the directory of a plan's results, or a file that `--record` wrote
        #[arg(value_name = "BEFORE")]
        before: PathBuf,
        /// The later run, of the same kind
        #[arg(value_name = "AFTER")]
        after: PathBuf,
        /// Medians that grew by less than so many percent are no regressions
        #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000))]
        threshold: u32,
        /// Print JSON, one object for each arm of a cell, in place of the Markdown table
        #[arg(long)]
        json: bool,
    },
    /// Print a preset, to make a plan of it; without a name, what presets and subjects there are
    Preset {
        /// The preset: quick, papers, full
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
}

/// A scenario, or a plan.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// A plan.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// The scenario; without one, the scenarios are listed
    pub scenario: Option<String>,
    /// Short: to see that it works, not to quote
    #[arg(long)]
    pub quick: bool,
    /// The two ends, where one or both are virtual machines (`channel`)
    #[arg(long, value_name = "ENDS", value_parser = ["vm,host", "vm,vm"])]
    pub between: Option<String>,
    /// The kind of the domains (`directory`; default: containers)
    #[arg(long, value_name = "KIND", value_parser = ["vm"], conflicts_with = "between")]
    pub kind: Option<String>,
    /// A part by itself (`reserve`)
    #[arg(long, value_name = "PART", value_parser = ["table"], conflicts_with_all = ["between", "kind"])]
    pub part: Option<String>,
    /// Numbers of domains to measure with (`directory`)
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    pub domains: Vec<usize>,
    /// Only conditions that have these words (`channel`, `ipc`, `link`): 'stream,message=64 B'. May
    /// be repeated
    #[arg(long, value_name = "WORD,...", conflicts_with_all = ["between", "kind", "part"])]
    pub case: Vec<String>,
    /// Only this arm, by its name in the tables (`channel`, `ipc`, `link`). May be repeated
    #[arg(long, value_name = "NAME", conflicts_with_all = ["between", "kind", "part"])]
    pub arm: Vec<String>,
    /// How often everything is started afresh
    #[arg(long, value_name = "N")]
    pub launches: Option<usize>,
    /// Also write the JSON lines to this file, for `tombolo bench compare`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Print JSON lines: raw results, then one line for each promise
    #[arg(long)]
    pub json: bool,
}
