//! No file makes the reader panic, whatever is in it; and what it admits, it admits for good
//! reasons.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use topology::{Diagnostics, Topology};

const EXAMPLE: &str = include_str!("../../../../examples/quickstart/topology.toml");

/// Pieces with which a mutation is more likely to reach a rule than with random bytes.
const PIECES: &[&str] = &[
    "name",
    "kind",
    "domain",
    "service",
    "dns",
    "web",
    "\"\"",
    "\"*\"",
    "[]",
    "{}",
    "[",
    "]",
    "{",
    "}",
    "=",
    ".",
    "\n",
    "#",
    "'",
    "\"",
    "\"\"\"",
    "\\u0000",
    "\u{feff}",
    "ü",
    "\r",
    "-1",
    "0",
    "1e999",
    "nan",
    "inf",
    "0x10",
    "true",
    "1979-05-27",
    "99999999999999999999",
    "\"/srv/self\"",
    "\"/proc\"",
    "\"10s\"",
    "\"64MiB\"",
    "\"none\"",
    "\"host\"",
    "[domain.web]\n",
    "[[domain]]\n",
    "after = [\"web\"]\n",
    "stub = true",
    "\u{202e}",
];

static SCHEMA: LazyLock<jsonschema::Validator> =
    LazyLock::new(|| jsonschema::validator_for(&topology::schema()).unwrap());

fn read(text: &str) -> Result<Topology, Diagnostics> {
    topology::parse(text, "hostile.toml", Path::new("/base"))
}

/// Checks that the result holds together.
fn check(text: &str) {
    match read(text) {
        Ok(topology) => {
            assert!(topology::plan(Some(&topology), &topology).is_empty());
            assert_eq!(topology.start_order().len(), topology.domains.len());
            assert!(!topology::explain(&topology).to_string().is_empty());
            let json = serde_json::to_string(&topology).unwrap();
            assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), topology);
            let value: serde_json::Value = toml::from_str(text).unwrap();
            let errors: Vec<String> = SCHEMA.iter_errors(&value).map(|error| error.to_string()).collect();
            assert_eq!(errors, Vec::<String>::new(), "the schema refuses what the reader admits");
        }
        Err(diagnostics) => {
            assert!(!diagnostics.list.is_empty());
            for diagnostic in &diagnostics.list {
                assert!(text.get(diagnostic.span.clone()).is_some());
                assert!(diagnostic.line >= 1 && diagnostic.column >= 1 && diagnostic.width >= 1);
            }
            let shown = diagnostics.render(false);
            assert!(shown.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}

/// Replaces the `take` bytes from `at` by `piece`, at character boundaries.
fn splice(text: &str, at: usize, take: usize, piece: &str) -> String {
    let start = text.floor_char_boundary(at % (text.len() + 1));
    let end = text.floor_char_boundary((start + take).min(text.len())).max(start);
    format!("{}{piece}{}", &text[..start], &text[end..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_text(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn mutated_example(
        edits in prop::collection::vec((any::<usize>(), 0..40_usize, prop::sample::select(PIECES)), 1..4)
    ) {
        let mut text = EXAMPLE.to_owned();
        for (at, take, piece) in edits {
            text = splice(&text, at, take, piece);
        }
        check(&text);
    }

    #[test]
    fn example_without_some_lines(keep in prop::collection::vec(prop::bool::weighted(0.95), EXAMPLE.lines().count())) {
        let lines = EXAMPLE.lines().zip(keep).filter(|(_, keep)| *keep).map(|(line, _)| line);
        check(&lines.collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn values_of_the_wrong_form(line in 0..EXAMPLE.lines().count(), piece in prop::sample::select(PIECES)) {
        let change = |(index, text): (usize, &str)| match text.split_once(" = ") {
            Some((key, _)) if index == line => format!("{key} = {piece}"),
            _ => text.to_owned(),
        };
        check(&EXAMPLE.lines().enumerate().map(change).collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn deep_nesting_ends() {
    check(&format!("name = {}", "[".repeat(100_000)));
    check(&format!("name = {}{}", "{a=".repeat(50_000), "1"));
    check(&format!("[{}]", vec!["a"; 100_000].join(".")));
    check(&format!("{} = 1", vec!["domain"; 100_000].join(".")));
}

#[test]
fn many_domains_are_counted_not_walked() {
    let domains: String = (0..5000).map(|number| format!("[domain.d{number}]\nkind = \"vm\"\n")).collect();
    let diagnostics = read(&format!("name = \"many\"\n{domains}")).unwrap_err();
    assert_eq!(diagnostics.list.len(), 1);
    assert_eq!(diagnostics.list[0].code, topology::Code::TooMany);
}

#[test]
fn a_tangle_of_domains_ends() {
    let names: Vec<String> = (0..256).map(|number| format!("d{number}")).collect();
    let domain = |name: &String| {
        format!("[domain.{name}]\nkind = \"process\"\ncommand = [\"a\"]\nafter = {names:?}\n")
    };
    let text = format!("name = \"tangle\"\n{}", names.iter().map(domain).collect::<String>());
    check(&text);
    let list = read(&text).unwrap_err().list;
    assert!(list.iter().all(|diagnostic| diagnostic.code == topology::Code::Cycle));
}
