//! `tombolo events ls` and the like: event channels of the node's services.

use super::gateway::GatewayArgs;
use super::inside::{self, WhichArgs};
use crate::cli::PlaceArgs;
use crate::commands::endpoint::from_node::{Input, Where, become_command, cant_run, command_in, where_to};
use crate::commands::look::encoded;
use crate::commands::{client, wait};
use admin::ServiceRow;
use admin::client::Client;
use clap::{Args, Subcommand};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use std::io::stdout;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;
use terminal::{FAILED, Failure, bytes, print, print_json, print_table};

#[derive(Debug, Subcommand)]
pub enum ChannelCommand {
    /// List the event channels of the node's services
    #[command(after_help = "Examples:
  tombolo events ls
  tombolo events ls --json | jq -r '.[] | select(.subscribers == 0) | .channel'")]
    Ls(LsArgs),
    /// Show one channel: its events, its subscriptions and what they have lost, its filters and
    /// what they cost
    #[command(after_help = "Examples:
  tombolo events show alarms
  tombolo events show lab/events/alarms --json")]
    Show(ShowArgs),
    /// Publish an event, or each line of the input
    #[command(
        name = "pub",
        after_help = "Examples, on the node:
  tombolo events pub alarms '{\"temperature\": 31}' --domain sensor
  dmesg --follow | tombolo events pub kernel --lines --domain sensor

In a domain that mounts the service, `--domain` is not needed, and `echo fire > /srv/events/alarms/pub` does the same."
    )]
    Publish(PublishArgs),
    /// Subscribe, and print what comes
    #[command(
        name = "sub",
        after_help = "Examples, on the node:
  tombolo events sub alarms --domain panel
  tombolo events sub alarms --domain panel --filter 'temperature > 30 && zone == \"b\"'
  tombolo events sub alarms --domain panel --module hot.wasm
  tombolo events sub position --overflow latest --count 1 --domain panel
  tombolo events sub alarms --replay all --json --domain panel | jq .text

--overflow says what happens when this is slower than the publishers: `drop` loses the oldest, `latest` gets the newest
only, `wait MS` has publishers wait, where the topology file lets the channel do that. Lost events are said."
    )]
    Subscribe(SubscribeArgs),
    /// Show rates of all channels, anew each second
    #[command(after_help = "Examples:
  tombolo events top
  tombolo events top --once --json")]
    Top(TopArgs),
    /// Write what comes to a file, for `replay`
    #[command(after_help = "Examples, on the node:
  tombolo events record alarms day.jsonl --domain panel
  tombolo events record alarms day.jsonl --replay all --count 1000 --domain panel

