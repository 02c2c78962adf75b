//! `tombolo node authority`: by what the cluster is known, and its replacement.

use super::{said, unix_s};
use crate::cli::PlaceArgs;
use crate::commands::{client, wait};
use ::admin::client::Client;
use ::admin::{AuthorityView, ReplaceRequest, ReplacementView, Said, WaitsFor};
use clap::{Args, Subcommand};
use std::time::Duration;
use terminal::{Failure, Paint, harmless, print, print_json, seconds};

/// How often it is looked how far a replacement is.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AuthorityArgs {
    #[command(subcommand)]
    pub command: Option<AuthorityCommand>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum AuthorityCommand {
    /// Have another authority take its place, under use: its key may be known to somebody, or a
    /// node that had it was removed
    #[command(after_help = "Examples:
  tombolo node authority replace
  tombolo node authority replace --no-wait; tombolo node authority

Say it at a node that has the authority (`tombolo node show`). Every node comes to believe the
next one, then each is given a certificate of it, and when all show one, nobody believes the
former any more. Links change over and lose nothing; commands on other nodes end. Nodes that are
down are waited for: `tombolo node remove` those that are gone for good. Nobody joins meanwhile,
and tokens that were not used are void. It goes on without this command.

After a node was removed that you do not trust any more: change what lets it into etcd first.")]
    Replace {
        /// Don't wait until it is done
        #[arg(long)]
        no_wait: bool,
        /// Instead: etcd was restored from a backup of before the authority was replaced; have it
        /// name the one again that this node has
        #[arg(long, conflicts_with = "no_wait")]
        restored: bool,
    },
}

/// `tombolo node authority ...`.
pub fn run(arguments: &PlaceArgs, authority: &AuthorityArgs) -> Result<(), Failure> {
    let client = client(arguments)?;
    match &authority.command {
        None => show(&client, authority.json),
        Some(AuthorityCommand::Replace { restored: true, .. }) => ask(&client, true),
        Some(AuthorityCommand::Replace { no_wait, .. }) => replace(&client, !no_wait),
    }
}

fn view(client: &Client) -> Result<AuthorityView, Failure> {
    Ok(wait(client.get("cluster/authority"))??)
}

fn show(client: &Client, json: bool) -> Result<(), Failure> {
    let view = view(client)?;
    if json {
        return print_json(&view);
    }
    print(&text(&view, unix_s(), Paint::of(&std::io::stdout())))
}

fn text(view: &AuthorityView, now: u64, paint: Paint) -> String {
    let left = view.valid_until_unix_s.saturating_sub(now);
    let lines = [
        ("cluster", harmless(&view.cluster)),
        ("authority", harmless(&view.fingerprint)),
        ("ends in", seconds(left)),
        (
            "key",
            if view.here { "here".into() } else { "not here; `tombolo node show` says so of each".into() },
        ),
    ];
    let text: String = lines.iter().map(|(what, value)| format!("{what:<12} {value}\n")).collect();
    let stranger = if view.stranger {
        format!(
            "{}this node's certificate is of none that the registry names: the node was away while the authority was replaced (remove it, and \
             join it again), or etcd was restored from a backup (`tombolo node authority replace --restored` at a node that has the key){}\n",
            paint.red, paint.end
        )
    } else {
        String::new()
    };
    let text = text + &stranger;
    let Some(next) = &view.replacement else { return text };
    let since = seconds(now.saturating_sub(next.since_unix_s));
    let next_lines = format!(
        "{:<12} {} (begun at {} {since} ago)\n",
        "next",
        harmless(&next.fingerprint),
        harmless(&next.by)
    );
    let waits: String = next
        .waits_for
        .iter()
        .map(|one| {
            let state = paint.state(if one.alive { "up" } else { "down" });
            format!("{:<12} {} ({state}): {}\n", "waits for", harmless(&one.node), harmless(&one.why))
        })
        .collect();
    text + &next_lines + &waits
}

fn ask(client: &Client, restored: bool) -> Result<(), Failure> {
    let done: Said = wait(client.post("cluster/authority/replace", &ReplaceRequest { restored }))??;
    said(&done)
}

fn replace(client: &Client, to_the_end: bool) -> Result<(), Failure> {
    ask(client, false)?;
    if !to_the_end {
        return Ok(());
    }
    let mut told: Vec<WaitsFor> = Vec::new();
    loop {
        let view = view(client)?;
        let Some(ReplacementView { waits_for, .. }) = view.replacement else {
            return print(&format!(
                "every node shows a certificate of authority {} now, and the former is believed no more\n",
                harmless(&view.fingerprint)
            ));
        };
        for one in waits_for.iter().filter(|one| !told.contains(one)) {
            print(&format!("waits for node {}: {}\n", harmless(&one.node), harmless(&one.why)))?;
        }
        told = waits_for;
        // tidy(sleep): the daemon tells nobody how far it is.
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_replacement_waits_for_is_shown_and_what_a_node_says_can_do_nothing_to_the_terminal() {
        let mut view = AuthorityView {
            cluster: "lab".into(),
            fingerprint: "ab".repeat(32),
            valid_until_unix_s: 10_000_000,
            here: true,
            stranger: false,
            replacement: None,
        };
        let settled = text(&view, 100, Paint::default());
        assert!(settled.contains("abab") && !settled.contains("next"), "{settled}");
        let lost = text(&AuthorityView { stranger: true, ..view.clone() }, 100, Paint::default());
        assert!(lost.contains("join it again") && lost.contains("--restored"), "{lost}");
        let why = "it does not believe the next authority yet\u{1b}[2J".into();
        view.replacement = Some(ReplacementView {
            fingerprint: "cd".repeat(32),
            by: "alpha".into(),
            since_unix_s: 40,
            waits_for: vec![WaitsFor { node: "beta".into(), alive: false, why }],
        });
        let shown = text(&view, 100, Paint::default());
        assert!(shown.contains("begun at alpha") && shown.contains("beta (down): it does not"), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }
}
