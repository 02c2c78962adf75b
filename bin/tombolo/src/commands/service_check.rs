//! `tombolo service check`: whether a service behaves under many and clumsy clients.

use super::look::{clean, encoded};
use super::trace::{asker, mounted_at};
use super::{client, wait};
use crate::cli::{CheckServiceArgs, PlaceArgs};
use crate::roles::{CHECKER, CheckOrder, Finding, Report};
use admin::client::Client;
use admin::{Entry, ServiceRow};
use domain::ExecOptions;
use serde_json::{Value, json};
use std::process::Stdio;
use terminal::{Failure, print, print_json};

/// Checks, prints, and fails where something was found.
pub fn run(place: &PlaceArgs, arguments: &CheckServiceArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let name = &arguments.service;
    let service: Value = wait(client.get(&format!("services/{}", encoded(name))))??;
    let kind = service.get("kind").and_then(Value::as_str).unwrap_or("service");
    if kind != "program" {
        let failure =
            Failure::misuse(format!("{name} is a {kind}: only services of kind program can be checked"));
        return Err(failure.help("`tombolo service ls` lists them with their kinds"));
    }
    let entry = asker(&client, name, arguments.domain.as_deref(), &service)?;
    let at = mounted_at(&client, &entry, name)?;
    let before = row(&client, &entry, name)?;
    if !before.up {
        let failure = Failure::new(format!("no program offers service {name}"));
        return Err(failure.help(format!("`tombolo logs {}` says why", before.domain)));
    }
    let order = CheckOrder { at, write: arguments.write };
    let mut report = in_domain(&entry, &order)?;
    let after = row(&client, &entry, name)?;
    if (before.generation, before.server_pid) != (after.generation, after.server_pid) {
        report.findings.push(ended(&before));
    }
    let found = report.findings.len();
    if arguments.json {
        print_json(&json!({
            "service": name, "dc": entry.dc, "domain": entry.domain, "at": order.at, "write": order.write,
            "files": report.files, "findings": report.findings,
        }))?;
    } else {
        print(&text(name, &entry, &order, &report))?;
    }
    if found == 0 { Ok(()) } else { Err(Failure::silent()) }
}

/// The service as the daemon lists it.
fn row(client: &Client, entry: &Entry, name: &str) -> Result<ServiceRow, Failure> {
    let rows: Vec<ServiceRow> = wait(client.get("services"))??;
    let plain = name.rsplit('/').next().unwrap_or(name);
    let found = rows.into_iter().find(|row| row.service == plain && row.dc == entry.dc);
    found.ok_or_else(|| Failure::new(format!("service {name} went away")))
}

/// Runs the checker inside the domain.
fn in_domain(entry: &Entry, order: &CheckOrder) -> Result<Report, Failure> {
    let order = serde_json::to_string(order).map_err(|e| Failure::new(e.to_string()))?;
    let command = vec![entry.program.clone(), CHECKER.into(), order];
    let options = ExecOptions { command, ..ExecOptions::default() };
    let mut command = domain::exec_command(&entry.layout, &entry.dc, &entry.domain, &options)
        .map_err(|e| Failure::new(e.to_string()))?;
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::new(format!("the checker in {}/{} failed: {said}", entry.dc, entry.domain)));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|e| Failure::new(format!("the checker's report is not understood: {e}")))
}

/// A program that ends while it is used as anybody may use it.
fn ended(before: &ServiceRow) -> Finding {
    Finding {
        file: String::new(),
        check: "the program goes on".into(),
        found: "another process serves now than before the checks".into(),
        advice: format!(
            "`tombolo logs {}` says why it ended; no request of a client may end it",
            before.domain
        ),
    }
}

// The report comes from a domain, which may have changed it: nothing of it steers the terminal.
fn text(name: &str, entry: &Entry, order: &CheckOrder, report: &Report) -> String {
    let mut text = format!("{name} at {} in {}/{}\n", order.at.display(), entry.dc, entry.domain);
    for file in &report.files {
        let checks = file.checks.join(", ");
        text += &format!("  {}: {}: {}\n", clean(&file.name), clean(&file.behaviour), clean(&checks));
    }
    for finding in &report.findings {
        let file = if finding.file.is_empty() { name } else { finding.file.as_str() };
        let [file, check, found, advice] = [file, &finding.check, &finding.found, &finding.advice].map(clean);
        text += &format!("{file}: {check}: {found}\n  {advice}\n");
    }
    match report.findings.len() {
        0 => text += "nothing was found\n",
        found => text += &format!("found: {found}\n"),
    }
    if !order.write {
        text += "nothing was written; --write tries lines that mean nothing on controls and sessions too\n";
    }
    text
}
