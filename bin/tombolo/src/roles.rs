//! The roles that run once for each domain: chosen by the first word, before the command line is
//! parsed, without an event loop.

mod agent;
mod checker;
mod frontend;
mod machine;
mod probe;
mod proxy;
mod relay;
mod replica;
mod server;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use terminal::with_causes as said;

pub use checker::{CHECKER, CheckOrder, Finding, Report};
pub use probe::{Arm, Calls, Order, PROBE, Probe};

/// Runs a role, if the first word is one.
pub fn run(role: &OsStr, arguments: std::env::ArgsOs) -> Option<ExitCode> {
    match role.to_str()? {
        "agent" => Some(finish("agent", agent::run())),
        ::agent::ENTER_ROLE => Some(ExitCode::from(u8::try_from(::agent::enter_main()).unwrap_or(u8::MAX))),
        "frontend" => Some(finish("frontend", frontend::run())),
        ::machine::KVM_ROLE => Some(ExitCode::from(::machine::kvm_main())),
        "machine" => Some(finish_with("machine", machine::run(arguments))),
        storage::ROLE => Some(ExitCode::from(storage::role_main())),
        "proxy" => Some(finish("proxy", proxy::run())),
        "replica" => Some(finish("replica", replica::run())),
        "relay" => Some(finish("relay", relay::run(arguments))),
        "server" => Some(finish("server", server::run())),
        node::SERVER_ROLE => {
            Some(finish_with("internal-etcd", node::server_main(arguments).map(|never| match never {})))
        }
        node::MARKED_ROLE => Some(finish("internal-marked", node::marked_main(arguments))),
        node::PIPES_ROLE => Some(finish("pipes", node::pipes_main())),
        PROBE => Some(finish("probe", probe::run(arguments))),
        CHECKER => Some(finish("service check", checker::run(arguments))),
        checker::VICTIM => Some(finish("service check", checker::victim(arguments))),
        _ => of_domain(role, arguments),
    }
}

/// The roles of the machinery of domains and of reservations.
fn of_domain(role: &OsStr, arguments: std::env::ArgsOs) -> Option<ExitCode> {
    let words: Vec<OsString> = std::iter::once(role.to_owned()).chain(arguments).collect();
    let code = domain::role_main(&words).or_else(|| enforce::role_main(&words))?;
    Some(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

fn finish(role: &str, result: Result<(), String>) -> ExitCode {
    finish_with(role, result.map(|()| ExitCode::SUCCESS))
}

fn finish_with(role: &str, result: Result<ExitCode, String>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(why) => {
            eprintln!("tombolo {role}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Logs to the standard error, as plainly as possible: these roles must stay small.
fn log() {
    let level = std::env::var("TOMBOLO_LOG").ok().and_then(|text| text.parse().ok());
    let level: tracing::Level = level.unwrap_or(tracing::Level::INFO);
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .compact()
        .init();
}
