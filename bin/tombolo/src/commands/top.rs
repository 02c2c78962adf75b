//! `tombolo top`: what is there and what it does, on one page.

use super::stats::{INTERVAL, NEW_PAGE, Row, Sample, sample};
use super::{client, link, look, reserve, stats, wait};
use crate::cli::{PlaceArgs, StatsArgs};
use crate::output::{Failure, print, print_json};
use node::admin::reserve::Book;
use node::admin::{LinkRow, ServiceRow};
use node::client::Client;
use serde::Serialize;
use std::io::{IsTerminal, stdout};

/// All that one page shows.
#[derive(Debug, Serialize)]
struct Page {
    domains: Vec<Row>,
    services: Vec<ServiceRow>,
    links: Vec<LinkRow>,
    promises: Book,
}

/// Prints the page: once, or anew each second on a terminal.
pub fn run(place: &PlaceArgs, arguments: &StatsArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let lives = !arguments.once && !arguments.json && stdout().is_terminal();
    let mut before = sample(&client)?;
    loop {
        // A rate is between two moments.
        std::thread::park_timeout(INTERVAL.saturating_sub(before.at.elapsed()));
        let now = sample(&client)?;
        let page = page(&client, &now, &before)?;
        if arguments.json {
            return print_json(&page);
        }
        if lives {
            print(NEW_PAGE)?;
        }
        show(&page)?;
        if !lives {
            return Ok(());
        }
        before = now;
    }
}

fn page(client: &Client, now: &Sample, before: &Sample) -> Result<Page, Failure> {
    let (services, links, promises) =
        wait(async { tokio::join!(client.get("services"), client.get("links"), client.get("reserve")) })?;
    Ok(Page { domains: now.since(before), services: services?, links: links?, promises: promises? })
}

/// The tables that say anything, one below the other.
fn show(page: &Page) -> Result<(), Failure> {
    stats::table(&page.domains)?;
    if !page.services.is_empty() {
        print("\n")?;
        look::service_table(&page.services)?;
    }
    if !page.links.is_empty() {
        print("\n")?;
        link::table(&page.links)?;
    }
    if !page.promises.vtms.is_empty() {
        print("\n")?;
        reserve::table(&page.promises)?;
    }
    Ok(())
}
