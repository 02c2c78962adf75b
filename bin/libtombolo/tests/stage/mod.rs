//! The common parts of the library's tests: where it is, and how to compile and run programs that
//! use it.

#![allow(dead_code, reason = "no test needs all of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use testing::FakeDaemon;
use wire::control::EndpointRights;

/// A folder with the library under the name that the loader looks for.
pub struct Stage(tempfile::TempDir);

impl Stage {
    pub fn set() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["libtombolo.so", "libtombolo.so.0"] {
            std::os::unix::fs::symlink(library(), folder.path().join(name)).expect("linked");
        }
        Self(folder)
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Compiles a C program that uses the library; `None`, and it is said, where there is no
    /// compiler.
    pub fn compile(&self, source: &Path) -> Option<PathBuf> {
        let program = self.folder().join(source.file_stem().expect("a name"));
        let compiled = Command::new("cc")
            .args(["-std=gnu99", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", "-I"])
            .arg(root().join("include"))
            .arg("-o")
            .arg(&program)
            .arg(source)
            .arg("-L")
            .arg(self.folder())
            .arg("-ltombolo")
            .output();
        match compiled {
            Ok(output) => {
                assert!(output.status.success(), "{}: {}", source.display(), text(&output.stderr));
                Some(program)
            }
            Err(_) => {
                println!("skipped: there is no C compiler (apt-get install gcc libc6-dev)");
                None
            }
        }
    }

    /// A program that finds the library.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.folder())
            .env("TOMBOLO_LIBRARY", self.folder().join("libtombolo.so.0"))
            .env("PYTHONPATH", root().join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("FOLDER", self.folder())
            // Not that of a domain which the tests may run in.
            .env("TOMBOLO_CONTROL", self.folder().join("control.sock"));
        command
    }
}

/// A stand-in for the daemon, which knows some endpoints and allows everything but what concerns
/// `wall`.
pub fn daemon(stage: &Stage) -> FakeDaemon {
    let daemon = FakeDaemon::start(stage.folder(), &["a"], Vec::new());
    let names = ["planner", "motor", "camera", "wall", "copier"];
    daemon.names(&names);
    for name in names {
        daemon.rights("wall", name, EndpointRights::default());
        daemon.rights(name, "wall", EndpointRights::default());
    }
    daemon
}

/// Runs all tests of a C program, each in a process of its own, which `prepared` has a last look
/// at.
pub fn run_all(stage: &Stage, program: &str, at_least: usize, mut prepared: impl FnMut(&mut Command)) {
    let source = root().join("bin/libtombolo/tests").join(program);
    let Some(program) = stage.compile(&source) else { return };
    let listed = stage.command(&program).output().expect("it runs");
    let listed = text(&listed.stdout);
    let names: Vec<&str> = listed.lines().collect();
    assert!(names.len() >= at_least, "{names:?}");
    let failed: Vec<String> = names
        .iter()
        .filter_map(|name| {
            let mut command = stage.command(&program);
            prepared(&mut command);
            let output = command.arg(name).output().expect("it runs");
            (!output.status.success()).then(|| {
                format!("{name}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
            })
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The library that was built with this test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let found = test.parent().expect("a folder").join("libtombolo.so");
    assert!(found.exists(), "{} was not built", found.display());
    found
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A program's output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that a program went well.
pub fn assert_went_well(name: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{name}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}
