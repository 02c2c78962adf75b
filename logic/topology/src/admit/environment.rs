//! The variables of a domain: what the file says itself, and what the files say that it names.

use std::collections::BTreeMap;
use std::path::Path;

use super::Context;
use crate::bounds::{FILE_BYTES_MAX, LIST_MAX, TEXT_BYTES_MAX};
use crate::diagnostic::Code;
use crate::file::{self, DomainForm};
use crate::look::Found;
use crate::read::Span;
use crate::suggest::quoted;

/// Variables with this prefix are the daemon's to set.
const OWN_PREFIX: &str = "TOMBOLO_";

/// The variables: those of the files in their order, and over them those of `environment`.
pub(super) fn variables(form: &DomainForm, cx: &mut Context<'_, '_>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for item in form.env_file.value().map_or(&[][..], |items| items.0.as_slice()) {
        let path = file::on_node(cx.base, &item.value.0);
        cx.must_be_there(&path, &item.span, &[Found::File, Found::Other], "file");
        of_file(&path, &item.span, &mut variables, cx);
    }
    for entry in form.environment.value().map_or(&[][..], |named| named.0.as_slice()) {
        let key = entry.key.value.as_str();
        if let Some((message, help)) = wrong_name(key) {
            cx.out.error(Code::BadVariable, &entry.key.span, message).help(help);
        }
        if let Some(value) = &entry.value {
            variables.insert(key.to_owned(), value.value.0.clone());
        }
    }
    variables
}

/// Why no variable can have this name, and what to do.
fn wrong_name(name: &str) -> Option<(String, String)> {
    let first = name.bytes().next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_');
    let rest = name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
    if !first || !rest || name.len() > TEXT_BYTES_MAX {
        let message = format!("{} is no name of a variable", quoted(name));
        return Some((message, "letters, digits and underscores, no digit first".into()));
    }
    let own = name.starts_with(OWN_PREFIX);
    own.then(|| {
        let help = format!("choose a name that doesn't start with {OWN_PREFIX}");
        (format!("{} is Tombolo's to set", quoted(name)), help)
    })
}

/// Adds what one file says; its first error is reported where the topology names it.
fn of_file(path: &Path, span: &Span, variables: &mut BTreeMap<String, String>, cx: &mut Context<'_, '_>) {
    // That there is none has been said.
    if cx.node.look(path) == Found::Nothing {
        return;
    }
    let shown = path.display();
    let text = match cx.node.text(path) {
        None => return,
        Some(Ok(text)) if text.len() > FILE_BYTES_MAX => {
            let message = format!("{shown} has more than {FILE_BYTES_MAX} bytes");
            cx.out.error(Code::TooMany, span, message);
            return;
        }
        Some(Ok(text)) => text,
        Some(Err(why)) => {
            cx.out.error(Code::NotFound, span, format!("can't read {shown}: {why}"));
            return;
        }
    };
    match parse(&text) {
        Ok(said) => {
            let own: BTreeMap<&str, ()> = said.iter().map(|(name, _)| (name.as_str(), ())).collect();
            if own.len() > LIST_MAX {
                let message = format!("{shown} has {} variables; at most {LIST_MAX} can be here", own.len());
                cx.out.error(Code::TooMany, span, message);
            }
            variables.extend(said);
        }
        Err(Wrong { line, code, message, help }) => {
            cx.out.error(code, span, format!("{shown}, line {line}: {message}")).help(help);
        }
    }
}

/// A fault in a file of variables.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    /// Counts from 1.
    line: usize,
    code: Code,
    message: String,
    help: String,
}

/// The variables of a file: `NAME=VALUE` on each line, `#` and empty lines apart. A value in single
/// quotes is as it stands, one in double quotes has `\n`, `\t`, `\"`, `\$` and `\\`; without quotes
/// it ends at a ` #`, and blanks around it are no part of it. Nothing is put in its place: a `$` is
/// a `$`.
fn parse(text: &str) -> Result<Vec<(String, String)>, Wrong> {
    let mut variables = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |code, message: String, help: &str| Wrong {
            line: index + 1,
            code,
            message,
            help: help.to_owned(),
        };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((name, value)) = line.split_once('=') else {
            return Err(wrong(Code::BadVariable, "there is no `=`".into(), "NAME=VALUE, or # and a remark"));
        };
        let name = name.trim();
        if let Some((message, help)) = wrong_name(name) {
            return Err(wrong(Code::BadVariable, message, &help));
        }
        let value = value_of(value.trim())
            .map_err(|message| wrong(Code::BadText, message.to_owned(), "NAME=\"VALUE\""))?;
        if value.len() > TEXT_BYTES_MAX || value.contains('\0') {
            let message = format!("the value has more than {TEXT_BYTES_MAX} bytes, or a zero among them");
            return Err(wrong(
                Code::BadText,
                message,
                "a long text belongs in a file that the domain mounts",
            ));
        }
        variables.push((name.to_owned(), value));
    }
    Ok(variables)
}

/// A value without its quotes.
fn value_of(text: &str) -> Result<String, &'static str> {
    const OPEN: &str = "the quote is not closed on this line";
    const BEHIND: &str = "there is something behind the closing quote";
    let remark = |rest: &str| rest.trim().is_empty() || rest.trim_start().starts_with('#');
    if let Some(rest) = text.strip_prefix('\'') {
        let (value, rest) = rest.split_once('\'').ok_or(OPEN)?;
        return if remark(rest) { Ok(value.to_owned()) } else { Err(BEHIND) };
    }
    let Some(rest) = text.strip_prefix('"') else {
        let end = if text.starts_with('#') { Some(0) } else { text.find(" #").or_else(|| text.find("\t#")) };
        return Ok(end.map_or(text, |end| &text[..end]).trim_end().to_owned());
    };
    let mut value = String::new();
    let mut characters = rest.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return if remark(&rest[at + 1..]) { Ok(value) } else { Err(BEHIND) },
            '\\' => match characters.next().ok_or(OPEN)?.1 {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                other @ ('"' | '$' | '\\') => value.push(other),
                other => value.extend(['\\', other]),
            },
            other => value.push(other),
        }
    }
    Err(OPEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_variables_is_read_as_people_write_it() {
        let text = "# a remark\n\nPLAIN=a b # behind it\nexport SINGLE='$HOME #1' # remark\nDOUBLE=\"a\\n\\\"b\\\" \\d\"\n EMPTY=\nURL=http://x/#y\nNONE= # nothing\n";
        let said = parse(text).expect("it is read");
        let said: Vec<_> = said.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let wanted = [
            ("PLAIN", "a b"),
            ("SINGLE", "$HOME #1"),
            ("DOUBLE", "a\n\"b\" \\d"),
            ("EMPTY", ""),
            ("URL", "http://x/#y"),
            ("NONE", ""),
        ];
        assert_eq!(said, wanted);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let wrong = |text: &str| {
            let wrong = parse(text).expect_err("it is refused");
            (wrong.line, wrong.code)
        };
        assert_eq!(wrong("A=1\nB\n"), (2, Code::BadVariable));
        assert_eq!(wrong("1A=1\n"), (1, Code::BadVariable));
        assert_eq!(wrong("TOMBOLO_X=1\n"), (1, Code::BadVariable));
        assert_eq!(wrong("A='open\n"), (1, Code::BadText));
        assert_eq!(wrong("A=\"open\\\n"), (1, Code::BadText));
        assert_eq!(wrong("A=\"b\" c\n"), (1, Code::BadText));
    }
}
