//! The two programs of the channels' tests, to run inside domains: one offers a channel and
//! answers, one opens it and asks.
//!
//! ```text
//! channel_peer offer NAME               answers every message of everybody, until it is ended
//! channel_peer sulk NAME                offers, and never looks who comes
//! channel_peer open NAME WAIT_MS COUNT  opens one, asks COUNT times, and says who answered
//! channel_peer talk NAME STOP_FILE      asks until the file is there, or until the other end is gone
//! channel_peer keep NAME COUNT          opens as many, says how many it got, and waits for the end of its input
//! channel_peer fill NAME COUNT          the same, and fills the ring of each
//! channel_peer far NAME [PART]          offers it to one who runs the suite `conformance`, and runs the far halves
//! channel_peer near NAME [PART]         opens a channel for each scenario (whose name has PART in it), and runs the near halves
//! ```
//!
//! Exit code 3: refused; the errno and the daemon's words are printed.

use channel::{End, Receiver, Sender};
use conformance::{Given, Scenario};
use e2e::peer::say;
use rustix::io::Errno;
use session::{Consumer, ControlError, offer_channel, open_channel};
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest message that is asked, in bytes; each is a little longer than the one before.
const LONGEST: usize = 8000;
/// How long one answer may take. Far above what it takes.
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["offer", name] => offer(name),
        ["sulk", name] => sulk(name),
        ["open", name, wait_ms, count] => open(name, number(wait_ms), number(count)),
        ["talk", name, stop] => talk(name, Path::new(stop)),
        ["keep", name, count] => keep(name, number(count), false),
        ["fill", name, count] => keep(name, number(count), true),
        ["far", name] => conform_far(name, ""),
        ["far", name, part] => conform_far(name, part),
        ["near", name] => conform_near(name, ""),
        ["near", name, part] => conform_near(name, part),
        _ => Err(Failure::Other("usage: channel_peer offer|open|talk|keep|fill|far|near NAME ...".into())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Refused(errno, why)) => {
            say(&format!("refused {}: {why}", errno.raw_os_error()));
            ExitCode::from(3)
        }
        Err(Failure::Other(why)) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

enum Failure {
    Refused(Errno, String),
    Other(String),
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Refused { errno, message } => {
                Self::Refused(Errno::from_raw_os_error(errno), message)
            }
            other => Self::Other(other.to_string()),
        }
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or(0)
}

fn offer(name: &str) -> Result<(), Failure> {
    let mut offer = offer_channel(name)?;
    say("offering");
    loop {
        let (end, consumer) = offer.accept(None)?;
        // Who opened it may have written into its region already.
        match end.open() {
            Ok((sender, receiver)) => {
                std::thread::spawn(move || answer(sender, receiver, &consumer));
            }
            Err(error) => say(&format!("not opened: {error}")),
        }
    }
}

fn sulk(name: &str) -> Result<(), Failure> {
    let _offer = offer_channel(name)?;
    loop {
        std::thread::park();
    }
}

/// Sends back what comes, behind the name of who sent it.
fn answer(mut sender: Sender, mut receiver: Receiver, consumer: &Consumer) {
    let who = format!("{}/{}/{} ", consumer.dc, consumer.domain, consumer.entrance);
    say(&format!("accepted {who}"));
    let mut message = Vec::new();
    while receiver.receive(&mut message, None).is_ok() {
        if sender.send_vectored(&[who.as_bytes(), &message], None).is_err() {
            break;
        }
    }
    say(&format!("over {who}"));
}

/// One question; the answer is who asked, as the other end was told.
fn ask((sender, receiver): &mut (Sender, Receiver), count: u64) -> Result<String, String> {
    let length = usize::try_from(count).unwrap_or(0) * 37 % LONGEST;
    let question: Vec<u8> = (0..length).map(|at| (at as u64 ^ count) as u8).collect();
    let by = Some(Instant::now() + TIMEOUT);
    sender.send(&question, by).map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    receiver.receive(&mut answer, by).map_err(|error| error.to_string())?;
    let at = answer.iter().position(|byte| *byte == b' ').ok_or("an answer without a name")?;
    let (who, echo) = answer.split_at(at + 1);
    if echo != question {
        return Err(format!("question {count} came back as {} other bytes", echo.len()));
    }
    Ok(String::from_utf8_lossy(who).trim_end().to_owned())
}

