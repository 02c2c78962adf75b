//! `tombolo daemon`.

use super::place;
use crate::cli::{DaemonArgs, PlaceArgs};
use node::daemon::{Config, Groups, Metrics, Tls, run as run_daemon};
use std::path::PathBuf;
use terminal::Failure;
use tracing_subscriber::EnvFilter;

/// Says what is logged, in the words of `tracing_subscriber`: `info`, `node=debug`.
pub const LOG_VARIABLE: &str = "TOMBOLO_LOG";

/// Runs the daemon until a signal ends it.
pub fn run(place_arguments: &PlaceArgs, arguments: &DaemonArgs) -> Result<(), Failure> {
    log(arguments.log_json)?;
    let files = arguments.metrics_certificate.clone().zip(arguments.metrics_key.clone());
    let tls =
        files.map(|(certificate, key)| Tls { certificate, key, clients: arguments.metrics_clients.clone() });
    let config = Config {
        place: place(place_arguments)?,
        program: program()?,
        metrics: arguments.metrics.map(|address| Metrics { address, tls }),
        groups: Groups { change: arguments.change_group.clone(), look: arguments.look_group.clone() },
        detached: arguments.detached,
    };
    run_daemon(config).map_err(|error| Failure::new(error.to_string()))
}

/// This very binary, by its path.
pub fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::new(format!("can't find the program's own file: {e}")))
}

fn log(json: bool) -> Result<(), Failure> {
    let filter = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into());
    let filter = match std::env::var(LOG_VARIABLE) {
        Ok(text) => filter.parse(&text).map_err(|e| {
            Failure::misuse(format!("{LOG_VARIABLE}={text} is not understood: {e}"))
                .help("for example: info, or node=debug")
        })?,
        Err(_) => filter.parse_lossy(""),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(node::daemon::log_line);
    if json {
        log.json().init();
    } else {
        log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
    Ok(())
}
