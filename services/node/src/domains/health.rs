//! Whether a domain that is up still does what it should: a command of its own is asked again and
//! again.

use super::Domains;
use super::supervisor::Supervised;
use crate::base::CHECKS;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::JoinHandle;
use topology::{Domain, Health, Liveness, Standing};

/// A variable that every process of a check has, by which what hangs is found, its children
/// included.
const MARK: &str = "TOMBOLO_HEALTH_CHECK";
/// As it begins in an environment.
const MARKED: &str = "TOMBOLO_HEALTH_CHECK=";
/// How much of what a check writes is looked at, in bytes: the end of it.
const OUTPUT_BYTES: usize = 4096;
/// How much of that is told, in characters: a line.
const TOLD_CHARS: usize = 200;
/// How long what a check wrote is awaited after its end: whoever has left a child that holds its
/// output is not waited for.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How much longer than we the helper waits that runs a check: it ends by itself where no daemon is
/// left to end it.
const HELPER_SLACK: Duration = Duration::from_secs(1);
/// How long it may take to look through the processes of a domain: some milliseconds, unless one of
/// them keeps its memory from being read.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a domain is looked through for what a check has left: who forks meanwhile is seen the
/// next time.
const SWEEPS: usize = 8;

/// The health of a domain as it is known, for those who look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthView {
    /// `starting`, `healthy`, `failing` or `unhealthy`.
    pub(crate) state: &'static str,
    /// Failures in a row that count.
    pub(crate) failures: u32,
    /// Why the last check failed; `None` where it did not.
    pub(crate) last_failure: Option<String>,
}

/// The checks of one incarnation; they end with this.
#[derive(Debug)]
pub(crate) struct Checks {
    task: JoinHandle<String>,
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Checks {
    /// Begins to ask, if the file says so. `since`: when the incarnation started.
    pub(crate) fn begin(node: &Arc<Domains>, me: &Arc<Supervised>, since: Instant) -> Option<Self> {
        let domain = me.domain();
        let health = domain.health.clone()?;
        let task = ask_until_dead(Arc::clone(node), Arc::clone(me), domain, health, since);
        Some(Self { task: tokio::spawn(task) })
    }

    /// Ends checks under way in a domain that goes on.
    pub(crate) async fn end(checks: Option<Self>, node: &Arc<Domains>, me: &Supervised) {
        let Some(mut checks) = checks else { return };
        checks.task.abort();
        // It ends as soon as it is looked at.
        let _aborted = (&mut checks.task).await;
        end_left(node, &me.dc, &me.name, MARKED).await;
    }

    /// Comes back with the reason when the domain is to be restarted; never where nobody asks.
    pub(crate) async fn dead(checks: &mut Option<Self>) -> String {
        match checks {
            Some(checks) => (&mut checks.task).await.unwrap_or_else(|_| "its health check broke off".into()),
            None => std::future::pending().await,
        }
    }
}

async fn ask_until_dead(
    node: Arc<Domains>,
    me: Arc<Supervised>,
    domain: Arc<Domain>,
    health: Health,
    since: Instant,
) -> String {
    let told = |state, failures, last_failure| me.checked(HealthView { state, failures, last_failure });
    told("starting", 0, None);
    let mut since = since;
    if domain.machine.is_some() {
        let boots = Instant::now();
        node.broker
            .machine_where(&me.dc, &me.name, |machine| {
                machine.is_some_and(|machine| machine.started.is_some())
            })
            .await;
        // That a machine takes long to boot is none of its command's time.
        since += boots.elapsed();
    }
    // What an earlier daemon asked and did not live to end.
    end_left(&node, &me.dc, &me.name, MARKED).await;
    let grace = Duration::from_millis(domain.ready_timeout_ms);
    let mut liveness = Liveness::default();
    loop {
        // tidy(sleep): the pause between two checks is what the file asks for.
        tokio::time::sleep(Duration::from_millis(health.every_ms)).await;
        // Who is held on purpose can't answer.
        if node.book.is_suspended(&format!("{}/{}", me.dc, me.name)) {
            continue;
        }
        let failure = check(&node, &me, &health).await.err();
        let starting = since.elapsed() < grace;
        match liveness.checked(&health, failure.is_none(), starting) {
            Standing::Starting => told("starting", 0, failure),
            Standing::Healthy => told("healthy", 0, None),
            Standing::Failing { failures } => told("failing", failures, failure),
            Standing::Dead { failures } => {
                told("unhealthy", failures, failure.clone());
                let times = if failures == 1 { "once".into() } else { format!("{failures} times in a row") };
                return format!("its health check failed {times}: {}", failure.unwrap_or_default());
            }
        }
    }
}

/// Asks once; the error is a line that says why the answer is no.
async fn check(node: &Arc<Domains>, me: &Supervised, health: &Health) -> Result<(), String> {
    let limit = Duration::from_millis(health.timeout_ms);
    let options = domain::ExecOptions {
        command: health.command.clone(),
        environment: vec![(MARK.into(), "1".into())],
        limit: Some(limit + HELPER_SLACK),
        ..Default::default()
    };
    let command =
        domain::exec_command(&node.layout, &me.dc, &me.name, &options).map_err(|e| e.to_string())?;
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|e| format!("it can't be asked: {e}"))?;
    let said = Arc::new(Mutex::new(Vec::new()));
    let mut hear = tokio::task::JoinSet::new();
    if let Some(stream) = child.stdout.take() {
        hear.spawn(gather(stream, Arc::clone(&said)));
    }
    if let Some(stream) = child.stderr.take() {
        hear.spawn(gather(stream, Arc::clone(&said)));
    }
    let ended = tokio::time::timeout(limit, child.wait()).await;
    let why = match ended {
        Ok(Ok(status)) if status.success() => return Ok(()),
        Ok(Ok(status)) => status.code().map_or_else(|| status.to_string(), |code| format!("exit {code}")),
        Ok(Err(error)) => format!("it can't be awaited: {error}"),
        Err(_) => {
            end_left(node, &me.dc, &me.name, MARKED).await;
            // The helper takes with it what a runtime has begun in a domain without room; killed,
            // it could not.
            let _ended = tokio::time::timeout(2 * HELPER_SLACK, child.wait()).await;
            // Only where it has ended since then is there nothing to end.
            let _gone = child.kill().await;
            format!("no answer within {}", topology::duration_text(health.timeout_ms))
        }
    };
    let _too_late =
        tokio::time::timeout(LAST_WORDS, async { while hear.join_next().await.is_some() {} }).await;
    let said = said.lock().unwrap_or_else(PoisonError::into_inner);
    Err(last_line(&said).map_or(why.clone(), |line| format!("{why}: {line}")))
}

