//! Words that may not stand in Rust code: read as tokens, so that comments and strings may speak of
//! them.

use super::Violation;
use super::tree::Tree;
use proc_macro2::{TokenStream, TokenTree};
use std::path::Path;

/// A comment with this start on the line of a sleep, or on one of the [`ARGUMENT_LINES`] above it,
/// argues for it.
const SLEEP_ARGUMENT: &str = "// tidy(sleep): ";
/// The reason of an ignored test that is only the child of another; the tally knows it too.
pub const OTHER_PROCESS: &str = "the other process of";
/// How far above a sleep its argument may begin.
const ARGUMENT_LINES: usize = 3;

/// A sequence of tokens that is forbidden.
struct Forbidden {
    tokens: &'static [&'static str],
    what: &'static str,
    why: &'static str,
    mend: &'static str,
    allowed: fn(&Path, &str, usize) -> bool,
}

const FORBIDDEN: [Forbidden; 9] = [
    Forbidden {
        tokens: &["unsafe"],
        what: "`unsafe` outside sys/",
        why: "what the compiler can't check is read, argued and tested in one room",
        mend: "move it into sys/ behind a safe function with a SAFETY argument",
        allowed: in_sys,
    },
    Forbidden {
        tokens: &["allow", "(", "unsafe_code"],
        what: "the lint against `unsafe` is switched off",
        why: "what the compiler can't check is read, argued and tested in one room",
        mend: "move the unsafe code into sys/",
        allowed: never,
    },
    Forbidden {
        tokens: &["todo", "!"],
        what: "`todo!`",
        why: "what is not there is not pretended; a user would meet the panic",
        mend: "write it, or leave it out and list it as not yet there",
        allowed: never,
    },
    Forbidden {
        tokens: &["unimplemented", "!"],
        what: "`unimplemented!`",
        why: "what is not there is not pretended; a user would meet the panic",
        mend: "return an error that says so, or write it",
        allowed: never,
    },
    Forbidden {
        tokens: &["dbg", "!"],
        what: "`dbg!`",
        why: "it prints into a user's terminal",
        mend: "use `tracing::debug!` or take it out",
        allowed: never,
    },
    Forbidden {
        tokens: &["#", "[", "ignore"],
        what: "`#[ignore]` on a test",
        why: "an ignored test is counted by nobody; a test that can't run here prints `skipped: REASON`",
        mend: "find out at run time whether it can run, and print `skipped: REASON` where it can't",
        allowed: other_process,
    },
    Forbidden {
        tokens: &["thread", ":", ":", "sleep"],
        what: "a sleep",
        why: "a sleep is either too short (and the test fails) or too long; an event can be awaited",
        mend: "await the event with a deadline, or argue for it above: `// tidy(sleep): reason`",
        allowed: argued,
    },
    Forbidden {
        tokens: &["time", ":", ":", "sleep"],
        what: "a sleep",
        why: "a sleep is either too short (and the test fails) or too long; an event can be awaited",
        mend: "await the event with a deadline, or argue for it above: `// tidy(sleep): reason`",
        allowed: argued,
    },
    Forbidden {
        tokens: &["mem", ":", ":", "transmute"],
        what: "`transmute`",
        why: "there is always a narrower cast that says what is meant",
        mend: "use the narrower cast, `from_ne_bytes` or zerocopy",
        allowed: never,
    },
];

fn in_sys(file: &Path, _text: &str, _line: usize) -> bool {
    file.starts_with("sys")
}

/// A test that another one starts as a process of its own is no test by itself.
fn other_process(_file: &Path, text: &str, line: usize) -> bool {
    let found = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    found.contains(&format!("#[ignore = \"{OTHER_PROCESS}"))
}

fn never(_file: &Path, _text: &str, _line: usize) -> bool {
    false
}

fn argued(_file: &Path, text: &str, line: usize) -> bool {
    let first = line.saturating_sub(ARGUMENT_LINES + 1);
    let mut lines = text.lines().skip(first).take(line - first);
    lines.any(|found| found.split_once(SLEEP_ARGUMENT).is_some_and(|(_, reason)| reason.trim().len() > 9))
}

/// Checks all Rust files.
pub fn check(tree: &Tree) -> Vec<Violation> {
    tree.with_extension("rs").flat_map(|(file, text)| check_file(file, text)).collect()
}

fn check_file(file: &Path, text: &str) -> Vec<Violation> {
    let stream: TokenStream = match text.parse() {
        Ok(stream) => stream,
        Err(error) => return vec![no_rust(file, &error)],
    };
    let mut tokens = Vec::new();
    flatten(stream, &mut tokens);
    let mut violations = Vec::new();
    for start in 0..tokens.len() {
        let line = tokens[start].1;
        let hit = |rule: &&Forbidden| {
            starts_with(&tokens[start..], rule.tokens) && !(rule.allowed)(file, text, line)
        };
        violations.extend(FORBIDDEN.iter().filter(hit).map(|rule| Violation {
            file: file.to_path_buf(),
            line,
            what: rule.what.into(),
            why: rule.why,
            mend: rule.mend.into(),
        }));
    }
    violations
}

