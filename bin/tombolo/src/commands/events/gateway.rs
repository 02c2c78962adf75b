//! `tombolo events gateway`: a program of a domain that carries events to and from a broker of MQTT
//! or programs that speak DDS.

use super::inside::folder;
use crate::commands::endpoint::from_node::{Where, where_to};
use clap::Args;
use gateway::{
    Broker, DOMAIN_MAX, Dds, Engine, Inward, Mqtt, Outward, Quality, SETTINGS, is_dds_topic, is_filter,
    is_topic,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use terminal::{Failure, harmless};

/// Channels of one gateway: each has a thread.
const CHANNELS_MAX: usize = 128;
/// Characters of one line that it says.
const SAID_CHARS: usize = 400;

#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// The broker of MQTT 5: HOST:PORT
    #[arg(long, value_name = "HOST:PORT", value_parser = address, required_unless_present = "dds")]
    pub mqtt: Option<(String, u16)>,
    /// The domain of DDS: 0 to 232
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(..=i64::from(DOMAIN_MAX)), conflicts_with = "mqtt")]
    pub dds: Option<u32>,
    /// Of a topic of DDS: type, reliability, durability, history, deadline, liveliness
    #[arg(long, value_name = "TOPIC=KEY=VALUE,...", value_parser = quality)]
    pub qos: Vec<(String, Quality)>,
    /// The program that is linked with Cyclone DDS (default: tombolo-dds, where its package puts
    /// it)
    #[arg(long, value_name = "FILE")]
    pub dds_program: Option<PathBuf>,
    /// Events of this channel are published to this topic
    #[arg(long, value_name = "CHANNEL=TOPIC", value_parser = outward)]
    pub out: Vec<(String, String)>,
    /// Messages of these topics (`+` and `#` stand for any) are events of this channel
    #[arg(long = "in", value_name = "TOPICS=CHANNEL", value_parser = inward)]
    pub inward: Vec<(String, String)>,
    /// Of this channel, which goes out, only events that pass
    #[arg(long, value_name = "CHANNEL=EXPRESSION", value_parser = filter)]
    pub filter: Vec<(String, String)>,
    /// The name of the session at the broker (default: tombolo-HOSTNAME)
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
    /// A user of the broker
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub user: Option<String>,
    /// The file with the user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
    /// Speak to others beyond this domain: what is said can be read and changed on its way
    #[arg(long)]
    pub unencrypted: bool,
}

fn address(text: &str) -> Result<(String, u16), String> {
    let (host, port) = text.rsplit_once(':').ok_or("HOST:PORT")?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port > 0).ok_or("a port is a number from 1 to 65535")?;
    if host.is_empty() { Err("HOST:PORT".into()) } else { Ok((host.to_owned(), port)) }
}

fn outward(text: &str) -> Result<(String, String), String> {
    let (channel, topic) = text.split_once('=').ok_or("CHANNEL=TOPIC")?;
    if is_topic(topic) {
        Ok((channel.to_owned(), topic.to_owned()))
    } else {
        Err(format!("{topic:?} is no topic to publish to: it is not empty, and has no `+` and no `#`"))
    }
}

fn inward(text: &str) -> Result<(String, String), String> {
    let (filter, channel) = text.rsplit_once('=').ok_or("TOPICS=CHANNEL")?;
    if is_filter(filter) {
        Ok((filter.to_owned(), channel.to_owned()))
    } else {
        Err(format!("{filter:?} stands for no topics: `+` is a whole level, `#` the whole rest"))
    }
}

fn filter(text: &str) -> Result<(String, String), String> {
    let (channel, expression) = text.split_once('=').ok_or("CHANNEL=EXPRESSION")?;
    if expression.trim().is_empty() || expression.contains('\n') {
        return Err("an expression is a line that is not empty".into());
    }
    Ok((channel.to_owned(), expression.to_owned()))
}

