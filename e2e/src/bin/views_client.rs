//! In a domain: uses its services through each view, and says what differs.

use conformance::views::direct::Direct;
use conformance::views::mount::Mount;
use conformance::views::ninep::Ninep;
use conformance::views::{Group, View, compare};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

/// Of a domain that may do everything.
const ALL: &[Group] = &[
    Group::Program,
    Group::Folder("tree"),
    Group::Folder("thermometer/notes"),
    Group::Directory,
    Group::Events,
];
/// Of one that may do everything, on another node than the services.
const FAR: &[Group] = &[Group::Program, Group::Folder("tree"), Group::Events];
/// Of one that may only read.
const DENIED: &[Group] = &[Group::Denied("tree")];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let groups = match std::env::args().nth(1).as_deref() {
        Some("denied") => DENIED,
        Some("far") => FAR,
        _ => ALL,
    };
    let run = Path::new("/run/tombolo");
    let mut views: Vec<Box<dyn View>> = vec![
        Box::new(Mount::new("/srv")),
        Box::new(Ninep::connect(&run.join("9p.sock"))?),
        Box::new(Direct::connect(&session::Control::path())?),
    ];
    let (count, findings) = compare(&mut views, groups);
    println!("{count} operations by {} views, {} findings", views.len(), findings.len());
    findings.iter().for_each(|finding| println!("{finding}"));
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
