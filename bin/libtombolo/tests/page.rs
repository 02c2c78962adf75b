//! `docs/channels.md` and `docs/endpoints.md` work when they are typed: their programs are compiled
//! and run as the pages say, and print what these say.

mod stage;

use stage::{Stage, assert_went_well, daemon, root, text};
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

/// Both programs of the page do what it shows; a stand-in for the daemon introduces them. `e2e`
/// types them in domains of their own.
#[test]
fn the_programs_of_the_page_on_endpoints_do_what_it_shows() {
    let stage = Stage::set();
    for (program, why) in [("cc", "gcc libc6-dev"), ("python3", "python3")] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: there is no {program} (apt-get install {why})");
            return;
        }
    }
    let page = std::fs::read_to_string(root().join("docs/endpoints.md")).expect("the page");
    let blocks = blocks(&page);
    let block = |head: &str| {
        let found = blocks.iter().find(|(name, _)| name == head);
        found
            .map(|(_, text)| text.clone())
            .unwrap_or_else(|| panic!("the page has no block `{head}` any more"))
    };
    for file in ["c planner.c", "python desk.py", "python loop.py"] {
        let name = file.split(' ').nth(1).expect("kept for it");
        std::fs::write(stage.folder().join(name), block(file)).expect("written");
    }
    let planner = stage.compile(&stage.folder().join("planner.c")).expect("there is a compiler");
    let daemon = daemon(&stage);
    let run = |server: &str| {
        let typed = format!("{server} > planner.log & python3 desk.py; wait $!; cat planner.log");
        let output = stage
            .command("bash")
            .args(["-e", "-u", "-c", &typed])
            .current_dir(stage.folder())
            .env("TOMBOLO_CONTROL", daemon.socket("a"))
            .output()
            .expect("a shell");
        assert_went_well("docs/endpoints.md", &output);
        text(&output.stdout)
    };
    assert_eq!(run(&planner.display().to_string()), block("text rooms"));
    let in_a_loop = run("python3 loop.py");
    assert!(in_a_loop.starts_with("turn right\nturn right\n"), "{in_a_loop}");
}