fn quality(text: &str) -> Result<(String, Quality), String> {
    let (topic, rest) = text.split_once('=').ok_or("TOPIC=KEY=VALUE,...")?;
    Ok((topic.to_owned(), Quality::parse(rest)?))
}

/// Whether nobody else can listen on the way to this host.
fn is_near(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Carries events until it can't any more.
pub fn run(arguments: &GatewayArgs) -> Result<(), Failure> {
    let engine = checked(arguments)?;
    let mut outward = Vec::new();
    for (channel, topic) in &arguments.out {
        let filter = arguments.filter.iter().find(|(of, _)| of == channel);
        let filter = filter.map(|(_, expression)| expression.clone());
        outward.push(Outward { folder: folder(channel)?, topic: topic.clone(), filter });
    }
    let mut inward = Vec::new();
    for (filter, channel) in &arguments.inward {
        inward.push(Inward { filter: filter.clone(), folder: folder(channel)? });
    }
    let sources: BTreeSet<_> = outward.iter().map(|it| &it.folder).collect();
    if let Some(both) = inward.iter().find(|it| sources.contains(&it.folder)) {
        return Err(Failure::misuse(format!(
            "{} goes out and comes in: its events would go round for ever",
            both.folder.display()
        ))
        .help("take two channels, one for each way"));
    }
    // A broker's words go to people, and are as long as it likes.
    let say: gateway::Say =
        Arc::new(|what| eprintln!("{}", harmless(&what.chars().take(SAID_CHARS).collect::<String>())));
    let error = gateway::run(engine, &outward, &inward, &say);
    Err(Failure::new(error.to_string()))
}

fn checked(arguments: &GatewayArgs) -> Result<Box<dyn Engine>, Failure> {
    if where_to(&None) != Where::Here {
        return Err(Failure::misuse("a gateway is a program of a domain, whose verbs it has").help(
            "command = [\"/run/tombolo/tombolo\", \"events\", \"gateway\", ...] in its table of the topology file",
        ));
    }
    let count = arguments.out.len() + arguments.inward.len();
    if count == 0 || count > CHANNELS_MAX {
        return Err(Failure::misuse(format!(
            "--out and --in name {count} channels; 1 to {CHANNELS_MAX} can be"
        )));
    }
    let of_none = arguments.filter.iter().find(|(of, _)| !arguments.out.iter().any(|(out, _)| out == of));
    if let Some((channel, _)) = of_none {
        return Err(Failure::misuse(format!("--filter names {channel:?}, and no --out does")));
    }
    let filters: BTreeSet<_> = arguments.inward.iter().map(|(filter, _)| filter).collect();
    if filters.len() < arguments.inward.len() {
        return Err(Failure::misuse("--in names the same topics twice"));
    }
    let of_dds = !arguments.qos.is_empty() || arguments.dds_program.is_some();
    let of_mqtt = arguments.client.is_some() || arguments.user.is_some();
    match (&arguments.mqtt, arguments.dds) {
        (Some(_), _) if of_dds => Err(Failure::misuse("--qos and --dds-program are for --dds")),
        (None, _) if of_mqtt => Err(Failure::misuse("--client and --user are for --mqtt")),
        (Some((host, port)), _) => Ok(Box::new(Mqtt::new(&broker(arguments, host, *port)?))),
        (None, Some(domain)) => Ok(Box::new(dds(arguments, domain)?)),
        (None, None) => Err(Failure::misuse("neither --mqtt nor --dds says what to speak")),
    }
}

/// Where `make install` and the package put the program, in a domain whose root has it.
const DDS_PROGRAMS: [&str; 2] = ["/usr/local/lib/tombolo/tombolo-dds", "/usr/lib/tombolo/tombolo-dds"];

fn dds(arguments: &GatewayArgs, domain: u32) -> Result<Dds, Failure> {
    let outward: BTreeSet<_> = arguments.out.iter().map(|(_, topic)| topic).collect();
    let inward: BTreeSet<_> = arguments.inward.iter().map(|(topic, _)| topic).collect();
    if outward.len() < arguments.out.len() {
        return Err(Failure::misuse("--out names the same topic twice")
            .help("take a gateway for each of both channels"));
    }
    if let Some(name) = outward.iter().chain(&inward).find(|name| !is_dds_topic(name)) {
        return Err(Failure::misuse(format!(
            "{name:?} is no topic of DDS: up to 255 letters, digits, `_`, `/`, `.`, `:` and `-`"
        )));
    }
    let mut qualities = BTreeMap::new();
    for (topic, quality) in &arguments.qos {
        if !outward.contains(topic) && !inward.contains(topic) {
            return Err(Failure::misuse(format!("--qos names {topic:?}, and neither --out nor --in does")));
        }
        if quality.any && outward.contains(topic) {
            return Err(Failure::misuse(format!("{topic:?} goes out, and its type is not known"))
                .help("only a topic that comes in may be of any type; what goes out is tombolo::Event"));
        }
        if qualities.insert(topic.clone(), *quality).is_some() {
            return Err(Failure::misuse(format!("--qos names {topic:?} twice")));
        }
    }
    if !arguments.unencrypted && std::env::var_os(SETTINGS).is_some() {
        return Err(Failure::misuse(format!("{SETTINGS} is set, and may lead to a network"))
            .help("without it only the loopback of this domain is spoken over; or say --unencrypted"));
    }
    let installed = || DDS_PROGRAMS.iter().map(PathBuf::from).find(|it| it.exists());
    let Some(program) = arguments.dds_program.clone().or_else(installed) else {
        return Err(Failure::new(format!("this domain has no tombolo-dds at {}", DDS_PROGRAMS.join(" or ")))
            .help("apt-get install tombolo-dds in the root of this domain; or name it with --dds-program"));
    };
    Ok(Dds::new(program, domain, !arguments.unencrypted, qualities))
}

fn broker(arguments: &GatewayArgs, host: &str, port: u16) -> Result<Broker, Failure> {
    if !arguments.unencrypted && !is_near(host) {
        return Err(Failure::misuse(format!("what goes to {host:?} would not be encrypted"))
            .help("reach the broker by a service of kind \"socket\", at 127.0.0.1; or say --unencrypted"));
    }
    let login = match (&arguments.user, &arguments.password_file) {
        (Some(user), Some(path)) => {
            let password = fs::read_to_string(path)
                .map_err(|error| Failure::new(format!("can't read {}: {error}", path.display())))?;
            Some((user.clone(), password.trim_end_matches(['\r', '\n']).to_owned()))
        }
        _ => None,
    };
    let named = || format!("tombolo-{}", rustix::system::uname().nodename().to_string_lossy());
    let client = arguments.client.clone().unwrap_or_else(named);
    Ok(Broker { host: host.to_owned(), port, client, login })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_channels_and_topics_are_read_or_refused() {
        assert_eq!(address("127.0.0.1:1883"), Ok(("127.0.0.1".into(), 1883)));
        assert_eq!(address("[::1]:1"), Ok(("::1".into(), 1)));
        for nonsense in ["", "a", ":1", "a:0", "a:65536", "a:x"] {
            assert!(address(nonsense).is_err(), "{nonsense}");
        }
        assert_eq!(outward("a=b/c=d"), Ok(("a".into(), "b/c=d".into())));
        assert_eq!(inward("b/+/c=d=a"), Ok(("b/+/c=d".into(), "a".into())));
        assert_eq!(filter("a=b == 3"), Ok(("a".into(), "b == 3".into())));
        assert!(filter("a").is_err() && filter("a= ").is_err() && filter("a=b\nreplay all").is_err());
        assert!(outward("a=#").is_err() && outward("a=").is_err() && outward("a").is_err());
        assert!(inward("a#=b").is_err() && inward("=b").is_err());
        assert!(is_near("127.0.0.1") && is_near("::1") && is_near("localhost"));
        assert!(!is_near("10.0.0.1") && !is_near("broker.example"));
    }
}
