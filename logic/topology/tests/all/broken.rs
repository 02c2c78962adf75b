//! One broken file per rule, each with the message that a person gets: `broken/RULE.toml` and
//! `broken/RULE.txt`.
//!
//! After a change of words, `TOPOLOGY_REGENERATE=1 cargo test -p topology` writes the messages
//! anew; read the difference.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use reserve::model::Model;
use reserve::network::Link;
use reserve::node::{Capacity, Disk};
use reserve::{Heuristic, Policy, Rule};
use topology::{Code, Diagnostics, Domain, Found, Lack, Look, Part, bounds};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken")
}

/// A node on which `missing` is missing, `file` is a file, the image `ghost:1` was not pulled, a
/// domain `haunted` lacks all that it can lack, nobody looks at the rest, and one processor and a
/// link of 10 Mbit/s are to be promised.
struct Bed(Model);

impl Look for Bed {
    fn look(&self, path: &Path) -> Found {
        match path.to_str() {
            Some("/base/missing") => Found::Nothing,
            Some("/base/file") => Found::File,
            _ => Found::Unknown,
        }
    }

    fn text(&self, path: &Path) -> Option<Result<String, String>> {
        path.ends_with("wrong.env").then(|| Ok("A=1\nthis is nothing\n".to_owned()))
    }

    fn module(&self, path: &Path) -> Option<Result<(), String>> {
        (path == Path::new("/base/modules/none.wasm")).then(|| Err("there is no such file".to_owned()))
    }

    fn lacks(&self, domain: &Domain) -> Vec<Lack> {
        let parts =
            [Part::Root, Part::Tag, Part::User, Part::Command, Part::Ready, Part::Health, Part::Mount(1)];
        let lack = |part: Part| Lack {
            part,
            message: format!("the node lacks {part:?}"),
            help: (part == Part::User).then(|| "look for another".to_owned()),
        };
        if domain.name.as_str() == "haunted" { parts.map(lack).into() } else { Vec::new() }
    }

    fn image(&self, reference: &str) -> Result<Option<String>, Lack> {
        match reference {
            "ghost:1" => Err(Lack {
                part: Part::Root,
                message: "the node has no image ghost:1".to_owned(),
                help: Some("get it".to_owned()),
            }),
            _ => Ok(None),
        }
    }

    fn promised(&self) -> Option<&Model> {
        Some(&self.0)
    }
}

fn node() -> Bed {
    let capacity = Capacity {
        processors: 1,
        rule: Rule::new(Policy::RateMonotonic),
        link: Link { rate_bits: 10_000_000, queue_bytes: 64 << 10, packet_bytes: 1_514 },
        memory_bytes: 1 << 30,
        disk: Disk { bytes: 100_000_000, operations: 10_000 },
    };
    Bed(Model::new(capacity, Heuristic::FirstFit).unwrap())
}

fn refusal(text: &str, name: &str) -> Diagnostics {
    match topology::admit(text, name, Path::new("/base"), &node()) {
        Err(diagnostics) => diagnostics,
        Ok(_) => panic!("{name} was admitted"),
    }
}

fn files(extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

#[test]
fn each_broken_file_gets_its_message() {
    let regenerate = std::env::var_os("TOPOLOGY_REGENERATE").is_some();
    let mut wrong = Vec::new();
    for path in files("toml") {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let message = refusal(&fs::read_to_string(&path).unwrap(), &name).render(false);
        let expected = path.with_extension("txt");
        if regenerate {
            fs::write(&expected, &message).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != message {
            wrong.push(format!("{name} now says:\n{message}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_message_is_left_over() {
    let orphans: Vec<PathBuf> =
        files("txt").into_iter().filter(|path| !path.with_extension("toml").exists()).collect();
    assert_eq!(orphans, Vec::<PathBuf>::new());
}

#[test]
fn every_code_has_a_broken_file() {
    let of = |path: &PathBuf| refusal(&fs::read_to_string(path).unwrap(), "x").list;
    let seen: BTreeSet<Code> = files("toml").iter().flat_map(of).map(|diagnostic| diagnostic.code).collect();
    assert_eq!(seen, Code::ALL.into_iter().collect());
}

#[test]
fn places_are_those_of_the_file() {
    for path in files("toml") {
        let text = fs::read_to_string(&path).unwrap();
        for diagnostic in refusal(&text, "x").list {
            let line = text.lines().nth(diagnostic.line - 1).unwrap_or("");
            assert_eq!(diagnostic.text, line, "{}", path.display());
            let rest: String = line.chars().skip(diagnostic.column - 1).collect();
            let marked = &text[diagnostic.span.clone()];
            assert!(rest.starts_with(marked.lines().next().unwrap_or("")), "{}: {marked}", path.display());
        }
    }
}

#[test]
fn messages_travel_as_json() {
    let diagnostics = refusal("name = \"a\"\n[domain.a]\nkind = \"vmm\"\ncommand = [\"a\"]\n", "a.toml");
    let json = diagnostics.to_json();
    assert_eq!(json["file"], "a.toml");
    assert_eq!(json["list"][0]["code"], "unknown-word");
    assert_eq!((json["list"][0]["line"].as_u64(), json["list"][0]["column"].as_u64()), (Some(3), Some(8)));
    let back: Diagnostics = serde_json::from_value(json).unwrap();
    assert_eq!(back, diagnostics);
    assert_eq!(back.render(true), diagnostics.render(true));
}

#[test]
fn colour_changes_nothing_but_colour() {
    let diagnostics = refusal("name = 3", "a.toml");
    let mut plain = diagnostics.render(true);
    for sequence in ["\x1b[1;31m", "\x1b[1;34m", "\x1b[1m", "\x1b[0m"] {
        assert!(plain.contains(sequence));
        plain = plain.replace(sequence, "");
    }
    assert_eq!(plain, diagnostics.render(false));
}

#[test]
fn a_file_cannot_write_to_the_terminal() {
    let text = "name = \"a\u{9b}31m\"\n'\u{9d}0;title' = \"\u{202e}\"\n";
    let shown = refusal(text, "evil\x1b[2J.toml").render(false);
    assert!(shown.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{shown:?}");
}

#[test]
fn a_file_has_a_size() {
    let text = format!("name = \"a\"\n{}", "#\n".repeat(bounds::FILE_BYTES_MAX / 2));
    let list = refusal(&text, "big.toml").list;
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].code, Code::TooMany);
}

#[test]
fn messages_have_an_end() {
    let text: String = (0..1000).map(|number| format!("key{number} = 1\n")).collect();
    let diagnostics = refusal(&text, "many.toml");
    assert_eq!(diagnostics.list.len(), bounds::DIAGNOSTICS_MAX);
    // Each unknown key, and the two that are missing.
    assert_eq!(diagnostics.list.len() + diagnostics.omitted, 1002);
    assert!(diagnostics.render(false).contains("1002 errors, of which the first 64 are shown"));
}

#[test]
fn a_long_line_is_shown_around_the_place() {
    let text =
        format!("name = \"a\"\n[domain.a]\nkind = \"process\"\ncommand = [{} 3]\n", "\"x\", ".repeat(100));
    let diagnostics = refusal(&text, "long.toml");
    let shown = diagnostics.render(false);
    assert!(shown.lines().all(|line| line.chars().count() < 120), "{shown}");
    let caret = shown.lines().find(|line| line.contains('^')).unwrap().find('^').unwrap();
    let source = shown.lines().find(|line| line.starts_with("4 |")).unwrap();
    assert_eq!(source.chars().nth(caret), Some('3'));
}
