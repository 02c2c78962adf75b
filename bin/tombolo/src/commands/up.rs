//! `tombolo up` and `tombolo down`.

use super::{daemon, place, wait};
use crate::cli::{DownArgs, PlaceArgs, UpArgs};
use admin::client::{Client, ClientError};
use admin::place::Place;
use admin::{CancelRequest, Cancelled, Code, DownRequest, Problem, Progress, UpRequest, Version};
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use terminal::{Failure, INTERRUPTED, MISUSE, Paint, harmless, print};
use tokio::signal::unix::{SignalKind, signal};

/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(100);
/// Lines of the daemon's log that explain why it did not start.
const SHOWN_LOG_LINES: usize = 10;

/// `tombolo up FILE`.
pub fn up(place_arguments: &PlaceArgs, arguments: &UpArgs) -> Result<(), Failure> {
    let (file, text, base) = match (arguments.to, &arguments.file) {
        (Some(number), which) => {
            let which = which.as_ref().map(|which| which.to_string_lossy());
            let revision = super::history::revision(place_arguments, which.as_deref(), number)?;
            (revision.file, revision.text, revision.base)
        }
        (None, Some(file)) => (file.clone(), read(file)?, base_of(file)?),
        // The parser has asked for one.
        (None, None) => return Err(Failure::misuse("no file is named")),
    };
    let file = &file;
    // Before anything is started: the same that the daemon does, with colours and the file's name
    // as it was typed.
    let topology = super::check::admit(&text, file, &base, arguments.json)?;
    let place = place(place_arguments)?;
    let client = Client::new(place.clone());
    match wait(client.get::<Version>("version"))? {
        Ok(_) => {}
        Err(ClientError::NotRunning { .. }) if arguments.dry_run => {
            return dry_run_alone(&place, &topology, arguments.json);
        }
        // One that breaks off is dying: the next one waits until it is gone, or is refused because
        // it is not.
        Err(ClientError::NotRunning { .. } | ClientError::Broken { .. }) => start_daemon(&client, &place)?,
        Err(error) => return Err(error.into()),
    }
    let ticket = Some(ticket());
    let (replace, dry_run) = (arguments.replace, arguments.dry_run);
    let request = UpRequest { text, file: file.clone(), base, ticket: ticket.clone(), replace, dry_run };
    follow(&client, "up", &request, ticket, dry_run, arguments.json)
}

/// Prints the changes by a file where no daemon runs: all of it is new where there never was one.
fn dry_run_alone(place: &Place, topology: &topology::Topology, json: bool) -> Result<(), Failure> {
    if place.registry().exists() {
        return Err(Failure::new("no daemon runs, and only one knows what is up")
            .help("`tombolo daemon` starts one, which also starts what is up and does not run"));
    }
    let plan = topology::plan(None, topology);
    let mut show = Show::new(json, true);
    show.progress(&Progress::Plan { steps: plan.steps.iter().map(ToString::to_string).collect() });
    let (name, count) = (&topology.name, plan.steps.len());
    let summary = format!("{name} would be up after {count} step{}", if count == 1 { "" } else { "s" });
    show.last(Progress::Done { summary, changed: false })
}

/// `tombolo down`.
pub fn down(place_arguments: &PlaceArgs, arguments: &DownArgs) -> Result<(), Failure> {
    let place = place(place_arguments)?;
    let client = Client::new(place.clone());
    if let Err(ClientError::NotRunning { .. } | ClientError::Broken { .. }) =
        wait(client.get::<Version>("version"))?
    {
        // Domains outlive a daemon: one is needed to end them. Without a registry there never was
        // one.
        if !place.registry().exists() {
            let summary = "nothing to do: nothing is up".to_owned();
            return Show::new(arguments.json, false).last(Progress::Done { summary, changed: false });
        }
        start_daemon(&client, &place)?;
    }
    let dc = arguments.which.as_deref().map(dc_of).transpose()?;
    follow(&client, "down", &DownRequest { dc, all: arguments.all }, None, false, arguments.json)
}

