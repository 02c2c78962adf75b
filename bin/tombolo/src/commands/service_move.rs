//! `tombolo service move`.

use super::look::{clean, encoded};
use super::{client, wait};
use crate::cli::{MoveServiceArgs, PlaceArgs};
use admin::{ServiceMoveRequest, ServiceMoved};
use terminal::{Failure, print, print_json};

/// Moves a service to a program of another domain, and says how long that took.
pub fn run(place: &PlaceArgs, arguments: &MoveServiceArgs) -> Result<(), Failure> {
    let path = format!("services/{}/move", encoded(&arguments.service));
    let request = ServiceMoveRequest { to: arguments.to.clone() };
    let moved: ServiceMoved = wait(client(place)?.post(&path, &request))??;
    if arguments.json {
        return print_json(&moved);
    }
    let ServiceMoved { dc, service, from, to, took_us } = &moved;
    let ms = *took_us as f64 / 1000.0;
    print(&format!(
        "{}/{} moved from {} to {} ({ms:.1} ms)\n",
        clean(dc),
        clean(service),
        clean(from),
        clean(to)
    ))
}
