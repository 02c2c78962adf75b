//! The proof that a node left nothing on the machine.

use std::fs;
use std::path::Path;

/// Everything that still speaks of `run_dir`: processes, mounts, control groups. Empty on a clean
/// machine.
pub fn leftovers(run_dir: &Path) -> Vec<String> {
    let mut found = processes(run_dir);
    found.extend(mounts(run_dir));
    found.extend(cgroups(run_dir));
    found
}

/// Processes whose command line or environment names the run directory.
fn processes(run_dir: &Path) -> Vec<String> {
    let needle = run_dir.as_os_str().as_encoded_bytes();
    let me = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if pid == me || !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if contains(&line, needle) || contains(&environment, needle) {
            found.push(format!("process {pid}: {}", String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    found
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Mounts of this mount namespace that lie below the run directory, and FUSE mounts of ours
/// anywhere in it.
fn mounts(run_dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let below = format!("{}/", run_dir.display());
    table.lines().filter(|line| line.contains(&below)).map(|line| format!("mount {line}")).collect()
}

/// Control groups that carry the run directory's name, in any hierarchy.
fn cgroups(run_dir: &Path) -> Vec<String> {
    let note = run_dir.join("cgroup");
    let Ok(name) = fs::read_to_string(&note) else {
        // No daemon ever ran here, or nothing can be proved.
        let unproved = format!("no {}, so nobody knows which control groups to look for", note.display());
        return if run_dir.join("lock").exists() { vec![unproved] } else { Vec::new() };
    };
    let name = name.trim().to_owned();
    let root = Path::new("/sys/fs/cgroup");
    let mut roots = vec![root.to_path_buf()];
    roots.extend(fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path()));
    roots
        .iter()
        .map(|hierarchy| hierarchy.join(&name))
        .filter(|path| path.is_dir())
        .map(|path| format!("cgroup {}", path.display()))
        .collect()
}