One JSON object a line: `published_ns`, `sequence`, `publisher`, `number`, `lost`, and `text` (or `hex`, if it is no UTF-8).")]
    Record(RecordArgs),
    /// Publish what was recorded, in the time that it took
    #[command(after_help = "Examples, on the node:
  tombolo events replay alarms day.jsonl --domain sensor
  tombolo events replay alarms day.jsonl --speed 10 --domain sensor      ten times as fast
  tombolo events replay alarms day.jsonl --speed 0 --domain sensor       without a pause")]
    Replay(ReplayArgs),
    /// Carry events to and from a broker of MQTT, or programs that speak DDS: the command of a
    /// domain
    #[command(after_help = "Examples, in the topology file:
  command = [\"/run/tombolo/tombolo\", \"events\", \"gateway\", \"--mqtt\", \"127.0.0.1:1883\",
             \"--out\", \"alarms=plant/alarms\", \"--filter\", \"alarms=temperature > 30\",
             \"--in\", \"plant/+/orders=orders\"]
  command = [\"/run/tombolo/tombolo\", \"events\", \"gateway\", \"--dds\", \"0\",
             \"--out\", \"alarms=Alarms\", \"--qos\", \"Alarms=durability=transient-local,history=8\",
             \"--in\", \"Orders=orders\"]

A channel with a `wait` is reliable: its messages are acknowledged (QoS 1, or reliable). Others are sent once (QoS 0, or best effort).")]
    Gateway(GatewayArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The channel: NAME, SERVICE/NAME or DC/SERVICE/NAME
    pub channel: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print once, also on a terminal
    #[arg(long)]
    pub once: bool,
    /// Print JSON, once
    #[arg(long)]
    pub json: bool,
}

/// The channel, and the domain that asks.
#[derive(Debug, Clone, Args)]
pub struct OfArgs {
    /// The channel: NAME, or SERVICE/NAME
    pub channel: String,
    /// From inside this domain, which mounts the service: NAME, or DC/NAME. Not needed in a domain
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
}

#[derive(Debug, Args)]
pub struct PublishArgs {
    #[command(flatten)]
    pub of: OfArgs,
    /// The event (default: what comes on the standard input)
    #[arg(value_name = "TEXT", conflicts_with = "lines")]
    pub text: Option<String>,
    /// Each line of the input is an event of its own, without its line end
    #[arg(long)]
    pub lines: bool,
}

#[derive(Debug, Args)]
pub struct SubscribeArgs {
    #[command(flatten)]
    pub of: OfArgs,
    #[command(flatten)]
    pub which: WhichArgs,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    pub of: OfArgs,
    /// The file, which is made anew; `-` is the standard output
    pub file: PathBuf,
    #[command(flatten)]
    pub which: WhichArgs,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    pub of: OfArgs,
    /// The file; `-` is the standard input
    pub file: PathBuf,
    /// How much faster than it was; 0: without a pause
    #[arg(long, default_value_t = 1.0, value_parser = speed)]
    pub speed: f64,
}

fn speed(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|speed: &f64| speed.is_finite() && *speed >= 0.0)
        .ok_or_else(|| "a number from 0 on".into())
}

/// Does what was asked for.
pub fn run(place: &PlaceArgs, command: &ChannelCommand) -> Result<(), Failure> {
    match command {
        ChannelCommand::Ls(arguments) => list(place, arguments),
        ChannelCommand::Show(arguments) => show(place, arguments),
        ChannelCommand::Top(arguments) => top(place, arguments),
        ChannelCommand::Publish(arguments) => publish(place, arguments),
        ChannelCommand::Subscribe(arguments) => subscribe(place, arguments),
        ChannelCommand::Record(arguments) => record(place, arguments),
        ChannelCommand::Replay(arguments) => replay(place, arguments),
        ChannelCommand::Gateway(arguments) => super::gateway::run(arguments),
    }
}

/// The channels of all services of the node, each with the names of its container and its service.
/// Of very many a service describes the first; the number of the others is the second value.
fn channels(client: &Client) -> Result<(Vec<Value>, u64), Failure> {
    let rows: Vec<ServiceRow> = wait(client.get("services"))??;
    let (mut channels, mut left_out) = (Vec::new(), 0);
    for row in rows.iter().filter(|row| row.kind == wire::events::KIND) {
        let tree: Value =
            wait(client.get(&format!("services/{}", encoded(&format!("{}/{}", row.dc, row.service)))))??;
        left_out += tree["state"]["left_out"].as_u64().unwrap_or(0);
        for channel in tree["state"]["channels"].as_array().into_iter().flatten() {
            let mut channel = channel.clone();
            (channel["dc"], channel["service"]) = (json!(row.dc), json!(row.service));
            channels.push(channel);
        }
    }
    Ok((channels, left_out))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn list(place: &PlaceArgs, arguments: &LsArgs) -> Result<(), Failure> {
    let (channels, left_out) = channels(&client(place)?)?;
    if left_out > 0 {
        eprintln!("{left_out} more channels are not shown");
    }
    if arguments.json {
        return print_json(&channels);
    }
    let lost = |row: &Value| -> u64 {
        row["subscriptions"].as_array().into_iter().flatten().filter_map(|it| it["lost"].as_u64()).sum()
    };
    let rows: Vec<Vec<String>> = channels
        .iter()
        .map(|row| {
            let size = |key: &str| row[key].as_u64().map_or_else(|| "-".into(), bytes);
            vec![
                text(&row["dc"]),
                text(&row["service"]),
                text(&row["channel"]),
                text(&row["made_by"]),
                text(&row["publishers"]),
                text(&row["subscribers"]),
                row["next"].as_u64().unwrap_or(1).saturating_sub(1).to_string(),
                lost(row).to_string(),
                format!("{} of {}", size("used_bytes"), size("buffer_bytes")),
            ]
        })
        .collect();
    print_table(
        &["DC", "SERVICE", "CHANNEL", "MADE BY", "PUBLISHERS", "SUBSCRIBERS", "EVENTS", "LOST", "BUFFER"],
        &rows,
    )
}

fn show(place: &PlaceArgs, arguments: &ShowArgs) -> Result<(), Failure> {
    let (all, left_out) = channels(&client(place)?)?;
    let full =
        |row: &Value| format!("{}/{}/{}", text(&row["dc"]), text(&row["service"]), text(&row["channel"]));
    let is_it = |row: &&Value| {
        let (full, wanted) = (full(row), arguments.channel.as_str());
        full == wanted || full.ends_with(&format!("/{wanted}"))
    };
    let found: Vec<&Value> = all.iter().filter(is_it).collect();
    match found.as_slice() {
        [row] if arguments.json => print_json(row),
        [row] => print(&crate::commands::look::indented(row)),
        [] if left_out > 0 => Err(Failure::new(format!(
            "{:?} is none of the {} event channels that are shown; {left_out} are not",
            arguments.channel,
            all.len()
        ))
        .help("`cat /srv/SERVICE/CHANNEL/stats` in a domain describes any channel")),
        [] => Err(Failure::new(format!("there is no event channel {:?}", arguments.channel))
            .help("`tombolo events ls` lists those that there are")),
        several => {
            let names: Vec<String> = several.iter().map(|row| full(row)).collect();
            Err(Failure::misuse(format!("{:?} is the name of several", arguments.channel))
                .help(format!("say which: {}", names.join(", "))))
        }
    }
}

fn top(place: &PlaceArgs, arguments: &TopArgs) -> Result<(), Failure> {
    let client = client(place)?;
    crate::commands::live::run(
        arguments.once,
        arguments.json,
        || channels(&client).map(|(channels, _)| (Instant::now(), channels)),
        |(since, before), (at, now)| {
            let elapsed_s = at.duration_since(*since).as_secs_f64().max(1e-3);
            Ok(now.iter().map(|row| rates(row, before, elapsed_s)).collect::<Vec<Value>>())
        },
        |rows| rates_table(rows),
    )
}

fn rates_table(rows: &[Value]) -> Result<(), Failure> {
    const KEYS: [&str; 8] =
        ["dc", "service", "channel", "events_per_s", "bytes_per_s", "lost_per_s", "subscribers", "waiting"];
    let cell = |value: &Value| value.as_f64().map_or_else(|| text(value), |number| format!("{number:.0}"));
    let cells: Vec<Vec<String>> = rows.iter().map(|row| KEYS.map(|key| cell(&row[key])).to_vec()).collect();
    let head = ["DC", "SERVICE", "CHANNEL", "EVENTS/S", "BYTES/S", "LOST/S", "SUBSCRIBERS", "WAITING"];
    print_table(&head, &cells)
}

fn rates(row: &Value, before: &[Value], elapsed_s: f64) -> Value {
    let name = |row: &Value| [row["dc"].clone(), row["service"].clone(), row["channel"].clone()];
    let earlier = before.iter().find(|other| name(other) == name(row));
    let lost = |row: &Value| -> u64 {
        row["subscriptions"].as_array().into_iter().flatten().filter_map(|it| it["lost"].as_u64()).sum()
    };
    let rate = |of: &dyn Fn(&Value) -> u64| {
        earlier.map(|earlier| of(row).saturating_sub(of(earlier)) as f64 / elapsed_s)
    };
    json!({
        "dc": row["dc"], "service": row["service"], "channel": row["channel"],
        "events_per_s": rate(&|row| row["published"].as_u64().unwrap_or(0)),
        "bytes_per_s": rate(&|row| row["bytes"].as_u64().unwrap_or(0)),
        "lost_per_s": rate(&lost),
        "subscribers": row["subscribers"], "waiting": row["waiting"],
    })
}

/// The domain in which a command is run, from the node.
fn domain(place: &PlaceArgs, of: &OfArgs) -> Result<String, Failure> {
    if let Some(domain) = &of.domain {
        return Ok(domain.clone());
    }
    let rows: Vec<ServiceRow> = wait(client(place)?.get("services"))??;
    let wanted = of.channel.split_once('/').map(|(service, _)| service);
    let is_it =
        |row: &&ServiceRow| row.kind == wire::events::KIND && wanted.is_none_or(|name| row.service == name);
    let ways = rows
        .iter()
        .filter(is_it)
        .flat_map(|row| row.consumers.iter().map(|consumer| format!("--domain {}/{consumer}", row.dc)));
    let ways: Vec<String> = ways.collect();
    let help = if ways.is_empty() {
        "no domain has mounted an event service: services = { events = \"/srv/events\" } in its table"
            .to_owned()
    } else {
        format!("these mount an event service: {}", ways.join(", "))
    };
    Err(Failure::misuse("say from which domain: `tombolo` is in no domain here").help(help))
}

fn words(command: &str, which: Option<&WhichArgs>) -> Vec<String> {
    let mut words = vec!["events".to_owned(), command.to_owned()];
    if let Some(which) = which {
        words.push(format!("--overflow={}", which.overflow));
        words.extend(which.filter.iter().map(|filter| format!("--filter={filter}")));
        words.extend(which.module.iter().map(|_| "--module=-".to_owned()));
        words.extend(which.replay.iter().map(|count| format!("--replay={count}")));
        words.extend(which.count.iter().map(|count| format!("--count={count}")));
    }
    words
}

fn with(mut words: Vec<String>, last: &[&str]) -> Vec<String> {
    words.push("--".into());
    words.extend(last.iter().map(|text| (*text).to_owned()));
    words
}

fn publish(place: &PlaceArgs, arguments: &PublishArgs) -> Result<(), Failure> {
    if where_to(&arguments.of.domain) == Where::Here {
        return inside::publish(&arguments.of.channel, arguments.text.as_deref(), arguments.lines);
    }
    let mut words = words("pub", None);
    if arguments.lines {
        words.push("--lines".into());
    }
    let input = if arguments.text.is_some() { Input::None } else { Input::Standard };
    let last: Vec<&str> =
        std::iter::once(arguments.of.channel.as_str()).chain(arguments.text.as_deref()).collect();
    become_command(place, &domain(place, &arguments.of)?, with(words, &last), input)
}

/// A module is a file of this side, and goes to the domain's.
fn module_input(which: &WhichArgs) -> Input {
    match &which.module {
        None => Input::None,
        Some(path) if inside::is_standard(path) => Input::Standard,
        Some(path) => Input::File(path.clone()),
    }
}

fn subscribe(place: &PlaceArgs, arguments: &SubscribeArgs) -> Result<(), Failure> {
    let json = arguments.json;
    if where_to(&arguments.of.domain) == Where::Here {
        return inside::subscribe(&arguments.of.channel, &arguments.which, json, &mut stdout().lock());
    }
    let mut words = words("sub", Some(&arguments.which));
    if json {
        words.push("--json".into());
    }
    become_command(
        place,
        &domain(place, &arguments.of)?,
        with(words, &[&arguments.of.channel]),
        module_input(&arguments.which),
    )
}

fn record(place: &PlaceArgs, arguments: &RecordArgs) -> Result<(), Failure> {
    if where_to(&arguments.of.domain) == Where::Here {
        let mut to = inside::Recording::begin(&arguments.file)?;
        return inside::subscribe(&arguments.of.channel, &arguments.which, true, &mut to);
    }
    // The file is this side's; what the domain says goes there.
    let domain = domain(place, &arguments.of)?;
    let words = with(words("record", Some(&arguments.which)), &[&arguments.of.channel, "-"]);
    if inside::is_standard(&arguments.file) {
        return become_command(place, &domain, words, module_input(&arguments.which));
    }
    let mut to = inside::Recording::begin(&arguments.file)?;
    let mut command = command_in(place, &domain, words, &module_input(&arguments.which))?;
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| cant_run(&command, &error))?;
    let said = child.stdout.take();
    let recorded = said.map_or(Ok(()), |said| inside::copy_lines(said, &mut to));
    if recorded.is_err() {
        // Its pipe is closed. It may wait for the next event before it sees that.
        let pid = Pid::from_child(&child);
        rustix::process::kill_process(pid, Signal::TERM).map_err(std::io::Error::from)?;
    }
    let ended = child.wait()?;
    recorded?;
    let code = ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
    // It has said why.
    if code == 0 { Ok(()) } else { Err(Failure { code, ..Failure::silent() }) }
}

fn replay(place: &PlaceArgs, arguments: &ReplayArgs) -> Result<(), Failure> {
    if where_to(&arguments.of.domain) == Where::Here {
        return inside::replay(&arguments.of.channel, &arguments.file, arguments.speed);
    }
    let mut words = words("replay", None);
    words.push(format!("--speed={}", arguments.speed));
    let standard = inside::is_standard(&arguments.file);
    let input = if standard { Input::Standard } else { Input::File(arguments.file.clone()) };
    become_command(place, &domain(place, &arguments.of)?, with(words, &[&arguments.of.channel, "-"]), input)
}
