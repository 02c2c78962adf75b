//! `tombolo endpoint`: looking at endpoints, and being one for a moment.

pub mod from_node;
mod look;
mod migrate;
mod payload;
mod print;
mod talk;

use crate::cli::PlaceArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use terminal::Failure;

/// Above the options by which `send`, `call` and `receive` say who they are.
const WHO: &str = "Who speaks";

/// Longest time that may be said, in seconds: a year. What waits longer waits for ever.
const MAX_S: u64 = 365 * 86_400;

#[derive(Debug, Subcommand)]
pub enum EndpointCommand {
    /// List the endpoints: those that the files name, bound or not, and those without a name
    #[command(after_help = "Examples:
  tombolo endpoint ls
  tombolo endpoint ls shop
  tombolo endpoint ls --json | jq -r '.[] | select(.bound | not) | .endpoint'")]
    Ls(LsArgs),
    /// Show one endpoint: who may call it and whom it may call, its peers, buffers and grants, and
    /// the limits
    #[command(after_help = "Examples:
  tombolo endpoint show planner
  tombolo endpoint show shop/planner     where several distributed containers have a `planner`
  tombolo endpoint show shop/3.1         by address: slot.generation")]
    Show(ShowArgs),
    /// Move an endpoint that is in use to a program of another domain, which is a backup of it
    #[command(after_help = "Examples:
  tombolo endpoint migrate counter --to two
  tombolo endpoint migrate shop/counter --to two --timeout 30s
  tombolo endpoint migrate counter --to two --no-wait        it moves when its program receives next
  tombolo endpoint migrate counter --roll-back               unless that was taken back before

Its callers wait for a moment; nothing that was sent to it is lost, doubled or reordered. The domain has to be among the
endpoint's `backups`, with a program that stands by (docs/movement.md). An endpoint that can't move stays where it is,
and this says why. Where its program does not receive within the time, the order is taken back.")]
    Migrate(MigrateArgs),
    /// Send a message, and wait until it is received
    #[command(after_help = "Examples, in a domain (where the program is /run/tombolo/tombolo):
  tombolo endpoint send planner 'go left'
  tombolo endpoint send planner < position.bin
  dmesg --follow | tombolo endpoint send journal --lines
  tombolo endpoint send planner --notify 1

Examples, on the node:
  tombolo endpoint send planner 'go left' --domain shop/desk
  tombolo endpoint send planner 'go left' --as camera     from the domain that has `camera`

The topology file says who may send: `allow` of the endpoint that is sent to, and `calls` of the one that sends.")]
    Send(SendArgs),
    /// Send a request, wait for the reply, and print it
    #[command(after_help = "Examples, in a domain (where the program is /run/tombolo/tombolo):
  tombolo endpoint call planner status
  tombolo endpoint call planner --wait 30s status      as soon as there is a planner
  tombolo endpoint call planner --json status | jq .text

Examples, on the node:
  tombolo endpoint call planner status --domain shop/desk

A reply that is text ends with a line end; anything else is printed as it came, and as hexadecimal on a terminal.
`--raw` prints every byte as it came, and no other.")]
    Call(CallArgs),
    /// Be the endpoint NAME: print what it is sent
    #[command(after_help = "Examples, in the domain that the file names for it:
  tombolo endpoint receive planner                      one message
  tombolo endpoint receive planner --follow             until it is interrupted
  tombolo endpoint receive planner --reply ok           who asks is answered `ok`
  tombolo endpoint receive planner --echo --follow      who asks gets the request back
  tombolo endpoint receive planner --from camera --timeout 5s

Examples, on the node (the domain is known from the file):
  tombolo endpoint receive shop/planner --follow

A name is bound by one program at a time. Who asks and is not answered waits until its time is over, or until this ends.
Each line says what came and from whom. For programs there are `--json`, and `--raw`: the bytes alone.")]
    Receive(ReceiveArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Of this distributed container only
    #[arg(value_name = "DC")]
    pub dc: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// NAME, or DC/NAME; or an address, as 3.1 or DC/3.1
    pub endpoint: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// NAME, or DC/NAME
    pub endpoint: String,
    /// The domain whose program takes it
    #[arg(long, value_name = "DOMAIN", required_unless_present = "roll_back")]
    pub to: Option<String>,
    /// How long its program may take to receive
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub timeout: Duration,
    /// Give the order, and do not wait until it has moved
    #[arg(long)]
    pub no_wait: bool,
    /// Take back an order that was not followed yet
    #[arg(long, conflicts_with_all = ["to", "no_wait"])]
    pub roll_back: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The endpoint that speaks, and its domain.
#[derive(Debug, Clone, Default, Args)]
pub struct WhoArgs {
    /// From inside this domain: NAME, or DC/NAME. Not needed in a domain
    #[arg(long, value_name = "DOMAIN", help_heading = WHO)]
    pub domain: Option<String>,
    /// As the endpoint of this name, which must be free (default: one without a name)
    #[arg(long = "as", value_name = "NAME", help_heading = WHO)]
    pub name: Option<String>,
}

/// The payload.
#[derive(Debug, Clone, Default, Args)]
pub struct PayloadArgs {
    /// The message (default: the standard input)
    #[arg(value_name = "TEXT", conflicts_with_all = ["file", "lines"])]
    pub text: Option<String>,
    /// Take it from this file; `-` is the standard input
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Each line of the input is a message of its own, without its line end
    #[arg(long)]
    pub lines: bool,
    /// The number that says what it means: the receiver's business
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub tag: u32,
    /// Wait so long until there is somebody of that name (default: not at all)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub wait: Option<Duration>,
    /// How long it may take: 200ms, 10s, 5m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct SendArgs {
    /// The endpoint: its name, or its address as 3.1
    #[arg(value_name = "ENDPOINT")]
    pub to: String,
    #[command(flatten)]
    pub payload: PayloadArgs,
    /// Go on when it is on its way, whether or not it is received
    #[arg(long)]
    pub buffered: bool,
    /// Set these bits at the other one instead of sending a message; it never waits
    #[arg(long, value_name = "BITS", value_parser = bits, conflicts_with_all = ["text", "file", "lines", "buffered", "tag"])]
    pub notify: Option<u64>,
    #[command(flatten)]
    pub who: WhoArgs,
}

#[derive(Debug, Args)]
pub struct CallArgs {
    /// The endpoint: its name, or its address as 3.1
    #[arg(value_name = "ENDPOINT")]
    pub to: String,
    #[command(flatten)]
    pub payload: PayloadArgs,
    /// Most bytes that the reply may have
    #[arg(long, value_name = "BYTES", default_value_t = TAKES_BYTES)]
    pub takes: usize,
    /// Print every byte of the reply as it came, and no other
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    /// Print JSON: one object a line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub who: WhoArgs,
}

/// The most bytes of a reply where nothing else is said: as much as the rings of the default size
/// carry, in bytes.
const TAKES_BYTES: usize = wire::ipc::payload_bytes_max(256 << 10);

#[derive(Debug, Args)]
pub struct ReceiveArgs {
    /// The name to be bound to: NAME; on the node also DC/NAME
    #[arg(value_name = "NAME")]
    pub name: String,
    /// From this endpoint only; waits until it is there
    #[arg(long, value_name = "ENDPOINT")]
    pub from: Option<String>,
    /// End after so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Go on until it is interrupted
    #[arg(short, long, conflicts_with = "count")]
    pub follow: bool,
    /// Answer requests with this
    #[arg(long, value_name = "TEXT")]
    pub reply: Option<String>,
    /// Answer requests with what they ask
    #[arg(long, conflicts_with = "reply")]
    pub echo: bool,
    /// How long to wait for each (default: for ever)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Print the bytes as they came, and nothing else
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    /// Print JSON: one object a line
    #[arg(long)]
    pub json: bool,
    /// In this domain: NAME, or DC/NAME (default: where the file places the endpoint)
    #[arg(long, value_name = "DOMAIN", help_heading = WHO)]
    pub domain: Option<String>,
}

/// `tombolo endpoint ...`.
pub fn run(place: &PlaceArgs, command: &EndpointCommand) -> Result<(), Failure> {
    match command {
        EndpointCommand::Ls(arguments) => look::list(place, arguments),
        EndpointCommand::Show(arguments) => look::show(place, arguments),
        EndpointCommand::Migrate(arguments) => migrate::run(place, arguments),
        EndpointCommand::Send(arguments) => match from_node::where_to(&arguments.who.domain) {
            from_node::Where::Here => talk::send(arguments),
            from_node::Where::Node => from_node::send(place, arguments),
        },
        EndpointCommand::Call(arguments) => match from_node::where_to(&arguments.who.domain) {
            from_node::Where::Here => talk::call(arguments),
            from_node::Where::Node => from_node::call(place, arguments),
        },
        EndpointCommand::Receive(arguments) => match from_node::where_to(&arguments.domain) {
            from_node::Where::Here => talk::receive(arguments),
            from_node::Where::Node => from_node::receive(place, arguments),
        },
    }
}

/// A time as the topology file writes it: a whole number and a unit.
fn duration(text: &str) -> Result<Duration, String> {
    const HOW: &str = "a time is a whole number and ms, s, m or h, as 200ms or 10s";
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| HOW.to_owned())?;
    let milliseconds = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return Err(HOW.to_owned()),
    };
    let longest = MAX_S * 1_000;
    milliseconds
        .filter(|ms| *ms <= longest)
        .map(Duration::from_millis)
        .ok_or_else(|| "a year is the longest".to_owned())
}

/// Bits of a notice: a number, in decimal or as 0x...
fn bits(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(0) => Err("no bit is set in 0".into()),
        Ok(bits) => Ok(bits),
        Err(_) => Err("bits are a number of 64 bits, as 1 or 0x80".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_the_file() {
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for bad in ["", "s", "5", "5 s", "1.5s", "-1s", "99999999999999999999s"] {
            assert!(duration(bad).unwrap_err().contains("whole number"), "{bad}");
        }
        assert!(duration("18446744073709551615h").unwrap_err().contains("longest"));
        assert!(duration("9000h").unwrap_err().contains("longest"));
    }

    #[test]
    fn bits_are_a_number_that_is_not_0() {
        assert_eq!((bits("5"), bits("0x80")), (Ok(5), Ok(128)));
        for bad in ["0", "0x0", "", "0x", "x", "-1", "18446744073709551616"] {
            bits(bad).unwrap_err();
        }
    }
}
