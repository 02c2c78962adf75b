//! The measurements between the two guests: our channels, Xen's own (libxenvchan) and TCP through
//! their network cards, taking turns.

use serde_json::json;

use crate::Failure;
use crate::controller::{Checks, Domains};
use crate::place::Place;

/// How often each is measured: a launch has all ways once, in an order that turns.
const LAUNCHES: usize = 11;
const WAYS: [&str; 3] = ["channel", "vchan", "tcp"];

/// The half of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Answers.
    Server,
    /// Asks, and measures.
    Client,
}

/// One thing that is measured.
#[derive(Clone, Copy, Debug)]
pub struct What {
    name: &'static str,
    /// A stream, or round trips.
    pub stream: bool,
    /// Bytes of each message.
    pub bytes: usize,
    /// Messages, or round trips.
    pub count: usize,
}

const WHATS: [What; 3] = [
    What { name: "rtt.64B", stream: false, bytes: 64, count: 300 },
    What { name: "rtt.4KiB", stream: false, bytes: 4096, count: 200 },
    What { name: "stream.64KiB", stream: true, bytes: 64 << 10, count: 300 },
];

impl What {
    /// As words of a job's arguments.
    pub fn parse(name: &str) -> Result<Self, Failure> {
        WHATS
            .into_iter()
            .find(|what| what.name == name)
            .ok_or_else(|| format!("no such measure: {name}").into())
    }
}

/// Prints one line of JSON for each launch, way and thing: round trips in us, streams in MiB/s.
pub fn all(checks: &mut Checks, domains: &Domains) {
    for launch in 0..LAUNCHES {
        for what in WHATS {
            for turn in 0..WAYS.len() {
                let way = WAYS[(launch + turn) % WAYS.len()];
                let name = format!("{way}-{}-{launch}", what.name.replace('.', "-"));
                match once(way, &what, &domains.one, &domains.two, &name) {
                    Ok(value) => println!(
                        "{}",
                        json!({ "measure": what.name, "way": way, "launch": launch, "value": value, "samples": what.count })
                    ),
                    Err(failure) => checks.check(&name, || Err(failure)),
                }
            }
        }
        checks.note(&format!("launch {launch}"));
    }
}

fn once(way: &str, what: &What, server: &Place, client: &Place, name: &str) -> Result<f64, Failure> {
    let (near, far) = (server.domain.to_string(), client.domain.to_string());
    let (path, count, bytes) = (format!("data/vchan/{name}"), what.count.to_string(), what.bytes.to_string());
    let full = format!("/local/domain/{near}/data/vchan/{name}");
    let kind = if what.stream { "stream" } else { "rtt" };
    let (serves, asks) = match way {
        "vchan" => (
            vec!["vchan", "server", &far, &path, kind, &bytes, &count],
            vec!["vchan", "client", &near, &full, kind, &bytes, &count],
        ),
        _ => (
            vec!["measure-server", way, &far, name, what.name],
            vec!["measure-client", way, &near, name, what.name],
        ),
    };
    let serving = server.started(&serves, "there")?;
    let said = client.run(&asks)?;
    serving.end()?;
    let ns: f64 = said.last().ok_or("the client says nothing")?.parse()?;
    Ok(if what.stream {
        (what.count * what.bytes) as f64 / f64::from(1 << 20) / (ns / 1e9)
    } else {
        ns / 1e3
    })
}
