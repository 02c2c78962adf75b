//! The faults of a file, and their places: for people, and as JSON for programs.

use std::fmt::{self, Write as _};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::bounds::DIAGNOSTICS_MAX;

/// Columns of a source line that a message shows; longer lines are cut around the place.
const SHOWN_COLUMNS: usize = 100;

/// The rule that a file breaks. The words are stable: programs may compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// No TOML.
    Syntax,
    /// A key that this place doesn't have.
    UnknownKey,
    /// A key without which there is no sense.
    MissingKey,
    /// A string where a list belongs, and the like.
    WrongType,
    /// A word that is none of those that are possible here.
    UnknownWord,
    /// No name of a distributed container, domain or service.
    BadName,
    /// Empty, too long, or with characters that can't be there.
    BadText,
    /// Outside its bounds.
    OutOfRange,
    /// More entries than there may be.
    TooMany,
    /// Fewer entries than there must be.
    TooFew,
    /// No duration.
    BadDuration,
    /// No size.
    BadSize,
    /// No path that can be meant.
    BadPath,
    /// No address, or one that can't be asked.
    BadAddress,
    /// No user or group.
    BadUser,
    /// No capability, or one that undoes the isolation.
    BadCapability,
    /// No name of an environment variable, or one that is taken.
    BadVariable,
    /// No domain has this name.
    UnknownDomain,
    /// No service has this name.
    UnknownService,
    /// No endpoint has this name.
    UnknownEndpoint,
    /// No volume has this name.
    UnknownVolume,
    /// Said twice.
    Duplicate,
    /// Two keys that exclude each other.
    Conflict,
    /// A domain with nothing to run.
    NothingToRun,
    /// A key that has no meaning for this kind of domain.
    WrongKind,
    /// A place in the domain that belongs to Tombolo or to the kernel.
    ReservedPath,
    /// Domains that wait for each other.
    Cycle,
    /// A service that nobody may use.
    UnusedService,
    /// A domain that mounts what it may not use.
    NotAllowed,
    /// A backend that can't reach its upstreams.
    NoNetwork,
    /// Something on the node is not there or is of another kind.
    NotFound,
    /// The node can't keep what would be promised.
    NotKept,
}

impl Code {
    /// The word in `error[word]` and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::UnknownKey => "unknown-key",
            Self::MissingKey => "missing-key",
            Self::WrongType => "wrong-type",
            Self::UnknownWord => "unknown-word",
            Self::BadName => "bad-name",
            Self::BadText => "bad-text",
            Self::OutOfRange => "out-of-range",
            Self::TooMany => "too-many",
            Self::TooFew => "too-few",
            Self::BadDuration => "bad-duration",
            Self::BadSize => "bad-size",
            Self::BadPath => "bad-path",
            Self::BadAddress => "bad-address",
            Self::BadUser => "bad-user",
            Self::BadCapability => "bad-capability",
            Self::BadVariable => "bad-variable",
            Self::UnknownDomain => "unknown-domain",
            Self::UnknownService => "unknown-service",
            Self::UnknownEndpoint => "unknown-endpoint",
            Self::UnknownVolume => "unknown-volume",
            Self::Duplicate => "duplicate",
            Self::Conflict => "conflict",
            Self::NothingToRun => "nothing-to-run",
            Self::WrongKind => "wrong-kind",
            Self::ReservedPath => "reserved-path",
            Self::Cycle => "cycle",
            Self::UnusedService => "unused-service",
            Self::NotAllowed => "not-allowed",
            Self::NoNetwork => "no-network",
            Self::NotFound => "not-found",
            Self::NotKept => "not-kept",
        }
    }

    /// Every code, in the order of the reference page.
    pub const ALL: [Self; 32] = [
        Self::Syntax,
        Self::UnknownKey,
        Self::MissingKey,
        Self::WrongType,
        Self::UnknownWord,
        Self::BadName,
        Self::BadText,
        Self::OutOfRange,
        Self::TooMany,
        Self::TooFew,
        Self::BadDuration,
        Self::BadSize,
        Self::BadPath,
        Self::BadAddress,
        Self::BadUser,
        Self::BadCapability,
        Self::BadVariable,
        Self::UnknownDomain,
        Self::UnknownService,
        Self::UnknownEndpoint,
        Self::UnknownVolume,
        Self::Duplicate,
        Self::Conflict,
        Self::NothingToRun,
        Self::WrongKind,
        Self::ReservedPath,
        Self::Cycle,
        Self::UnusedService,
        Self::NotAllowed,
        Self::NoNetwork,
        Self::NotFound,
        Self::NotKept,
    ];
}

/// One thing that is wrong, with the place. It carries its own line of the file, so that it can be
/// shown where the file is not at hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// The rule that is broken.
    pub code: Code,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
    /// The place as bytes of the file.
    pub span: Range<usize>,
    /// How many characters of [`Diagnostic::text`] the place covers; at least 1.
    pub width: usize,
    /// The line of the file, without its end, without control characters.
    pub text: String,
    /// The fault.
    pub message: String,
    /// The probable intention, or the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