/// Reads to the end, and keeps the last bytes of it.
pub(crate) async fn gather(mut stream: impl AsyncRead + Unpin, said: Arc<Mutex<Vec<u8>>>) {
    let mut bytes = vec![0; OUTPUT_BYTES];
    while let Ok(length @ 1..) = stream.read(&mut bytes).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(bytes.get(..length).unwrap_or_default());
        let beyond = said.len().saturating_sub(OUTPUT_BYTES);
        said.drain(..beyond);
    }
}

/// The last line that says anything, fit for a table.
pub(crate) fn last_line(said: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(TOLD_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect())
}

/// Returns a command that runs another one in a domain.
///
/// # Errors
/// The domain does not run.
pub(crate) fn command_in(
    node: &Domains,
    dc: &str,
    domain: &str,
    options: &domain::ExecOptions,
) -> domain::Result<std::process::Command> {
    domain::exec_command(&node.layout, dc, domain, options)
}

/// Kills what is left in a domain of what was run there with a variable that begins so. A guest's
/// own agent does so in a guest, when whoever asked is gone.
pub(crate) async fn end_left(node: &Arc<Domains>, dc: &str, domain: &str, marked: &str) {
    for _ in 0..SWEEPS {
        let (of, dc_of, name) = (Arc::clone(node), dc.to_owned(), domain.to_owned());
        let pids = CHECKS.run(move || domain::pids_of(&of.layout, &dc_of, &name).unwrap_or_default()).await;
        match end_marked(&node.layout.program, pids.unwrap_or_default(), marked).await {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(dc, domain, marked, error, "what was left in a domain can't be found");
                return;
            }
        }
    }
    tracing::warn!(dc, domain, marked, "it starts processes faster than they can be ended");
}

