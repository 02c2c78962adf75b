//! How payloads are printed: text with a line end, anything else as it came, and as hexadecimal on
//! a terminal; or as JSON.

use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use terminal::{Failure, Paint, harmless};

/// Bytes in a line of hexadecimal.
const HEX_LINE_BYTES: usize = 16;

/// How a command prints payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people and pipes.
    Plain,
    /// Every byte as it came, and no other.
    Raw,
    /// One object a line.
    Json,
}

impl Form {
    pub fn of(raw: bool, json: bool) -> Self {
        match (raw, json) {
            (_, true) => Self::Json,
            (true, false) => Self::Raw,
            (false, false) => Self::Plain,
        }
    }
}

/// Somebody who said something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub address: String,
    /// Empty where it has none.
    pub name: String,
    /// Empty where it is not known any more.
    pub domain: String,
}

impl Source {
    /// `camera (1.1)`, or `3.1 in desk` of one without a name.
    pub fn text(&self) -> String {
        match (self.name.as_str(), self.domain.as_str()) {
            ("", "") => self.address.clone(),
            ("", domain) => format!("{} in {domain}", self.address),
            (name, _) => format!("{name} ({})", self.address),
        }
    }
}

/// A payload on the standard output.
pub fn payload(bytes: &[u8], form: Form) -> Result<(), Failure> {
    let out = std::io::stdout();
    let terminal = out.is_terminal();
    let bytes = match (form, as_text(bytes)) {
        (Form::Raw, _) => bytes.to_vec(),
        (_, Some(text)) if terminal => with_line_end(&harmless(text)),
        (_, Some(text)) => with_line_end(text),
        (_, None) if terminal => hex_dump(bytes).into_bytes(),
        (_, None) => bytes.to_vec(),
    };
    write(&out, &bytes)
}

/// A payload and who sent it, for people; the bytes alone where they are wished raw.
pub fn said(what: &str, source: &Source, tag: u32, bytes: &[u8], form: Form) -> Result<(), Failure> {
    let out = std::io::stdout();
    match form {
        Form::Raw => write(&out, bytes),
        _ => write(&out, sentence(what, source, tag, bytes).as_bytes()),
    }
}

/// `message from camera (1.1): text`; what has several lines, or is no text, begins in the next
/// one.
fn sentence(what: &str, source: &Source, tag: u32, bytes: &[u8]) -> String {
    let tag = if tag == 0 { String::new() } else { format!(", tag {tag}") };
    let head = format!("{what} from {}{tag}", source.text());
    match as_text(bytes).map(harmless) {
        Some(text) if text.trim_end_matches('\n').contains('\n') => {
            format!("{head}:\n{}\n", text.trim_end_matches('\n'))
        }
        Some(text) => format!("{head}: {}\n", text.trim_end_matches('\n')),
        None => format!("{head}, {} bytes:\n{}", bytes.len(), hex_dump(bytes)),
    }
}

/// Notices have no payload: raw, there is nothing of them.
pub fn notices(source: &Source, bits: u64, form: Form) -> Result<(), Failure> {
    let out = std::io::stdout();
    match form {
        Form::Raw => Ok(()),
        Form::Plain => write(&out, format!("notices from {}: {bits:#x}\n", source.text()).as_bytes()),
        Form::Json => {
            let mut object = about("notices", source);
            object["bits"] = bits.into();
            line(&object)
        }
    }
}

/// One object in a line of its own.
pub fn line(value: &Value) -> Result<(), Failure> {
    write(&std::io::stdout(), format!("{value}\n").as_bytes())
}

/// A remark beside the payload, for people: on the standard error.
pub fn remark(text: &str) {
    let err = std::io::stderr();
    let paint = Paint::of(&err);
    // Where nobody can be told, nobody misses it.
    let _untold = writeln!(err.lock(), "{}{}{}", paint.dim, harmless(text), paint.end);
}

