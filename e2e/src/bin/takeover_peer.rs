//! The program of the tests of backups, to run inside domains.
//!
//! ```text
//! takeover_peer count NAME          binds NAME, and counts the requests of each caller; a request is the caller's word
//! takeover_peer back NAME           is a backup of it, and counts on when it takes over
//! takeover_peer seize NAME          the same, and supersedes whoever has NAME as soon as it is asked to: by a line of its input
//! takeover_peer roam NAME           is a backup of it, counts on when it takes over, and moves to each domain that a line of its input names
//! takeover_peer forget NAME         as `count`, and hands over nothing
//! takeover_peer tally NAME WORD STOP_FILE
//!                                   asks NAME with WORD until the file is there; each reply must be one more than the one before
//! ```
//!
//! Exit code 3: a call failed as it should not; its words are printed.

use e2e::peer::{chain, say};
use endpoint::{Backup, Content, Endpoint, From, Options, Received};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::BufRead;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long one call may take. Far above what it takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often a backup looks whether it was asked to take over.
const LOOK: Duration = Duration::from_millis(5);

type Done = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["count", name] => bound(name).and_then(|me| count(me, true)),
        ["forget", name] => bound(name).and_then(|me| count(me, false)),
        ["back", name] => back(name, None),
        ["seize", name] => back(name, Some(lines())),
        ["roam", name] => roam(name),
        ["tally", name, word, stop] => tally(name, word, Path::new(stop)),
        _ => Err(format!("usage: see the source; not {words:?}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("failed: {}", chain(error.as_ref())));
            ExitCode::from(3)
        }
    }
}

fn bound(name: &str) -> Result<Endpoint, Box<dyn Error>> {
    let mut me = Endpoint::bind_by(Some(name), &Options::default(), Some(Instant::now() + TIMEOUT))?;
    me.keep_state(b"")?;
    say(&format!("bound {}", me.address()));
    Ok(me)
}

/// How often each caller has asked, as the state says: a line for each.
fn counts(state: Option<&[u8]>) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(state.unwrap_or_default()).into_owned();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(word, count)| Some((word.to_owned(), count.parse().ok()?))).collect()
}

fn count(mut me: Endpoint, hands_over: bool) -> Done {
    let mut counts = counts(me.state());
    let mut bytes = Vec::new();
    loop {
        let received = me.receive(&From::Any, &mut bytes, None)?;
        answer(&mut me, &received, &bytes, &mut counts, hands_over)?;
    }
}

/// Counts a request, and says how many there were of its word.
fn answer(
    me: &mut Endpoint,
    received: &Received,
    bytes: &[u8],
    counts: &mut BTreeMap<String, u64>,
    hands_over: bool,
) -> Done {
    let Content::Request { asked, .. } = received.content else { return Ok(()) };
    let word = String::from_utf8_lossy(bytes).into_owned();
    let count = counts.entry(word).or_default();
    *count += 1;
    let reply = count.to_string();
    let replied = if hands_over {
        let state: String = counts.iter().map(|(word, count)| format!("{word} {count}\n")).collect();
        me.reply_with_state(&asked, 0, reply.as_bytes(), state.as_bytes())
    } else {
        me.reply(&asked, 0, reply.as_bytes())
    };
    match replied {
        // That somebody who asked has died is no failure of ours.
        Ok(()) | Err(endpoint::Failed::Call(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Becomes true at the first line of the input.
fn lines() -> Arc<AtomicBool> {
    let asked = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            heard.store(true, Ordering::Release);
        }
    });
    asked
}

fn back(name: &str, seizes: Option<Arc<AtomicBool>>) -> Done {
    count(stood_by(name, seizes)?, true)
}

/// Is a backup until it has the place.
fn stood_by(name: &str, seizes: Option<Arc<AtomicBool>>) -> Result<Endpoint, Box<dyn Error>> {
    let mut backup = Backup::bind(name, &Options::default())?;
    say("stands by");
    let (mut was_ready, mut seized) = (None, false);
    let me = loop {
        if let Some(me) = backup.wait(Some(Instant::now() + LOOK))? {
            break me;
        }
        let is_ready = backup.primary().filter(|_| backup.is_ready());
        if is_ready != was_ready {
            was_ready = is_ready;
            say(&is_ready.map_or("is not ready".to_owned(), |primary| format!("is ready for {primary}")));
        }
        if !seized && seizes.as_ref().is_some_and(|asked| asked.load(Ordering::Acquire)) {
            seized = true;
            backup.promote();
        }
    };
    say(&format!("took over {}", me.address()));
    Ok(me)
}

fn roam(name: &str) -> Done {
    let (told, domains) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines();
        // Whoever counts has ended: there is nobody to tell.
        lines.map_while(Result::ok).try_for_each(|line| told.send(line)).is_ok()
    });
    let mut me = stood_by(name, None)?;
    let mut counts = counts(me.state());
    let mut bytes = Vec::new();
    loop {
        if let Ok(domain) = domains.try_recv() {
            let since = Instant::now();
            let moved = me.start_migration(domain.trim()).and_then(|()| me.commit_migration());
            match moved {
                Ok(()) => {
                    say(&format!("moved to {} in {:?}", domain.trim(), since.elapsed()));
                    return Ok(());
                }
                Err(endpoint::Failed::Call(why)) => say(&format!("stays: {why}")),
                Err(error) => return Err(error.into()),
            }
        }
        match me.receive(&From::Any, &mut bytes, Some(Instant::now() + LOOK)) {
            Ok(received) => answer(&mut me, &received, &bytes, &mut counts, true)?,
            // Nobody has asked meanwhile.
            Err(endpoint::Failed::Call(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn tally(name: &str, word: &str, stop: &Path) -> Done {
    let mut me = Endpoint::bind(None, &Options::default())?;
    let (mut reply, mut last, mut longest) = (Vec::new(), 0_u64, Duration::ZERO);
    let mut source = None;
    while !stop.exists() {
        let since = Instant::now();
        let replied = me.ask(name, 0, word.as_bytes(), &mut reply, 64, Some(since + TIMEOUT))?;
        longest = longest.max(since.elapsed());
        let count: u64 = String::from_utf8_lossy(&reply).parse()?;
        if count != last + 1 {
            return Err(format!("request {} of {word} was counted as {count}", last + 1).into());
        }
        last = count;
        if source != Some(replied.source) {
            source = Some(replied.source);
            say(&format!("answered by {}", replied.source));
        }
    }
    say(&format!("{word}: {last} requests, 0 errors, 0 duplicates, longest pause {longest:?}"));
    Ok(())
}
