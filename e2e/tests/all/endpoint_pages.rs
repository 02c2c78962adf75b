//! The page on endpoints, typed: what it says that one sees is what one sees.

use e2e::{Node, node};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A block of the page: the words behind its language, and its text.
struct Block {
    head: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let page = fs::read_to_string(Path::new(REPOSITORY).join("docs/endpoints.md")).expect("the page");
    let mut blocks = Vec::new();
    for (number, part) in page.split("\n```").enumerate() {
        // Every other part is between blocks.
        if let (1, Some((head, text))) = (number % 2, part.split_once('\n')) {
            blocks.push(Block { head: head.to_owned(), text: format!("{text}\n") });
        }
    }
    blocks
}

/// The shape of a text, the same each time: a number of any length is `#`, a name that is filled up
/// with blanks has one.
fn shape(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let words: Vec<String> = line.split_whitespace().map(numbers).collect();
        out += &(words.join(" ") + "\n");
    }
    out
}

fn numbers(word: &str) -> String {
    let mut out = String::new();
    for character in word.chars() {
        match character {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            // Parts of a number: `1.5`, `3.1`.
            '.' if out.ends_with('#') => {}
            other => out.push(other),
        }
    }
    out
}

/// Types the blocks `sh NAME` one after the other, each with what follows it as `text NAME`.
fn type_page(node: &Node, folder: &Path, name: &str) {
    let tombolo = format!(
        "tombolo() {{ {} --run-dir {} --state-dir {} \"$@\"; }}\n",
        node::binary().display(),
        node.run_dir().display(),
        node.state_dir().display()
    );
    let blocks = blocks();
    let (typed_head, shown_head) = (format!("sh {name}"), format!("text {name}"));
    let mut typed = 0;
    for (at, block) in blocks.iter().enumerate().filter(|(_, block)| block.head == typed_head) {
        let output = Command::new("bash")
            .args(["-euc", &format!("{tombolo}exec 2>&1\n{}", block.text)])
            .current_dir(folder)
            // As after `make install-library`.
            .env("CPATH", Path::new(REPOSITORY).join("include"))
            .env("LIBRARY_PATH", node::binary().parent().expect("a folder"))
            .output()
            .expect("bash starts");
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}\n--- failed\n{out}\n{}", block.text, node.daemon_log());
        typed += 1;
        if let Some(shown) = blocks.get(at + 1).filter(|next| next.head == shown_head) {
            assert!(
                shape(&out).contains(&shape(&shown.text)),
                "{}\n--- the page shows\n{}\n--- there was\n{out}",
                block.text,
                shown.text
            );
        }
    }
    assert!(typed > 0, "the page has no blocks `{typed_head}` any more");
}

#[test]
fn the_page_on_endpoints_shows_what_is_seen_of_two_of_them() {
    let Some(node) = Node::start() else { return };
    type_page(&node, &files(&node), "hello");
}

#[test]
fn the_programs_on_the_page_do_what_it_shows() {
    let Some(node) = Node::start() else { return };
    if !has_compilers() {
        return;
    }
    type_page(&node, &files(&node), "rooms");
}

/// A folder with the files of the page: blocks whose heads have a name with an end.
fn files(node: &Node) -> PathBuf {
    let folder = node.folder().join("typed");
    fs::create_dir(&folder).expect("a folder");
    for block in blocks() {
        if let Some((_, file)) = block.head.split_once(' ').filter(|(_, file)| file.contains('.')) {
            fs::write(folder.join(file), block.text).expect("written");
        }
    }
    folder
}

/// Whether programs in C and Python can be made and run here; if not, that is said.
fn has_compilers() -> bool {
    for program in ["cc", "python3"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: needs {program}; run `make deps`");
            return false;
        }
    }
    true
}

/// The repository as the page sees it: the example, the header, the library that was built.
fn checkout(node: &Node) -> Option<PathBuf> {
    if !has_compilers() {
        return None;
    }
    let folder = node.folder().join("checkout");
    let example = folder.join("examples/pipeline");
    fs::create_dir_all(&example).expect("a folder");
    for file in ["filter.c", "sensor.py", "store.py", "topology.toml"] {
        fs::copy(Path::new(REPOSITORY).join("examples/pipeline").join(file), example.join(file))
            .expect("copied");
    }
    fs::create_dir(folder.join("target")).expect("a folder");
    let built = std::path::absolute(node::binary()).expect("its path");
    let links = [
        (Path::new(REPOSITORY).join("include").canonicalize().expect("the headers"), folder.join("include")),
        (built.parent().expect("a folder").to_owned(), folder.join("target/release")),
    ];
    for (to, at) in links {
        std::os::unix::fs::symlink(to, at).expect("a link");
    }
    Some(folder)
}

#[test]
fn the_pipeline_does_what_the_page_shows() {
    let Some(node) = Node::start() else { return };
    let Some(folder) = checkout(&node) else { return };
    type_page(&node, &folder, "pipeline");
}

#[test]
fn the_shape_of_a_text_is_what_is_the_same_each_time() {
    assert_eq!(shape("a  12.5 KiB pid 77\n"), "a # KiB pid #\n");
    assert_eq!(shape("{\"frames\": 10, \"mean_us\": 0.1}"), "{\"frames\": #, \"mean_us\": #}\n");
}
