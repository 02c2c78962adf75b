//! A selector that is a program of the user's (`docs/spec/selector.md`): asked about each sample,
//! and never waited for.
//!
//! A task of its own runs the program, writes the question to it and reads the answer; samples
//! leave the question there and take what has been answered by then. A program that hangs, ends,
//! floods or talks nonsense is ended with all that it has started, and begun anew after a pause.

use super::commands::{Commands, Output};
use super::module::Judge;
use crate::base::SELECTORS;
use crate::domains::Domains;
use adaptation::{Amounts, Figure, Settings};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::ChildStdin;
use tokio::runtime::Handle;
use tokio::sync::watch;
use topology::Adaptation;

/// A variable that every process of a selector has, by which it is found when it is to end.
const MARK: &str = "TOMBOLO_SELECTOR";
/// The longest answer, its end of line included.
const ANSWER_BYTES: usize = 4096;
/// How much longer the first answer of a program may take: it starts.
const START: Duration = Duration::from_secs(10);
/// The pause before a program that went wrong is begun anew; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A question about one sample, as the program reads it.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Question {
    pub(super) sample: u64,
    /// In whole thousandths.
    pub(super) figure_thousandths: u64,
    pub(super) has: Amounts,
    pub(super) file: Amounts,
    pub(super) least: Amounts,
    pub(super) most: Amounts,
}

/// The program's answer: what it wants; what is not said stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    pub(super) sample: u64,
    pub(super) cpu_ns: Option<u64>,
    pub(super) network_bits: Option<u64>,
    pub(super) level: Option<u32>,
}

impl Wish {
    /// All is to stay.
    pub(super) fn nothing(sample: u64) -> Self {
        Self { sample, cpu_ns: None, network_bits: None, level: None }
    }

    /// Returns the amounts that are wanted by somebody who has these.
    pub(super) fn from(self, has: Amounts) -> Amounts {
        Amounts {
            cpu_ns: self.cpu_ns.or(has.cpu_ns),
            network_bits: self.network_bits.or(has.network_bits),
            level: self.level.unwrap_or(has.level),
        }
    }
}

/// The news of a program since it was heard last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    /// Its answer to the last question.
    Wish(Wish),
    /// None yet.
    Nothing,
    /// Why there is none.
    Trouble(String),
}

/// A program that selects. Without this, it ends.
#[derive(Debug)]
pub(super) struct Program {
    /// The last question.
    questions: watch::Sender<Question>,
    heard: Arc<Mutex<Heard>>,
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    /// Has a task run the program as soon as it is asked something.
    pub(super) fn begin(
        runtime: &Handle,
        node: &Arc<Domains>,
        key: &(String, String),
        adaptation: &Adaptation,
    ) -> Option<Self> {
        let by = match (&adaptation.selector, &adaptation.module) {
            (Some(selector), _) => By::Command {
                commands: Commands::new(node, key, (&selector.domain, &selector.command), MARK),
                limit: Duration::from_millis(selector.timeout_ms),
            },
            (None, Some(path)) => By::Module(path.clone()),
            (None, None) => return None,
        };
        let (questions, asked) = watch::channel(Question::default());
        let heard = Arc::new(Mutex::new(Heard::Nothing));
        let runner = Runner { by, heard: Arc::clone(&heard) };
        runtime.spawn(runner.run(asked));
        Some(Self { questions, heard })
    }

    /// Asks about a sample. An answer to an earlier one counts no more.
    pub(super) fn ask(&mut self, settings: &Settings, figure: Figure, has: Amounts, file: Amounts) {
        let end = |end: fn(&adaptation::Range) -> u64, level: u32| Amounts {
            cpu_ns: settings.cpu.as_ref().map(end),
            network_bits: settings.network.as_ref().map(end),
            level,
        };
        let sample = self.questions.borrow().sample + 1;
        let question = Question {
            sample,
            figure_thousandths: figure.0,
            has,
            file,
            least: end(|range| range.least, 0),
            most: end(|range| range.most, settings.levels.saturating_sub(1)),
        };
        self.questions.send_replace(question);
    }

    /// Takes what is there of it. Trouble stays until it answers again.
    pub(super) fn hear(&self) -> Heard {
        let mut heard = lock(&self.heard);
        match &*heard {
            Heard::Wish(_) => std::mem::replace(&mut *heard, Heard::Nothing),
            other => other.clone(),
        }
    }
}

/// The one that is asked.
enum By {
    Command { commands: Commands, limit: Duration },
    Module(PathBuf),
}

/// The task of a program.
struct Runner {
    by: By,
    heard: Arc<Mutex<Heard>>,
}

