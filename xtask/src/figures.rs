//! The figures of the benches: each with the machine and the commit that it was measured on, kept
//! in `docs/figures.tsv`, shown in the tables of `docs/performance.md`, one column for each
//! machine.
//!
//! `tombolo bench SCENARIO --record FILE` writes what is read here. Earlier figures stay in the
//! file, so that a regression is seen.

mod page;

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file of all figures, below the root.
const FILE: &str = "docs/figures.tsv";
/// The page that shows the newest of each machine.
const PAGE: &str = "docs/performance.md";
/// The first line of the file.
const HEAD: &str = "promise\tmachine\tcommit\tvalue\tlow\thigh\tunit\tlaunches\tverdict\tdepends";

/// Why figures can't be kept or shown.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// A file can't be read or written.
    #[error("{file}: {source}")]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of a recording or of the kept figures says something else than it should.
    #[error("{file}:{line}: {what}")]
    Line {
        /// The file.
        file: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The field that is missing or wrong.
        what: String,
    },
    /// Git does not say which commit was measured.
    #[error("git does not tell the commit: {0}")]
    Commit(String),
}

/// One figure: a promise as it was measured on a machine at a commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    promise: String,
    machine: String,
    commit: String,
    /// Value, low and high end of its interval.
    values: [f64; 3],
    unit: String,
    launches: u64,
    /// `holds`, `fails` or `undecided`.
    verdict: String,
    /// Paths below the root; the figure is in doubt where they have changed since.
    depends: Vec<String>,
}

/// Adds what the recordings say to the figures, and writes the page's tables anew.
///
/// # Errors
/// [`FigureError`]; neither file has changed then.
pub fn add(root: &Path, recordings: &[&str]) -> Result<usize, FigureError> {
    let commit = commit(root)?;
    let mut figures = read(root)?;
    let before = figures.len();
    for recording in recordings {
        figures.extend(recorded(Path::new(recording), &commit)?);
    }
    let page = root.join(PAGE);
    let text = page::written(&text(&page)?, &figures);
    keep(&root.join(FILE), &lines(&figures))?;
    keep(&page, &text)?;
    Ok(figures.len() - before)
}

/// The figures whose code has changed since they were measured, one sentence for each scenario's
/// commit. Nothing where git does not know.
pub fn stale(root: &Path) -> Result<Vec<String>, FigureError> {
    let figures = read(root)?;
    let mut groups: BTreeMap<(&str, &[String]), usize> = BTreeMap::new();
    for figure in newest(&figures).into_values() {
        *groups.entry((&figure.commit, &figure.depends)).or_default() += 1;
    }
    let said = groups.into_iter().filter_map(|((commit, depends), count)| {
        let since = commits_since(root, commit, depends).filter(|&since| since > 0)?;
        let paths = depends.join(", ");
        Some(format!("{count} figures were measured at {commit}; since then {since} commits changed {paths}"))
    });
    Ok(said.collect())
}

/// The newest figure of each promise on each machine: the last one in the file.
fn newest(figures: &[Figure]) -> BTreeMap<(&str, &str), &Figure> {
    figures.iter().map(|figure| ((figure.promise.as_str(), figure.machine.as_str()), figure)).collect()
}

fn commits_since(root: &Path, commit: &str, depends: &[String]) -> Option<u64> {
    let range = format!("{}..HEAD", commit.trim_end_matches('+'));
    let mut arguments = vec!["rev-list", "--count", range.as_str(), "--"];
    arguments.extend(depends.iter().map(String::as_str));
    git(root, &arguments).ok()?.parse().ok()
}

