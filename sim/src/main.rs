//! Replays a seed, and tells its story.

use std::process::ExitCode;

const USAGE: &str =
    "usage: sim --seed N [--quiet]: replays the world of a seed, and tells what happened in it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--seed", seed] | ["--seed", seed, "--quiet"] => seed.parse::<u64>().ok(),
        _ => None,
    };
    let Some(seed) = seed else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let ended = sim::cluster::run(seed, None, arguments.len() == 2);
    for line in &ended.story {
        println!("{line}");
    }
    println!("seed {seed}: {:?}", ended.came);
    match ended.failure {
        None => ExitCode::SUCCESS,
        Some(why) => {
            println!("seed {seed} failed: {why}");
            ExitCode::FAILURE
        }
    }
}
