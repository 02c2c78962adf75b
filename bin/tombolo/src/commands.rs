//! One module for each group of commands.

pub mod act;
pub mod adaptation;
mod bench;
mod check;
pub mod coordination;
mod copy;
mod daemon;
mod doctor;
pub mod endpoint;
pub mod events;
mod exec;
mod generate;
mod history;
pub mod image;
mod import;
pub mod link;
mod live;
pub mod logs;
mod look;
mod ninep;
pub mod node;
mod relocate;
pub mod reserve;
pub mod secret;
mod service_check;
mod service_move;
mod skeleton;
mod stats;
mod top;
mod trace;
mod up;
pub mod volume;

use crate::cli::{Cli, Command, PlaceArgs};
use ::admin::Act;
use ::admin::client::Client;
use ::admin::place::Place;
use std::process::ExitCode;
use terminal::Failure;

/// Runs a command to its end.
pub fn run(cli: Cli) -> ExitCode {
    let place = cli.place;
    let result = match cli.command {
        Command::Daemon(arguments) => daemon::run(&place, &arguments),
        Command::Up(arguments) => up::up(&place, &arguments),
        Command::History(arguments) => history::run(&place, &arguments),
        Command::Down(arguments) => up::down(&place, &arguments),
        Command::Restart(arguments) => act::run(&place, &arguments, Act::Restart),
        Command::Stop(arguments) => act::run(&place, &arguments.of, Act::Stop { at_once: arguments.at_once }),
        Command::Start(arguments) => act::run(&place, &arguments, Act::Start),
        Command::Kill(arguments) => act::run(&place, &arguments.of, Act::Kill { signal: arguments.signal }),
        Command::Cp(arguments) => copy::run(&place, &arguments),
        Command::Move(arguments) => relocate::run(&place, &arguments),
        Command::Events(arguments) => events::run(&place, &arguments),
        Command::Stats(arguments) => stats::run(&place, &arguments),
        Command::Top(arguments) => top::run(&place, &arguments),
        Command::Ps(arguments) => look::domains(&place, &arguments),
        Command::Exec(arguments) => exec::run(&place, &arguments),
        Command::Ninep(arguments) => ninep::run(&place, &arguments),
        Command::Logs(arguments) => logs::run(&place, &arguments),
        Command::Inspect(arguments) => look::inspect(&place, &arguments),
        Command::Node(command) => node::run(&place, &command),
        Command::Service(command) => look::service(&place, &command),
        Command::Endpoint(command) => endpoint::run(&place, &command),
        Command::Kv(command) => coordination::kv(&place, &command),
        Command::Sync(command) => coordination::sync(&place, &command),
        Command::Link(command) => link::run(&place, &command),
        Command::Volume(command) => volume::run(&place, &command),
        Command::Secret(command) => secret::run(&place, &command),
        Command::Reserve(command) => reserve::run(&place, &command),
        Command::Adaptation(command) => adaptation::run(&place, &command),
        Command::Adapt(arguments) => reserve::adapt(&place, &arguments),
        Command::Import(arguments) => import::run(&place, &arguments),
        Command::Check(arguments) => check::run(&place, &arguments),
        Command::Doctor(arguments) => doctor::run(&place, &arguments),
        Command::Trace(arguments) => trace::run(&place, &arguments),
        Command::Image(command) => image::run(&place, &command),
        Command::Bench(_read_again) => bench::run(),
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { folder } => generate::man(folder.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code)
        }
    }
}

/// The node that the command line means.
fn place(arguments: &PlaceArgs) -> Result<Place, Failure> {
    Place::new(&arguments.run_dir, &arguments.state_dir)
        .map_err(|e| Failure::new(format!("the working directory is gone: {e}")))
}

fn client(arguments: &PlaceArgs) -> Result<Client, Failure> {
    Ok(Client::new(place(arguments)?))
}

/// Waits for one answer of the daemon.
fn wait<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    Ok(runtime.block_on(work))
}
