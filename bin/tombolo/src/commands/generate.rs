//! Completions and man pages, out of the definitions of the command line.

use crate::cli::Cli;
use clap::CommandFactory;
use std::path::Path;
use terminal::{Failure, print};

/// `tombolo completions SHELL`.
pub fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    print(&String::from_utf8_lossy(&crate::completion::script(&shell.to_string())?))
}

/// `tombolo man [DIR]`.
pub fn man(folder: Option<&Path>) -> Result<(), Failure> {
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        return print(&with_examples(&String::from_utf8_lossy(&page)));
    };
    let at = |error: std::io::Error| {
        Failure::new(format!("can't write man pages into {}: {error}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(at)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(at)?;
    for entry in std::fs::read_dir(folder).map_err(at)? {
        let entry = entry.map_err(at)?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("tombolo") && name.ends_with(".1")) {
            let page = std::fs::read_to_string(entry.path()).map_err(at)?;
            std::fs::write(entry.path(), with_examples(&page)).map_err(at)?;
        }
    }
    Ok(())
}

/// A page whose examples stand under that heading, line by line: the generator flows them together
/// under `EXTRA`.
fn with_examples(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let Some((before, extra)) = page.split_once(EXTRA) else { return page.to_owned() };
    let (examples, after) =
        extra.find("\n.SH").map_or((extra, ""), |end| (&extra[..=end], &extra[end + 1..]));
    let examples = examples.strip_prefix("Examples:\n").unwrap_or(examples);
    format!("{before}.SH EXAMPLES\n.nf\n{examples}.fi\n{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines() {
        let page = ".SH NAME\nx\n.SH EXTRA\nExamples:\n  a   b\n  c\n.SH VERSION\nv1\n";
        assert_eq!(
            with_examples(page),
            ".SH NAME\nx\n.SH EXAMPLES\n.nf\n  a   b\n  c\n.fi\n.SH VERSION\nv1\n"
        );
        assert_eq!(with_examples(".SH NAME\nx\n"), ".SH NAME\nx\n");
    }
}
