//! `tombolo restart`, `stop`, `start` and `kill`.

use super::look::encoded;
use super::{client, up};
use crate::cli::{ActArgs, PlaceArgs};
use admin::Act;
use rustix::process::Signal;
use terminal::Failure;

/// Names of signals that people send to programs, without `SIG`.
const SIGNALS: [(&str, Signal); 12] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ABRT", Signal::ABORT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("WINCH", Signal::WINCH),
];

/// Does the same with each domain, one after the other.
pub fn run(place: &PlaceArgs, arguments: &ActArgs, act: Act) -> Result<(), Failure> {
    let client = client(place)?;
    for domain in &arguments.domains {
        up::follow(&client, &format!("domains/{}/act", encoded(domain)), &act, None, false, arguments.json)?;
    }
    Ok(())
}

/// A signal by its name or number.
///
/// # Errors
/// The words that are to be typed instead.
pub fn signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_name = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, signal)| signal.as_raw());
    let by_number = || text.parse::<i32>().ok().filter(|number| Signal::from_named_raw(*number).is_some());
    by_name.or_else(by_number).ok_or_else(|| {
        let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
        format!("it is no signal: {}, or a number", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for text in ["TERM", "SIGTERM", "sigterm", "15"] {
            assert_eq!(signal(text), Ok(15), "{text}");
        }
        assert!(signal("TREM").is_err_and(|why| why.contains("TERM, CONT")));
        assert!(signal("99").is_err() && signal("-9").is_err());
    }
}