/// The commit of the tree, with `+` where files differ from it.
fn commit(root: &Path) -> Result<String, FigureError> {
    let commit = git(root, &["rev-parse", "--short=8", "HEAD"]).map_err(FigureError::Commit)?;
    let changed =
        git(root, &["status", "--porcelain", "--untracked-files=no"]).map_err(FigureError::Commit)?;
    // Figures and their page change with each scenario that is added.
    let counts = |line: &str| !line.ends_with(FILE) && !line.ends_with(PAGE);
    Ok(if changed.lines().any(counts) { commit + "+" } else { commit })
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output();
    match output {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn text(file: &Path) -> Result<String, FigureError> {
    std::fs::read_to_string(file).map_err(|source| FigureError::File { file: file.to_owned(), source })
}

fn keep(file: &Path, text: &str) -> Result<(), FigureError> {
    std::fs::write(file, text).map_err(|source| FigureError::File { file: file.to_owned(), source })
}

/// The figures of one recording: a line with the environment, then others, those of promises among
/// them.
fn recorded(file: &Path, commit: &str) -> Result<Vec<Figure>, FigureError> {
    let text = text(file)?;
    let mut head = None;
    let mut figures = Vec::new();
    for (line, said) in text.lines().enumerate() {
        let wrong =
            |what: &str| FigureError::Line { file: file.to_owned(), line: line + 1, what: what.to_owned() };
        let value: Value = serde_json::from_str(said).map_err(|error| wrong(&error.to_string()))?;
        if value.get("environment").is_some() {
            head = Some(machine(&value).ok_or_else(|| wrong("the environment has no processor"))?);
        } else if value.get("promise").is_some() {
            let head = head.as_ref().ok_or_else(|| wrong("a promise before the environment"))?;
            figures.push(figure(&value, head, commit).ok_or_else(|| wrong("a promise lacks a field"))?);
        }
    }
    Ok(figures)
}

/// The machine's name, and the paths that a scenario depends on.
fn machine(head: &Value) -> Option<(String, Vec<String>)> {
    let environment = head.get("environment")?;
    let kind = if environment.get("virtualised")?.as_bool()? { "virtual" } else { "real" };
    let name = format!(
        "{} x {} ({kind})",
        environment.get("processors")?.as_u64()?,
        environment.get("processor")?.as_str()?
    );
    let depends = head.get("depends")?.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned);
    Some((name.replace(['\t', '|'], " "), depends.collect()))
}

fn figure(value: &Value, (machine, depends): &(String, Vec<String>), commit: &str) -> Option<Figure> {
    let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
    let end = |index: usize| value.get("ci")?.get(index)?.as_f64();
    Some(Figure {
        promise: text("promise")?,
        machine: machine.clone(),
        commit: commit.to_owned(),
        values: [value.get("value")?.as_f64()?, end(0)?, end(1)?],
        unit: text("unit")?,
        launches: value.get("launches")?.as_u64()?,
        verdict: text("verdict")?,
        depends: depends.clone(),
    })
}

/// The figures that are kept; none where there is no file yet.
fn read(root: &Path) -> Result<Vec<Figure>, FigureError> {
    let file = root.join(FILE);
    if !file.exists() {
        return Ok(Vec::new());
    }
    let text = text(&file)?;
    let parse = |(line, said): (usize, &str)| {
        kept(said).ok_or_else(|| FigureError::Line {
            file: file.clone(),
            line: line + 1,
            what: format!("not as the first line says: {}", HEAD.replace('\t', ", ")),
        })
    };
    text.lines().enumerate().skip(1).map(parse).collect()
}

fn kept(line: &str) -> Option<Figure> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [promise, machine, commit, value, low, high, unit, launches, verdict, depends] = fields.as_slice()
    else {
        return None;
    };
    Some(Figure {
        promise: (*promise).to_owned(),
        machine: (*machine).to_owned(),
        commit: (*commit).to_owned(),
        values: [value.parse().ok()?, low.parse().ok()?, high.parse().ok()?],
        unit: (*unit).to_owned(),
        launches: launches.parse().ok()?,
        verdict: (*verdict).to_owned(),
        depends: depends.split(' ').filter(|path| !path.is_empty()).map(str::to_owned).collect(),
    })
}