impl Runner {
    async fn run(self, mut asked: watch::Receiver<Question>) {
        if let By::Command { commands, .. } = &self.by {
            commands.end_former().await;
        }
        let mut pause = FIRST_PAUSE;
        while asked.changed().await.is_ok() {
            asked.mark_changed();
            let mut has_answered = false;
            let ended = match &self.by {
                By::Command { commands, limit } => {
                    let ended = self.converse((commands, *limit), &mut asked, &mut has_answered).await;
                    commands.end().await;
                    ended
                }
                By::Module(path) => self.question(path, &mut asked, &mut has_answered).await,
            };
            let Err(why) = ended else { return };
            *lock(&self.heard) = Heard::Trouble(format!("its selector {why}"));
            pause = if has_answered { FIRST_PAUSE } else { pause };
            // tidy(sleep): a program that goes wrong at once would be begun again and again.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Installs the module, and asks it, until nobody asks any more (`Ok`) or it goes wrong.
    async fn question(
        &self,
        path: &Path,
        asked: &mut watch::Receiver<Question>,
        has_answered: &mut bool,
    ) -> Result<(), String> {
        let of = path.to_owned();
        let installed = SELECTORS.run(move || Judge::of(&of)).await.and_then(|installed| installed);
        let mut judge = installed.map_err(|why| format!("{} can't be had: {why}", path.display()))?;
        while asked.changed().await.is_ok() {
            let question = asked.borrow_and_update().clone();
            let answered = SELECTORS.run(move || {
                let wish = judge.ask(&question);
                (judge, wish)
            });
            let (same, wish) = answered.await?;
            let wish = wish.map_err(|why| format!("{} has failed: {why}", path.display()))?;
            judge = same;
            *has_answered = true;
            *lock(&self.heard) = Heard::Wish(wish);
        }
        Ok(())
    }

    /// Runs the program, and asks it, until nobody asks any more (`Ok`) or it goes wrong.
    async fn converse(
        &self,
        (commands, limit): (&Commands, Duration),
        asked: &mut watch::Receiver<Question>,
        has_answered: &mut bool,
    ) -> Result<(), String> {
        let mut child = commands.begin(Output::Standard)?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("has no standard streams".to_owned());
        };
        let mut output = BufReader::with_capacity(ANSWER_BYTES, output);
        let mut start = START;
        loop {
            tokio::select! {
                is_asked = asked.changed() => if is_asked.is_err() { return Ok(()) },
                unasked = output.fill_buf() => return Err(match unasked {
                    Ok([_, ..]) => "says more than it is asked".to_owned(),
                    Ok([]) | Err(_) => ended(&mut child).await,
                }),
            }
            let question = asked.borrow_and_update().clone();
            let line = serde_json::to_string(&question).unwrap_or_default() + "\n";
            let sample = question.sample;
            let limit = limit + std::mem::take(&mut start);
            let wish = match tokio::time::timeout(limit, exchange(&mut input, &mut output, &line)).await {
                Err(_) => {
                    return Err(format!("has not answered within {limit:?}"));
                }
                Ok(None) => return Err(ended(&mut child).await),
                Ok(Some(wish)) => wish?,
            };
            if wish.sample != sample {
                return Err(format!("answers about sample {}, and not about {sample}", wish.sample));
            }
            *has_answered = true;
            *lock(&self.heard) = Heard::Wish(wish);
        }
    }
}

/// Says how a program ended that has closed its output.
async fn ended(child: &mut tokio::process::Child) -> String {
    match tokio::time::timeout(Duration::from_secs(1), child.wait()).await {
        Ok(Ok(status)) => {
            let code = status.code().map_or_else(|| status.to_string(), |code| format!("exit {code}"));
            format!("has ended ({code})")
        }
        _ => "has closed its output".to_owned(),
    }
}

/// Writes a question and reads the answer; `None`: it is gone.
async fn exchange(
    input: &mut ChildStdin,
    output: &mut BufReader<impl AsyncRead + Unpin>,
    line: &str,
) -> Option<Result<Wish, String>> {
    input.write_all(line.as_bytes()).await.ok()?;
    input.flush().await.ok()?;
    answer(output).await
}

/// Reads an answer: a line of JSON, and nothing behind it.
async fn answer(output: &mut BufReader<impl AsyncRead + Unpin>) -> Option<Result<Wish, String>> {
    let mut line = Vec::new();
    loop {
        let more = output.fill_buf().await.ok().filter(|more| !more.is_empty())?;
        let end = more.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(more.len(), |end| end + 1);
        line.extend_from_slice(more.get(..length).unwrap_or_default());
        output.consume(length);
        if line.len() > ANSWER_BYTES {
            return Some(Err(format!("answers with more than {ANSWER_BYTES} bytes")));
        }
        if end.is_some() {
            break;
        }
    }
    if !output.buffer().is_empty() {
        return Some(Err("says more than it is asked".to_owned()));
    }
    Some(serde_json::from_slice(&line).map_err(|error| format!("answers what is no answer: {error}")))
}
