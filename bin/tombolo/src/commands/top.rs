//! `tombolo top`: what is there and what it does, on one page.

use super::stats::{Row, Sample, sample};
use super::{client, link, live, look, reserve, stats, wait};
use crate::cli::{PlaceArgs, StatsArgs};
use admin::client::Client;
use admin::reserve::Book;
use admin::{LinkRow, ServiceRow};
use serde::Serialize;
use terminal::{Failure, print};

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
    live::run(
        arguments.once,
        arguments.json,
        || sample(&client),
        |before, now| page(&client, now, before),
        show,
    )
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
