//! `tombolo endpoint migrate`.

use super::MigrateArgs;
use super::look::{not_here, tree};
use crate::cli::PlaceArgs;
use crate::commands::look::{clean, encoded};
use crate::commands::{client, wait};
use admin::{Migrating, Migration};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use terminal::{Failure, print, print_json};

/// How often to look whether an endpoint has moved: it takes some milliseconds.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Moves an endpoint, or takes back an order to move.
pub fn run(place: &PlaceArgs, arguments: &MigrateArgs) -> Result<(), Failure> {
    let begun = Instant::now();
    let told = order(place, arguments, arguments.to.clone())?;
    let Some(to) = &arguments.to else {
        return tell(arguments, &told, "stays where it is", &told.before, None);
    };
    if arguments.no_wait {
        return tell(arguments, &told, &format!("was told to move to {}", clean(to)), &told.before, None);
    }
    loop {
        let now = tree(place, &format!("{}/{}", told.dc, told.endpoint))?;
        if let Some(address) = moved(&now, &told.before) {
            let took = begun.elapsed().as_millis();
            let what = format!("moved to {}, as {address} ({took} ms)", clean(to));
            return tell(arguments, &told, &what, address, Some(took));
        }
        if let Some(why) = now["migration"]["stays"].as_str() {
            return Err(Failure::new(format!("endpoint {} stays where it is: {why}", told.endpoint)));
        }
        if begun.elapsed() >= arguments.timeout {
            return Err(too_late(place, arguments, &told)?);
        }
        // tidy(sleep): the daemon tells nobody when an endpoint has moved.
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn order(place: &PlaceArgs, arguments: &MigrateArgs, to: Option<String>) -> Result<Migrating, Failure> {
    let path = format!("endpoints/{}", encoded(&arguments.endpoint));
    wait(client(place)?.post(&path, &Migration { to }))?.map_err(not_here)
}

/// The address of an endpoint that is not any more where it was.
fn moved<'t>(now: &'t Value, before: &str) -> Option<&'t str> {
    now["address"].as_str().filter(|address| !address.is_empty() && *address != before)
}

/// Its program did not receive in time: it must not move when nobody expects that any more.
fn too_late(place: &PlaceArgs, arguments: &MigrateArgs, told: &Migrating) -> Result<Failure, Failure> {
    order(place, arguments, None)?;
    let message = format!(
        "the program of endpoint {} has not received within {:?}: it stays where it is",
        told.endpoint, arguments.timeout
    );
    Ok(Failure::new(message)
        .help("it moves when it receives next; wait longer by `--timeout`, or do not wait by `--no-wait`"))
}

fn tell(
    arguments: &MigrateArgs,
    told: &Migrating,
    what: &str,
    address: &str,
    took: Option<u128>,
) -> Result<(), Failure> {
    if arguments.json {
        let row = json!({
            "dc": told.dc, "endpoint": told.endpoint, "before": told.before, "address": address,
            "to": arguments.to, "took_ms": took,
        });
        return print_json(&row);
    }
    print(&format!("{}: {what}\n", clean(&told.endpoint)))
}