/// Kills those of these processes that have the mark; says how many they were.
async fn end_marked(program: &Path, pids: Vec<u32>, marked: &str) -> Result<usize, String> {
    // Before they are looked at: by this it is the same process that is killed.
    let opened = |pid: u32| {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        Some((pid, pidfd_open(number, PidfdFlags::empty()).ok()?))
    };
    let processes: BTreeMap<u32, OwnedFd> = pids.into_iter().filter_map(opened).collect();
    if processes.is_empty() {
        return Ok(0);
    }
    // What a process has in its memory can be a file of its own tenant's server, who never answers:
    // a process of ours waits for that, and no thread of the daemon.
    let mut finder = tokio::process::Command::new(program);
    finder
        .arg(MARKED_ROLE)
        .args(processes.keys().map(u32::to_string))
        .arg(marked)
        .env_clear()
        .stdin(Stdio::null());
    finder.stderr(Stdio::null()).kill_on_drop(true);
    let found = tokio::time::timeout(FIND_TIMEOUT, finder.output());
    let found =
        found.await.map_err(|_| format!("its processes were not looked through within {FIND_TIMEOUT:?}"))?;
    let found = found.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&found.stdout);
    let marked = said.lines().filter_map(|line| processes.get(&line.parse::<u32>().ok()?));
    Ok(marked.filter(|process| pidfd_send_signal(process, Signal::KILL).is_ok()).count())
}

/// The role that says which processes have a variable that begins in a certain way: their numbers
/// are its arguments, and that beginning is the last one.
pub const MARKED_ROLE: &str = "internal-marked";

/// See [`MARKED_ROLE`].
///
/// # Errors
/// The standard output is closed.
pub fn marked_main(arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let mut arguments: Vec<OsString> = arguments.collect();
    let Some(mark) = arguments.pop().filter(|mark| !mark.is_empty()) else { return Ok(()) };
    let pids = arguments.iter().filter_map(|argument| argument.to_str()?.parse::<u32>().ok());
    for pid in pids.filter(|pid| is_marked(*pid, mark.as_encoded_bytes())) {
        writeln!(std::io::stdout(), "{pid}").map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn is_marked(pid: u32, mark: &[u8]) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_a_flood_the_end_is_kept() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let flood = [vec![b'x'; 10 * OUTPUT_BYTES], b"\nno \x1b[31mroom\n\n".to_vec()].concat();
        gather(flood.as_slice(), Arc::clone(&said)).await;
        let said = said.lock().unwrap();
        assert_eq!(said.len(), OUTPUT_BYTES);
        assert_eq!(last_line(&said).as_deref(), Some("no  [31mroom"));
        assert_eq!(last_line(b"\n \n"), None);
    }

    #[test]
    fn only_what_has_the_mark_is_found() {
        let run = |mark: bool| {
            use std::io::Read;
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "echo; read line"]).envs(mark.then_some((MARK, "1")));
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh runs");
            // The kernel shows no environment of a program that is only about to run.
            child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it runs");
            child
        };
        let (mut ours, mut other) = (run(true), run(false));
        let marked = |pid| is_marked(pid, MARKED.as_bytes());
        assert!(marked(ours.id()) && !marked(other.id()) && !marked(u32::MAX));
        for child in [&mut ours, &mut other] {
            child.kill().expect("it ran on");
            child.wait().expect("it ended");
        }
    }

    #[tokio::test]
    async fn only_what_is_found_is_ended_and_who_finds_nothing_in_time_is_given_up() {
        use std::os::unix::fs::PermissionsExt;
        use std::os::unix::process::ExitStatusExt;
        let folder = tempfile::tempdir().expect("a folder");
        let finder = folder.path().join("finder");
        let finds = |script: &str| {
            std::fs::write(&finder, script).expect("written");
            std::fs::set_permissions(&finder, std::fs::Permissions::from_mode(0o755)).expect("it may run");
        };
        let run = || std::process::Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let (mut one, mut other) = (run(), run());
        let pids = vec![one.id(), other.id(), u32::MAX];
        // It says a number that nobody asked for, too.
        finds("#!/bin/sh\necho 1; echo garbage; echo $2\n");
        let (first, second) =
            if one.id() < other.id() { (&mut one, &mut other) } else { (&mut other, &mut one) };
        assert_eq!(end_marked(&finder, pids.clone(), MARKED).await, Ok(1));
        assert_eq!(first.wait().expect("it ended").signal(), Some(Signal::KILL.as_raw()));
        finds("#!/bin/sh\nexec sleep 60\n");
        let given_up = end_marked(&finder, vec![second.id()], MARKED).await.expect_err("it says nothing");
        assert!(given_up.contains("not looked through"), "{given_up}");
        second.kill().expect("it ran on");
        second.wait().expect("it ended");
    }
}