fn connect(name: &str, wait_ms: u64) -> Result<(Sender, Receiver), Failure> {
    let end = open_channel(name, Duration::from_millis(wait_ms))?;
    end.open().map_err(|error| Failure::Other(error.to_string()))
}

fn open(name: &str, wait_ms: u64, count: u64) -> Result<(), Failure> {
    let mut channel = connect(name, wait_ms)?;
    let mut who = String::new();
    for number in 0..count {
        who = ask(&mut channel, number).map_err(Failure::Other)?;
    }
    say(&format!("answered {count} as {who}"));
    Ok(())
}

fn talk(name: &str, stop: &Path) -> Result<(), Failure> {
    let mut channel = connect(name, 10_000)?;
    ask(&mut channel, 1).map_err(Failure::Other)?;
    say("talking");
    for count in 2.. {
        let last = stop.exists();
        if let Err(why) = ask(&mut channel, count) {
            say(&format!("ended: {why}"));
            return Ok(());
        }
        if last {
            break;
        }
    }
    say("stopped");
    Ok(())
}

fn scenarios<'p>(part: &'p str) -> impl Iterator<Item = &'static Scenario> + 'p {
    conformance::SCENARIOS.iter().filter(move |scenario| scenario.name.contains(part))
}

/// Runs a half of each scenario over an end of its own, and says how each went.
fn conform(
    part: &str,
    mut end: impl FnMut() -> Result<End, Failure>,
    half: impl Fn(&Scenario, Given) -> conformance::Done,
) -> Result<(), Failure> {
    let (mut failed, mut run) = (0, 0);
    for scenario in scenarios(part) {
        let given = Given::new(end()?).map_err(|error| Failure::Other(error.to_string()))?;
        let start = Instant::now();
        run += 1;
        match half(scenario, given) {
            Ok(()) => say(&format!("ok {} ms: {}", start.elapsed().as_millis(), scenario.name)),
            Err(failure) => {
                failed += 1;
                say(&format!("{}: {failure}", scenario.name));
            }
        }
    }
    if failed > 0 {
        return Err(Failure::Other(format!("{failed} of {run} scenarios failed")));
    }
    say(&format!("conforms {run}"));
    Ok(())
}

fn conform_far(name: &str, part: &str) -> Result<(), Failure> {
    let mut offer = offer_channel(name)?;
    say("offering");
    let accept = || Ok(offer.accept(Some(Instant::now() + conformance::TIMEOUT))?.0);
    conform(part, accept, |scenario, end| scenario.far(end))
}

fn conform_near(name: &str, part: &str) -> Result<(), Failure> {
    let open = || Ok(open_channel(name, conformance::TIMEOUT)?);
    conform(part, open, |scenario, end| scenario.near(end))
}

fn keep(name: &str, count: u64, fills: bool) -> Result<(), Failure> {
    let mut kept = Vec::new();
    let mut refusal = None;
    while (kept.len() as u64) < count && refusal.is_none() {
        match connect(name, 0) {
            Ok(mut channel) => {
                // Until there is no room, or whoever offers has gone.
                while fills && channel.0.try_send(&[7; LONGEST]).is_ok() {}
                kept.push(channel);
            }
            Err(Failure::Refused(errno, why)) => refusal = Some(format!("{}: {why}", errno.raw_os_error())),
            Err(other) => return Err(other),
        }
    }
    say(&format!("kept {} {}", kept.len(), refusal.unwrap_or_default()));
    let mut nothing = Vec::new();
    // Whatever ends the input ends this.
    let _ended = std::io::stdin().read_to_end(&mut nothing);
    Ok(())
}