/// The distributed container that is meant: by its name, or by the file that it comes from.
pub fn dc_of(which: &str) -> Result<String, Failure> {
    let path = Path::new(which);
    let is_file = which.contains(['/', '.']) || path.is_file();
    if !is_file {
        return Ok(which.to_owned());
    }
    let text = read(path)?;
    let base = base_of(path)?;
    match topology::parse(&text, which, &base) {
        Ok(topology) => Ok(topology.name.as_str().to_owned()),
        Err(diagnostics) => {
            eprint!("{}", diagnostics.render(std::io::stderr().is_terminal()));
            Err(Failure::new(format!("{which} does not say which distributed container it is"))
                .help("name it: tombolo down NAME"))
        }
    }
}

/// The text of a topology file.
pub fn read(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| {
        let failure = Failure::new(format!("can't read the topology file {}: {error}", file.display()));
        match error.kind() {
            std::io::ErrorKind::NotFound => Failure { code: MISUSE, ..failure },
            std::io::ErrorKind::InvalidData => failure.help("a topology file is TOML, in UTF-8"),
            _ => failure,
        }
    })
}

/// Returns the base of a file's relative paths: its folder.
pub fn base_of(file: &Path) -> Result<std::path::PathBuf, Failure> {
    let file = std::path::absolute(file)?;
    Ok(file.parent().unwrap_or(Path::new("/")).to_owned())
}

/// Starts the node's daemon, and waits until it takes requests.
pub fn start_daemon(client: &Client, place: &Place) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("no daemon runs, and only root can start one").help("use sudo"));
    }
    let at = |e: std::io::Error| {
        Failure::new(format!("can't use the state directory {}: {e}", place.state_dir.display()))
    };
    std::fs::create_dir_all(&place.state_dir).map_err(at)?;
    let path = place.daemon_log();
    if std::fs::metadata(&path).is_ok_and(|log| log.len() > node::MAX_LOG_BYTES) {
        node::set_aside(&path).map_err(at)?;
    }
    let log = File::options().create(true).append(true).open(&path).map_err(at)?;
    let before = log.metadata().map_err(at)?.len();
    let mut child = Command::new(daemon::program()?)
        .arg("--run-dir")
        .arg(&place.run_dir)
        .arg("--state-dir")
        .arg(&place.state_dir)
        .args(["daemon", "--detached"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .current_dir("/")
        .spawn()
        .map_err(|e| Failure::new(format!("can't start the daemon: {e}")))?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    if said.trim() == "ready" {
        return Ok(());
    }
    let status = child.wait()?;
    // Another `up` may have started one at the same moment; ours made room for it.
    if wait(client.get::<Version>("version"))?.is_ok() {
        return Ok(());
    }
    Err(Failure::new(format!("the daemon did not start ({status}):\n{}", last_lines(&path, before))))
}

/// The last lines of what was logged from a place in the log on.
fn last_lines(log: &Path, from: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(node::MAX_LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_else(|e| format!("(no log: {e})"));
    if text.is_empty() {
        return format!("(it could say nothing in {}: is the disk full?)", log.display());
    }
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(SHOWN_LOG_LINES)..).unwrap_or_default().join("\n")
}

/// A word that no other command has, by which this one can be cancelled.
fn ticket() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), now.as_nanos())
}

/// Sends a request for long work and shows how it goes. An interrupt (Ctrl-C) cancels what has a
/// ticket; the next one, or the first where there is none, leaves the work to the daemon. `plan`:
/// the steps are shown before anything is done.
pub fn follow(
    client: &Client,
    path: &str,
    request: &impl serde::Serialize,
    ticket: Option<String>,
    plan: bool,
    json: bool,
) -> Result<(), Failure> {
    let show = RefCell::new(Show::new(json, plan));
    let followed = wait(async {
        let mut interrupts = signal(SignalKind::interrupt())?;
        let mut ticket = ticket;
        let work = client.follow(path, request, |progress| show.borrow_mut().progress(progress));
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                last = &mut work => return Ok::<_, Failure>(Some(last?)),
                _ = interrupts.recv() => match ticket.take() {
                    Some(ticket) => {
                        let text = "cancelling, and restoring what was before; Ctrl-C again leaves that to the daemon";
                        show.borrow_mut().progress(&Progress::Note { text: text.into() });
                        let Cancelled { cancelled } = client.post("cancel", &CancelRequest { ticket }).await?;
                        if !cancelled {
                            let text = "there is nothing left to cancel";
                            show.borrow_mut().progress(&Progress::Note { text: text.into() });
                        }
                    }
                    None => return Ok(None),
                },
            }
        }
    })??;
    let show = show.into_inner();
    match followed {
        Some(last) => show.last(last),
        None => {
            show.end();
            let message = format!("left: the daemon goes on with this `{path}`");
            let help = "`tombolo ps` shows how far it is; the same command again waits for it, `tombolo down NAME` ends it";
            Err(Failure { code: INTERRUPTED, ..Failure::new(message).help(help) })
        }
    }
}