/// Everything that is wrong with one file; never empty. Sorted by place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Diagnostics {
    /// The file's name, as it was given.
    pub file: String,
    /// The faults.
    pub list: Vec<Diagnostic>,
    /// How many more there were beyond [`DIAGNOSTICS_MAX`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde gives a reference
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Diagnostics {
    /// The messages as a terminal shows them: each with its line and a caret under the place.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let paint = if colour { Paint::COLOUR } else { Paint::PLAIN };
        let mut out = String::new();
        for diagnostic in &self.list {
            diagnostic.render(&self.file, &paint, &mut out);
            out.push('\n');
        }
        let count = self.list.len() + self.omitted;
        let errors = if count == 1 { "1 error".to_owned() } else { format!("{count} errors") };
        let shown = if self.omitted == 0 {
            String::new()
        } else {
            format!(", of which the first {} are shown", self.list.len())
        };
        let _infallible = writeln!(
            out,
            "{}{} has {errors}{shown}; nothing was started.{}",
            paint.bold,
            printable(&self.file),
            paint.end
        );
        out
    }

    /// The same as JSON: `{"file", "list": [{"code", "line", "column", "span", "message", "help",
    /// ..}]}`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl Diagnostic {
    fn render(&self, file: &str, paint: &Paint, out: &mut String) {
        let gutter = self.line.to_string().len();
        let (text, offset) = self.window();
        let caret = "^".repeat(self.width.min(SHOWN_COLUMNS - offset.min(SHOWN_COLUMNS - 1)).max(1));
        let Paint { red, bold, blue, end } = paint;
        let code = self.code.as_str();
        let mut line = |text: String| {
            out.push_str(text.trim_end());
            out.push('\n');
        };
        line(format!("{red}error[{code}]{end}{bold}: {}{end}", printable(&self.message)));
        line(format!("{:gutter$}{blue}-->{end} {}:{}:{}", "", printable(file), self.line, self.column));
        line(format!("{:gutter$} {blue}|{end}", ""));
        line(format!("{blue}{} |{end} {text}", self.line));
        line(format!("{:gutter$} {blue}|{end} {:offset$}{red}{caret}{end}", "", ""));
        if let Some(help) = &self.help {
            line(format!("{:gutter$} {blue}={end} {bold}help{end}: {}", "", printable(help)));
        }
    }

    /// The part of the line that is shown, and where in it the place begins.
    fn window(&self) -> (String, usize) {
        let start = self.column.saturating_sub(1);
        let skip = if start < SHOWN_COLUMNS { 0 } else { start - SHOWN_COLUMNS / 4 };
        let mut text: String = self.text.chars().skip(skip).take(SHOWN_COLUMNS).collect();
        if self.text.chars().count() > skip + SHOWN_COLUMNS {
            text.push('…');
        }
        (text, start - skip)
    }
}

/// Terminal sequences, or none.
struct Paint {
    red: &'static str,
    bold: &'static str,
    blue: &'static str,
    end: &'static str,
}

impl Paint {
    const PLAIN: Self = Self { red: "", bold: "", blue: "", end: "" };
    const COLOUR: Self = Self { red: "\x1b[1;31m", bold: "\x1b[1m", blue: "\x1b[1;34m", end: "\x1b[0m" };
}

/// A file may hold terminal sequences, and characters that turn the direction of writing; a message
/// must not.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                '\u{fffd}'
            }
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Collects what is wrong while a file is read: this one, or another that is refused in the same
/// way.
#[derive(Debug)]
pub struct Report<'s> {
    source: &'s str,
    list: Vec<Diagnostic>,
    omitted: usize,
    /// Where the words of a diagnostic go that is beyond the bound.
    scrap: Diagnostic,
}

impl<'s> Report<'s> {
    /// Nothing yet about this text.
    #[must_use]
    pub fn new(source: &'s str) -> Self {
        let scrap = place(source, Code::Syntax, &(0..0), String::new());
        Self { source, list: Vec::new(), omitted: 0, scrap }
    }

    /// Notes an error; the result takes the help.
    pub fn error(&mut self, code: Code, span: &Range<usize>, message: impl Into<String>) -> &mut Diagnostic {
        if self.list.len() >= DIAGNOSTICS_MAX {
            self.omitted += 1;
            return &mut self.scrap;
        }
        self.list.push(place(self.source, code, span, message.into()));
        self.list.last_mut().unwrap_or(&mut self.scrap)
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.list.is_empty()
    }

    /// "line 7", for messages that point at a second place.
    pub(crate) fn line_of(&self, span: &Range<usize>) -> String {
        format!("line {}", position(self.source, span.start).0)
    }

    /// Everything that is wrong, in order of its places.
    #[must_use]
    pub fn finish(mut self, file: &str) -> Diagnostics {
        self.list.sort_by_key(|diagnostic| (diagnostic.span.start, diagnostic.code));
        Diagnostics { file: file.to_owned(), list: self.list, omitted: self.omitted }
    }
}

impl Diagnostic {
    /// Says what was probably meant.
    pub fn help(&mut self, help: impl Into<String>) {
        self.help = Some(help.into());
    }
}

fn place(source: &str, code: Code, span: &Range<usize>, message: String) -> Diagnostic {
    let start = floor(source, span.start);
    let end = floor(source, span.end).max(start);
    let (line, column, line_start) = position(source, start);
    let rest = source.get(line_start..).unwrap_or("");
    let text = rest.split('\n').next().unwrap_or("").trim_end_matches('\r');
    let covered = source.get(start..end).unwrap_or("").split('\n').next().unwrap_or("");
    Diagnostic {
        code,
        line,
        column,
        span: start..end,
        width: covered.trim_end().chars().count().max(1),
        text: printable(text),
        message,
        help: None,
    }
}

/// The nearest character boundary at or before `offset`.
fn floor(source: &str, offset: usize) -> usize {
    source.floor_char_boundary(offset)
}

/// Line and column from 1, and where the line begins.
fn position(source: &str, offset: usize) -> (usize, usize, usize) {
    let before = source.get(..floor(source, offset)).unwrap_or("");
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.matches('\n').count() + 1;
    let column = before.get(line_start..).unwrap_or("").chars().count() + 1;
    (line, column, line_start)
}
