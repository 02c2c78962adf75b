//! How a machine has ended: for `ps`, beside the exit code.

use qmp::clean;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Name of the outcome's file in the machine's directory.
pub const OUTCOME_FILE: &str = "outcome.json";
/// Longest outcome, in bytes of its file. Whoever reads it refuses a longer one: what is in the
/// directory may be the work of a guest that broke out.
pub const MAX_OUTCOME_BYTES: usize = 4096;
/// Longest message of an outcome, in bytes: escaped, it still fits [`MAX_OUTCOME_BYTES`].
pub const MAX_MESSAGE_BYTES: usize = 600;

/// Exit code of a machine that is at fault itself, as that of `docker run`.
pub const CODE_OF_MACHINE: u8 = 125;
/// Exit code of a machine that had to be killed: 128 and `SIGKILL`.
pub const CODE_OF_KILL: u8 = 137;

/// How a machine has ended: the file [`OUTCOME_FILE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The one word.
    pub outcome: Word,
    /// A sentence beside it, for a person; may be empty. Never longer than [`MAX_MESSAGE_BYTES`],
    /// without control characters.
    #[serde(default)]
    pub message: String,
    /// Whether the guest's kernel killed for want of memory.
    #[serde(default)]
    pub out_of_memory: bool,
}

/// How a machine has ended, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The command ended and the guest switched off.
    Exited,
    /// It was asked to end, and did.
    Stopped,
    /// It was asked to end, and did not in time.
    Killed,
    /// There is no QEMU, it is too old, or it refused to start.
    NoQemu,
    /// KVM was asked for, and does not work.
    NoKvm,
    /// QEMU ended by itself.
    QemuDied,
    /// QEMU did not answer.
    QemuHung,
    /// The guest's agent never spoke.
    Silent,
    /// The guest's agent spoke, and no more.
    Hung,
    /// The guest's kernel panicked.
    Panicked,
    /// The guest reset itself.
    Rebooted,
    /// The guest switched off without a word of its agent.
    PoweredOff,
    /// The guest broke a rule of its port.
    BrokeProtocol,
    /// The guest could not be what it was to be.
    Failed,
    /// The order or what it names can't be read.
    LostDaemonFiles,
}

impl Word {
    /// The word as it stands in the file and as `ps` shows it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::NoQemu => "no-qemu",
            Self::NoKvm => "no-kvm",
            Self::QemuDied => "qemu-died",
            Self::QemuHung => "qemu-hung",
            Self::Silent => "silent",
            Self::Hung => "hung",
            Self::Panicked => "panicked",
            Self::Rebooted => "rebooted",
            Self::PoweredOff => "powered-off",
            Self::BrokeProtocol => "broke-protocol",
            Self::Failed => "failed",
            Self::LostDaemonFiles => "lost-daemon-files",
        }
    }
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Outcome {
    /// An outcome with a message, which is cleaned and cut.
    #[must_use]
    pub fn new(outcome: Word, message: impl AsRef<str>) -> Self {
        Self { outcome, message: clean(message.as_ref(), MAX_MESSAGE_BYTES), out_of_memory: false }
    }

    /// Reads an outcome that somebody may have forged: no more than [`MAX_OUTCOME_BYTES`], and a
    /// message that is safe to show. `None`: it is none.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let short = text.len() <= MAX_OUTCOME_BYTES;
        let told: Self = short.then(|| serde_json::from_slice(text).ok())??;
        Some(Self { message: clean(&told.message, MAX_MESSAGE_BYTES), ..told })
    }

    /// Writes it into the machine's directory, whole or not at all.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let new = directory.join(format!("{OUTCOME_FILE}.new"));
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        drop(file);
        fs::rename(new, directory.join(OUTCOME_FILE))
    }
}

/// An error with all its causes, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [Word; 15] = [
        Word::Exited,
        Word::Stopped,
        Word::Killed,
        Word::NoQemu,
        Word::NoKvm,
        Word::QemuDied,
        Word::QemuHung,
        Word::Silent,
        Word::Hung,
        Word::Panicked,
        Word::Rebooted,
        Word::PoweredOff,
        Word::BrokeProtocol,
        Word::Failed,
        Word::LostDaemonFiles,
    ];

    #[test]
    fn words_are_the_same_in_the_file_and_on_the_screen() {
        for word in WORDS {
            let text = serde_json::to_string(&word).unwrap();
            assert_eq!(text, format!("\"{word}\""));
        }
    }

    #[test]
    fn the_longest_message_fits_its_file_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let worst = "\u{7f}\"\\\u{2028}".repeat(1000);
        let outcome = Outcome::new(Word::Panicked, &worst);
        outcome.write(directory.path()).unwrap();
        let text = fs::read(directory.path().join(OUTCOME_FILE)).unwrap();
        assert_eq!(Outcome::parse(&text), Some(outcome));
    }

    #[test]
    fn a_forged_outcome_is_none_or_harmless() {
        assert_eq!(Outcome::parse(b"{\"outcome\":\"fine\"}"), None);
        assert_eq!(Outcome::parse(&vec![b' '; MAX_OUTCOME_BYTES + 1]), None);
        let told = Outcome::parse(b"{\"outcome\":\"hung\",\"message\":\"a\\u001b[2Jb\"}").unwrap();
        assert_eq!(told.message, "a [2Jb");
    }
}