/// Whether a problem is a page of its own: each place of the file that is wrong, with its line.
fn is_rendered(problem: &Problem) -> bool {
    problem.code == Code::NotAdmitted && problem.message.starts_with("error[")
}

/// Shows progress: a spinner on a terminal, lines elsewhere, JSON for programs.
struct Show {
    json: bool,
    plan: bool,
    spinner: Option<ProgressBar>,
    paint: Paint,
}

impl Show {
    fn new(json: bool, plan: bool) -> Self {
        let spinner =
            (!json && std::io::stderr().is_terminal() && std::io::stdout().is_terminal()).then(|| {
                let bar = ProgressBar::new_spinner();
                if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                    bar.set_style(style);
                }
                bar.enable_steady_tick(TICK);
                bar
            });
        Self { json, plan, spinner, paint: Paint::of(&std::io::stdout()) }
    }

    fn line(&self, text: &str) {
        match &self.spinner {
            Some(bar) => bar.suspend(|| println!("{text}")),
            // A reader that went away does not keep the work from going on.
            None => drop(print(&format!("{text}\n"))),
        }
    }

    fn progress(&mut self, progress: &Progress) {
        if self.json {
            if let Ok(text) = serde_json::to_string(progress) {
                self.line(&text);
            }
            return;
        }
        let Paint { green, yellow, dim, end, .. } = self.paint;
        match progress {
            Progress::Started { step, of, what } => {
                if let Some(bar) = &self.spinner {
                    bar.set_message(format!("[{step}/{of}] {what}"));
                }
            }
            Progress::Finished { step, of, what, took_ms } => {
                self.line(&format!("{green}[{step}/{of}]{end} {what} {dim}({took_ms} ms){end}"));
            }
            Progress::Note { text } => self.line(&format!("{yellow}note:{end} {text}")),
            // The reason is said once, at the end, as every error.
            Progress::RollingBack { .. } => {
                self.line(&format!("{yellow}undoing:{end} restoring what was before"));
            }
            Progress::Plan { steps } if self.plan => {
                for step in steps {
                    self.line(&format!("{dim}would{end} {step}"));
                }
            }
            Progress::Plan { .. } | Progress::Done { .. } | Progress::Failed { .. } => {}
        }
    }

    /// Takes the spinner away.
    fn end(&self) {
        if let Some(bar) = &self.spinner {
            bar.finish_and_clear();
        }
    }

    fn last(self, last: Progress) -> Result<(), Failure> {
        self.end();
        if self.json {
            self.line(&serde_json::to_string(&last).unwrap_or_default());
        }
        match last {
            Progress::Failed { error, rolled_back: None } if !self.json && is_rendered(&error) => {
                eprint!("{}", harmless(&error.message));
                Err(Failure::silent())
            }
            Progress::Failed { error, rolled_back } => {
                let what_now = match rolled_back {
                    Some(true) => "; what was before is restored",
                    Some(false) => "; what was before could not be restored completely, see the notes above",
                    None => "",
                };
                let is_cancelled = error.code == Code::Cancelled;
                let mut failure: Failure = error.into();
                failure.message += what_now;
                if is_cancelled {
                    failure.code = INTERRUPTED;
                }
                Err(failure)
            }
            Progress::Done { summary, .. } if !self.json => print(&format!("{summary}\n")),
            _ => Ok(()),
        }
    }
}
