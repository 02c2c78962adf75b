//! A service of kind `program`: a thermometer that it makes up, with a file of each behaviour.
//!
//! ```text
//! gauge_program NAME    offers the service NAME of its domain, and serves it until it is ended
//! ```
//!
//! `convert` (session): each line is a number of degrees Celsius, answered in Fahrenheit. `reading`
//! (text): what it measures. `ctl` (control): `offset N` shifts what it measures; after `hold`,
//! this process answers no line of `convert` any more.
//!
//! Exit code 3: refused, or withdrawn; what the daemon said is printed.

use rustix::io::Errno;
use serde_json::{Value, json};
use session::{Context, LinkId, Readiness, ReplyTo, ServeError, Service, serve_program};
use std::process::ExitCode;
use std::time::Instant;
use wire::control::Consumer;
use wire::service::{Behaviour, Export, FileExport, OpenInfo, VERSION};

const CONVERT: u32 = 1;
const READING: u32 = 2;
const CTL: u32 = 3;
/// The measurement where no offset shifts it, in degrees Celsius.
const MEASURED: i64 = 20;

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        eprintln!("usage: gauge_program NAME");
        return ExitCode::FAILURE;
    };
    match serve_program(&name, Gauge::default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(ServeError::Control(error)) => {
            println!("{error}");
            ExitCode::from(3)
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Gauge {
    unit: String,
    offset: i64,
    holds: bool,
}

impl Gauge {
    /// The answer to a request, or `None` where there is none.
    fn answer(&mut self, file: u32, text: &str) -> Option<Result<String, Errno>> {
        Some(match (file, text.split_whitespace().collect::<Vec<_>>().as_slice()) {
            (CONVERT, _) if self.holds => return None,
            (CONVERT, [degrees]) => degrees
                .parse::<i64>()
                .map(|degrees| format!("{}\n", degrees * 9 / 5 + 32))
                .map_err(|_| Errno::INVAL),
            (READING, []) => Ok(format!("{} {}\n", MEASURED + self.offset, self.unit)),
            (CTL, ["offset", by]) => by.parse().map_err(|_| Errno::INVAL).map(|by| {
                self.offset = by;
                String::new()
            }),
            (CTL, ["hold"]) => {
                self.holds = true;
                Ok(String::new())
            }
            (CTL, []) => Ok(format!("offset {}\n", self.offset)),
            _ => Err(Errno::INVAL),
        })
    }
}

impl Service for Gauge {
    fn export(&self) -> Export {
        let file = |id, name: &str, mode, behaviour, verb: &str| FileExport {
            id,
            name: Some(name.to_owned()),
            mode,
            behaviour,
            idempotent: true,
            verb: verb.to_owned(),
            change: None,
        };
        let files = vec![
            file(CONVERT, "convert", 0o666, Behaviour::Session, "read"),
            file(READING, "reading", 0o444, Behaviour::Text, "read"),
            file(CTL, "ctl", 0o666, Behaviour::Control, "calibrate"),
        ];
        Export { version: VERSION, kind: "thermometer".into(), files }
    }

    fn attach(&mut self, _: &mut dyn Context, _: LinkId, consumer: &Consumer) {
        println!("attached {} {}", consumer.domain, consumer.entrance);
    }

    fn detach(&mut self, _: &mut dyn Context, _: LinkId) {}

    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, _: &OpenInfo) {
        ctx.answer(to, Ok(&[]), &[]);
    }

    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        let text = std::str::from_utf8(payload).unwrap_or("?");
        if let Some(answer) = self.answer(to.file, text) {
            ctx.answer(to, answer.as_ref().map(String::as_bytes).map_err(|errno| *errno), &[]);
        }
    }

    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, _: &[u8]) {
        ctx.answer(to, Err(Errno::NOTTY), &[]);
    }

    fn cancel(&mut self, _: &mut dyn Context, _: LinkId, _: u64) {}

    fn close(&mut self, _: &mut dyn Context, _: LinkId, _: u64) {}

    fn settings(&mut self, _: &mut dyn Context, settings: &Value) -> Result<(), String> {
        let unit = settings["unit"].as_str().ok_or("`unit` is missing: a text")?;
        self.unit = unit.to_owned();
        Ok(())
    }

    fn verbs(&mut self, _: &mut dyn Context, _: LinkId, verbs: &[String]) {
        println!("verbs {}", verbs.join(" "));
    }

    fn ready(&mut self, _: &mut dyn Context, _: u32, _: Readiness) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn expired(&mut self, _: &mut dyn Context) {}

    fn state(&self) -> Value {
        json!({ "offset": self.offset })
    }

    fn state_for(&self, _: LinkId) -> Value {
        self.state()
    }
}
