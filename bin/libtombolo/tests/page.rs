//! `docs/channels.md` works when it is typed: its programs are compiled and run as the page says, and print what it says.

mod stage;

use stage::{Stage, assert_went_well, root, text};
use std::process::Command;

/// The blocks of the page that carry a name behind their language: name and text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut block: Option<(String, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), block.take()) {
            (Some(""), Some(done)) => blocks.push(done),
            (Some(start), None) => block = Some((start.to_owned(), String::new())),
            (_, Some((name, text))) => block = Some((name, text + line + "\n")),
            (None, None) => {}
        }
    }
    blocks.retain(|(name, _)| name.contains(' '));
    blocks
}

#[test]
fn the_page_works_when_it_is_typed() {
    let stage = Stage::set();
    for (program, why) in [("cc", "gcc libc6-dev"), ("python3", "python3")] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: there is no {program} (apt-get install {why})");
            return;
        }
    }
    let page = std::fs::read_to_string(root().join("docs/channels.md")).expect("the page");
    let (mut typed, mut shown) = (String::new(), String::new());
    for (name, block) in blocks(&page) {
        match name.as_str() {
            "sh typed" => typed = block,
            "text typed" => shown = block,
            _ => {
                let file = name.split(' ').nth(1).expect("kept for it");
                std::fs::write(stage.folder().join(file), block).expect("written");
            }
        }
    }
    // As after `make install-library`: the compiler and the loader find things by themselves.
    let output = stage
        .command("bash")
        .args(["-e", "-u", "-c", &typed])
        .current_dir(stage.folder())
        .env("CPATH", root().join("include").canonicalize().expect("the headers"))
        .env("LIBRARY_PATH", stage.folder())
        .output()
        .expect("a shell");
    assert_went_well("docs/channels.md", &output);
    assert!(!shown.is_empty(), "the page shows nothing");
    assert_eq!(text(&output.stdout), shown, "{}", text(&output.stderr));
}