fn lines(figures: &[Figure]) -> String {
    let mut text = format!("{HEAD}\n");
    for figure in figures {
        let [value, low, high] = figure.values;
        let Figure { promise, machine, commit, unit, launches, verdict, depends, .. } = figure;
        text += &format!(
            "{promise}\t{machine}\t{commit}\t{value}\t{low}\t{high}\t{unit}\t{launches}\t{verdict}\t{}\n",
            depends.join(" ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure of a promise on a machine at a commit.
    pub(super) fn figure_of(promise: &str, machine: &str, commit: &str, value: f64) -> Figure {
        Figure {
            promise: promise.to_owned(),
            machine: machine.to_owned(),
            commit: commit.to_owned(),
            values: [value, value - 0.5, value + 0.5],
            unit: "x".to_owned(),
            launches: 5,
            verdict: "holds".to_owned(),
            depends: vec!["io/channel".to_owned(), "sys".to_owned()],
        }
    }

    #[test]
    fn figures_are_kept_as_they_were() {
        let figures =
            [figure_of("a.b", "2 x CPU (virtual)", "abc", 1.5), figure_of("c.d", "m", "abc+", 0.25)];
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(root.path().join("docs")).expect("docs");
        assert_eq!(read(root.path()).expect("none yet"), []);
        std::fs::write(root.path().join(FILE), lines(&figures)).expect("written");
        assert_eq!(read(root.path()).expect("read"), figures);
        std::fs::write(root.path().join(FILE), format!("{HEAD}\na.b\tonly\n")).expect("written");
        assert!(
            read(root.path()).expect_err("torn").to_string().contains("figures.tsv:2: not as the first line")
        );
    }

    #[test]
    fn a_recording_is_read_with_its_machine() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("channel.jsonl");
        let environment = r#"{"scenario":"channel","depends":["sys"],"environment":{"processors":2,"processor":"A|B","virtualised":true}}"#;
        let result = r#"{"scenario":"channel","arm":"pipe"}"#;
        let promise = r#"{"promise":"a.b","value":0.9,"unit":"x","relation":"<=","goal":1.0,"holds":true,"verdict":"undecided","ci":[0.8,1.1],"launches":5,"samples":1}"#;
        std::fs::write(&file, format!("{environment}\n{result}\n{promise}\n")).expect("written");
        let figures = recorded(&file, "abc").expect("read");
        assert_eq!(figures.len(), 1);
        assert_eq!((figures[0].machine.as_str(), figures[0].values), ("2 x A B (virtual)", [0.9, 0.8, 1.1]));
        for (text, words) in [
            (format!("{promise}\n"), "jsonl:1: a promise before the environment"),
            (format!("{environment}\n{{\"promise\":\"a.b\"}}\n"), "jsonl:2: a promise lacks a field"),
            ("{\n".to_owned(), "jsonl:1: EOF"),
        ] {
            std::fs::write(&file, text).expect("written");
            let error = recorded(&file, "abc").expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_newest_figure_counts() {
        let figures = [
            figure_of("a.b", "m", "1", 1.0),
            figure_of("a.b", "n", "1", 2.0),
            figure_of("a.b", "m", "2", 3.0),
        ];
        let found = newest(&figures);
        assert_eq!((found[&("a.b", "m")].commit.as_str(), found[&("a.b", "n")].commit.as_str()), ("2", "1"));
    }

    #[test]
    fn figures_whose_code_changed_since_are_told() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let run = |arguments: &[&str]| git(root, arguments).expect("git works");
        let commit_all = |path: &str, text: &str| {
            let file = root.join(path);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            std::fs::write(file, text).expect("written");
            run(&["add", "-A"]);
            run(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]);
        };
        run(&["init", "-q"]);
        commit_all("sys/lib.rs", "1");
        let measured = commit(root).expect("a commit");
        commit_all("docs/figures.tsv", &lines(&[figure_of("a.b", "m", &measured, 1.0)]));
        assert_eq!(stale(root).expect("read"), Vec::<String>::new());
        commit_all("sys/lib.rs", "2");
        let said = stale(root).expect("read");
        assert!(
            said.len() == 1 && said[0].contains("since then 1 commits changed io/channel, sys"),
            "{said:?}"
        );
    }
}