/// Returns a payload in JSON: its length and its content.
pub fn object(kind: &str, source: &Source, tag: u32, bytes: &[u8]) -> Value {
    let mut value = about(kind, source);
    value["tag"] = tag.into();
    value["bytes"] = bytes.len().into();
    match as_text(bytes) {
        Some(text) => value["text"] = text.into(),
        None => value["hex"] = hex(bytes).into(),
    }
    value
}

/// Returns a message without payload in JSON.
fn about(kind: &str, source: &Source) -> Value {
    let mut value = json!({ "kind": kind, "from": source.address });
    for (key, text) in [("name", &source.name), ("domain", &source.domain)] {
        if !text.is_empty() {
            value[key] = text.as_str().into();
        }
    }
    value
}

/// A reader that has gone away (`| head`) ends the program quietly.
fn write(out: &std::io::Stdout, bytes: &[u8]) -> Result<(), Failure> {
    let mut out = out.lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::silent()),
        other => Ok(other?),
    }
}

/// The payload, if it is text: UTF-8 without control characters, but for tabs and line ends.
fn as_text(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t' | '\r')).then_some(text)
}

fn with_line_end(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    if !text.ends_with('\n') {
        bytes.push(b'\n');
    }
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As `hexdump -C` has it: where, bytes, and what of them can be shown.
fn hex_dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (number, line) in bytes.chunks(HEX_LINE_BYTES).enumerate() {
        let cells: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown: String = line
            .iter()
            .map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' })
            .collect();
        let width = 3 * HEX_LINE_BYTES - 1;
        text += &format!("{:08x}  {:width$}  |{shown}|\n", number * HEX_LINE_BYTES, cells.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, domain: &str) -> Source {
        Source { address: "3.1".into(), name: name.into(), domain: domain.into() }
    }

    #[test]
    fn somebody_is_said_by_name_where_there_is_one() {
        assert_eq!(source("camera", "eye").text(), "camera (3.1)");
        assert_eq!(source("", "desk").text(), "3.1 in desk");
        assert_eq!(source("", "").text(), "3.1");
    }

    #[test]
    fn text_is_text_and_everything_else_is_hexadecimal() {
        assert_eq!(as_text("grüße\n".as_bytes()), Some("grüße\n"));
        assert_eq!((as_text(b"\x1b[2J"), as_text(b"a\0"), as_text(b"\xff")), (None, None, None));
        assert_eq!(with_line_end("a"), b"a\n");
        assert_eq!(with_line_end("a\n"), b"a\n");
        let text = object("message", &source("camera", "eye"), 7, b"ok");
        assert_eq!(
            text,
            json!({"kind": "message", "from": "3.1", "name": "camera", "domain": "eye", "tag": 7, "bytes": 2, "text": "ok"})
        );
        let binary = object("reply", &source("", ""), 0, b"\0\xff");
        assert_eq!(binary, json!({"kind": "reply", "from": "3.1", "tag": 0, "bytes": 2, "hex": "00ff"}));
    }

    #[test]
    fn what_was_received_is_said_in_a_line_where_it_is_one() {
        let camera = source("camera", "eye");
        assert_eq!(sentence("message", &camera, 0, b"go\n"), "message from camera (3.1): go\n");
        assert_eq!(sentence("request", &camera, 7, b"a\nb"), "request from camera (3.1), tag 7:\na\nb\n");
        assert_eq!(sentence("message", &camera, 0, b""), "message from camera (3.1): \n");
        let binary = sentence("message", &camera, 0, b"\x1b[2J");
        assert!(binary.starts_with("message from camera (3.1), 4 bytes:\n00000000  1b 5b 32 4a"), "{binary}");
        assert!(!binary.contains('\u{1b}'));
    }

    #[test]
    fn a_dump_has_16_bytes_a_line() {
        let bytes: Vec<u8> = (0x3e..0x50).collect();
        assert_eq!(
            hex_dump(&bytes),
            "00000000  3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d  |>?@ABCDEFGHIJKLM|\n\
             00000010  4e 4f                                            |NO|\n"
        );
    }
}
