//! A container by runc for one worker: namespaces of its own for processes, mounts, names and
//! memory, the network namespace of its end, no capability but that for raw sockets, and of the
//! machine's files only its programs and libraries, for reading.

use bench::BenchError;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Where the container sees the worker's folder.
const PROGRAMS: &str = "/programs";
/// Where the loader and the libraries are: folders, or links into `/usr`.
const LIBRARIES: [&str; 3] = ["/lib", "/lib64", "/bin"];

/// The command that runs the program in a container until it ends. The bundle is made in `folder`,
/// and the network is that of a process.
///
/// # Errors
/// Where the bundle can't be made.
pub fn command(folder: &Path, number: u32, network: u32, program: &Path) -> Result<Command, BenchError> {
    let bundle = folder.join(format!("container-{number}"));
    make(folder, &bundle, network, program).map_err(BenchError::io("making a container's bundle"))?;
    let mut command = Command::new("runc");
    command.arg("--root").arg(folder.join("runc")).arg("run").arg("--bundle").arg(&bundle);
    // The folder's name is this run's alone.
    let run = folder.file_name().unwrap_or_default().to_string_lossy();
    command.arg(format!("{run}-{number}"));
    Ok(command)
}

fn make(folder: &Path, bundle: &Path, network: u32, program: &Path) -> io::Result<()> {
    let root = bundle.join("root");
    fs::create_dir_all(&root)?;
    let mut binds = vec![("/usr".to_owned(), "/usr".to_owned())];
    for path in LIBRARIES {
        match fs::read_link(path) {
            Ok(target) => symlink(target, root.join(path.trim_start_matches('/')))?,
            Err(_) if Path::new(path).is_dir() => binds.push((path.to_owned(), path.to_owned())),
            Err(_) => {}
        }
    }
    let place = program.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    binds.push((place, PROGRAMS.to_owned()));
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let config = config(&format!("{PROGRAMS}/{name}"), network, &folder.to_string_lossy(), &binds);
    fs::write(bundle.join("config.json"), config.to_string())
}

/// The runtime's configuration (Open Container Initiative, runtime specification 1.0).
fn config(program: &str, network: u32, folder: &str, binds: &[(String, String)]) -> Value {
    let bind = |source: &str, target: &str, access: &str| json!({ "destination": target, "type": "bind", "source": source, "options": ["bind", access, "nosuid", "nodev"] });
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"] }),
        json!({ "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "noexec", "mode=1777"] }),
        bind(folder, folder, "rw"),
    ];
    mounts.extend(binds.iter().map(|(source, target)| bind(source, target, "ro")));
    let capabilities = ["CAP_NET_RAW"];
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": [program],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            "noNewPrivileges": true,
        },
        "root": { "path": "root" },
        "hostname": "bench",
        "mounts": mounts,
        "linux": {
            "namespaces": [
                { "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" },
                { "type": "network", "path": format!("/proc/{network}/ns/net") },
            ],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}
