//! Commands of an adaptation, in a domain of its file. Each process has a variable by which it is
//! found when it is to end, whatever it has become by then and whoever began it.

use crate::domains::{Domains, command_in, end_left};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::process::Child;
use topology::Name;

/// One command, which is run again and again.
pub(super) struct Commands {
    node: Arc<Domains>,
    dc: String,
    domain: Name,
    command: Vec<String>,
    /// The variable.
    variable: &'static str,
    /// The beginning of its value for all of this adaptation, whoever began them.
    of_name: String,
    /// The value for those begun here.
    mark: String,
}

impl Commands {
    pub(super) fn new(
        node: &Arc<Domains>,
        (dc, name): &(String, String),
        (domain, command): (&Name, &[String]),
        variable: &'static str,
    ) -> Self {
        static BEGUN: AtomicU64 = AtomicU64::new(0);
        let number = BEGUN.fetch_add(1, Ordering::Relaxed);
        Self {
            node: Arc::clone(node),
            dc: dc.clone(),
            domain: domain.clone(),
            command: command.to_vec(),
            variable,
            of_name: format!("{dc}/{name}/"),
            mark: format!("{dc}/{name}/{}-{number}/", std::process::id()),
        }
    }

    /// Ends what an earlier daemon began and did not live to end.
    pub(super) async fn end_former(&self) {
        self.end_marked(&self.of_name).await;
    }

    /// Ends all that was begun here.
    pub(super) async fn end(&self) {
        self.end_marked(&self.mark).await;
    }

    async fn end_marked(&self, mark: &str) {
        let marked = format!("{}={mark}", self.variable);
        end_left(&self.node, &self.dc, self.domain.as_str(), &marked).await;
    }

    /// Begins it, with pipes for its input and for one of its outputs.
    ///
    /// # Errors
    /// Why it can't be run, in words that follow its name.
    pub(super) fn begin(&self, output: Output) -> Result<Child, String> {
        let options = domain::ExecOptions {
            command: self.command.clone(),
            environment: vec![(self.variable.into(), self.mark.clone())],
            interactive: true,
            ..Default::default()
        };
        let command = command_in(&self.node, &self.dc, self.domain.as_str(), &options);
        let mut command = tokio::process::Command::from(command.map_err(|e| format!("can't be run: {e}"))?);
        let (out, err) = match output {
            Output::Standard => (Stdio::piped(), Stdio::null()),
            Output::Errors => (Stdio::null(), Stdio::piped()),
        };
        command.stdin(Stdio::piped()).stdout(out).stderr(err).kill_on_drop(true);
        command.spawn().map_err(|error| format!("can't be run: {error}"))
    }
}

/// The output of a command that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Standard,
    Errors,
}