fn starts_with(tokens: &[(String, usize)], wanted: &[&str]) -> bool {
    tokens.len() >= wanted.len() && tokens.iter().zip(wanted).all(|((found, _), wanted)| found == wanted)
}

/// All tokens with their lines; an opening bracket is a token, a literal is an empty one.
fn flatten(stream: TokenStream, tokens: &mut Vec<(String, usize)>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let open = match group.delimiter() {
                    proc_macro2::Delimiter::Parenthesis => "(",
                    proc_macro2::Delimiter::Bracket => "[",
                    _ => "{",
                };
                tokens.push((open.into(), line));
                flatten(group.stream(), tokens);
            }
            TokenTree::Ident(word) => tokens.push((word.to_string(), line)),
            TokenTree::Punct(sign) => tokens.push((sign.as_char().to_string(), line)),
            TokenTree::Literal(_) => tokens.push((String::new(), line)),
        }
    }
}

fn no_rust(file: &Path, error: &proc_macro2::LexError) -> Violation {
    Violation {
        file: file.to_path_buf(),
        line: error.span().start().line,
        what: format!("this is no Rust: {error}"),
        why: "the other rules read tokens",
        mend: "let the compiler say more: cargo check".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Tree::made_up(&[(path, text)])).into_iter().map(|found| (found.line, found.what)).collect()
    }

    #[test]
    fn unsafe_is_found_outside_sys_and_nowhere_else() {
        let text = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(found("io/a/src/lib.rs", text), [(2, "`unsafe` outside sys/".to_owned())]);
        assert_eq!(found("sys/src/lib.rs", text), []);
        assert_eq!(found("bin/a/src/lib.rs", "#[unsafe(no_mangle)]\nfn f() {}").len(), 1);
        assert_eq!(found("bin/a/src/lib.rs", "macro_rules! m { () => { unsafe { f() } } }").len(), 1);
    }

    #[test]
    fn comments_strings_and_longer_words_may_speak_of_it() {
        let text = r##"
            // unsafe todo!() dbg!(x)
            /* unsafe /* nested unsafe */ */
            /// unsafe
            fn f<'unsafe_life>() { let _ = ("unsafe { }", r#"todo!() " unsafe"#, b"unsafe", 'u', not_unsafe()); }
        "##;
        assert_eq!(found("io/a/src/lib.rs", text), []);
    }

    #[test]
    fn each_forbidden_word_is_found_with_its_line() {
        for (line, what) in [
            ("fn f() { todo!() }", "`todo!`"),
            ("fn f() { unimplemented!(\"x\") }", "`unimplemented!`"),
            ("fn f() { dbg!(1); }", "`dbg!`"),
            ("#[ignore] fn f() {}", "`#[ignore]` on a test"),
            ("#[ignore = \"slow\"] fn f() {}", "`#[ignore]` on a test"),
            ("fn f() { std::thread::sleep(D); }", "a sleep"),
            ("async fn f() { tokio::time::sleep(D).await; }", "a sleep"),
            ("#![allow(unsafe_code)]", "the lint against `unsafe` is switched off"),
            ("fn f() { std::mem::transmute::<u8, i8>(1); }", "`transmute`"),
        ] {
            assert_eq!(found("sys/src/a.rs", &format!("\n{line}")), [(2, what.to_owned())], "{line}");
        }
    }

    #[test]
    fn the_other_process_of_a_test_may_be_ignored() {
        assert_eq!(found("a.rs", "#[ignore = \"the other process of the test below\"] fn child() {}"), []);
    }

    #[test]
    fn a_sleep_with_an_argument_is_fine_and_an_empty_argument_is_none() {
        let with = |comment: &str| {
            found("a.rs", &format!("fn f() {{\n    {comment}\n    std::thread::sleep(D);\n}}"))
        };
        assert_eq!(with("// tidy(sleep): the device has no event for this"), []);
        assert_eq!(with("// tidy(sleep): x").len(), 1);
        assert_eq!(with("// tidy: sleep").len(), 1);
        assert_eq!(
            found("a.rs", "// tidy(sleep): too far away for this\n\n\n\n\nfn f() { std::thread::sleep(D) }")
                .len(),
            1
        );
    }

    #[test]
    fn a_file_that_is_no_rust_is_said_to_be_none() {
        assert!(found("a.rs", "fn f( {")[0].1.starts_with("this is no Rust"));
    }
}
