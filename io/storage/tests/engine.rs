//! The real engine: what it serves survives it, and what is wrong with it is noticed.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use storage::{Engine, Format, Limits, Recipe, StorageError};

const USER: u32 = 0x7100_0001;
const SIZE: u64 = 16 << 20;

struct Bed {
    folder: tempfile::TempDir,
    format: Format,
}

impl Bed {
    fn new(format: Format) -> Self {
        let bed = Self { folder: tempfile::tempdir().unwrap(), format };
        storage::create(&bed.image(), format, SIZE).unwrap();
        bed
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn recipe(&self) -> Recipe {
        Recipe {
            program: env!("CARGO_BIN_EXE_storage-roles").into(),
            image: self.image(),
            format: self.format,
            limits: Limits::default(),
            folder: self.folder.path().join("run"),
            user: USER,
            is_shared: true,
        }
    }

    fn start(&self) -> Engine {
        Engine::start(&self.recipe(), |_| Ok(())).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run").join(storage::SHARE).join(storage::SOCKET)
    }

    fn url(&self) -> String {
        format!("nbd+unix:///{}?socket={}", storage::EXPORT, self.socket().display())
    }

    fn io(&self, commands: &[&str]) -> Output {
        let words = commands.iter().flat_map(|command| ["-c", command]);
        Command::new("qemu-io").args(["-f", "raw"]).args(words).arg(self.url()).output().unwrap()
    }

    fn size(&self) -> u64 {
        let told = Command::new("nbdinfo").args(["--size", &self.url()]).output().unwrap();
        String::from_utf8(told.stdout).unwrap().trim().parse().unwrap()
    }
}

#[track_caller]
fn succeeds(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("failed"), "{output:?}");
}

fn status(pid: u32, key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}

#[test]
fn stock_clients_read_what_was_written_before_the_engine_ended() {
    for format in [Format::Raw, Format::Qcow2] {
        let bed = Bed::new(format);
        let mut engine = bed.start();
        assert_eq!(bed.size(), SIZE);
        succeeds(&bed.io(&["write -P 7 1M 2M", "flush", "read -P 7 1M 2M"]));
        assert_eq!(engine.facts().unwrap().bytes, SIZE);
        engine.stop();
        assert!(std::os::unix::net::UnixStream::connect(bed.socket()).is_err(), "nobody is left");
        let engine = bed.start();
        succeeds(&bed.io(&["read -P 7 1M 2M", "read -P 0 4M 1M"]));
        let copy = bed.folder.path().join("copy");
        let copied = Command::new("nbdcopy").arg(bed.url()).arg(&copy).output().unwrap();
        succeeds(&copied);
        assert_eq!(fs::read(&copy).unwrap()[1 << 20..3 << 20], vec![7; 2 << 20]);
        engine.stop();
    }
}

#[test]
fn an_engine_has_no_privilege_and_a_user_of_its_own() {
    let bed = Bed::new(Format::Raw);
    let mut placed = 0;
    let engine = Engine::start(&bed.recipe(), |pid| {
        placed = pid;
        Ok(())
    })
    .unwrap();
    let pid = engine.pid();
    assert_eq!(placed, pid);
    let user = USER.to_string();
    assert_eq!(status(pid, "Uid:"), [&*user; 4].join(" "));
    assert_eq!(status(pid, "Groups:"), "");
    assert_eq!((status(pid, "CapEff:"), status(pid, "CapBnd:")), ("0".repeat(16), "0".repeat(16)));
    assert_eq!(status(pid, "NoNewPrivs:"), "1");
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    assert_ne!(network(&pid.to_string()), network("self"));
    let image = fs::metadata(bed.image()).unwrap();
    assert_eq!((image.uid(), image.mode() & 0o777), (USER, 0o600));
    engine.stop();
}

#[test]
fn what_was_acknowledged_is_there_after_the_engine_is_killed_under_load() {
    let bed = Bed::new(Format::Qcow2);
    for round in 1..=3_u32 {
        let mut engine = bed.start();
        let mut client = Command::new("qemu-io")
            .args(["-f", "raw", &bed.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = client.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            for at in 0..200 {
                // Refused when the client has ended with its engine.
                let _gone = writeln!(input, "write -f -P {} {}k 64k", (at + round) % 250 + 1, at * 64);
            }
        });
        let mut acknowledged = 0_u32;
        for line in BufReader::new(client.stdout.take().unwrap()).lines().map_while(Result::ok) {
            // The answer to a command stands behind the prompt.
            acknowledged += u32::from(line.contains("wrote 65536/65536"));
            if acknowledged == 20 * round {
                engine.kill();
            }
            if line.contains("failed") {
                break;
            }
        }
        drop(client.kill());
        client.wait().unwrap();
        writer.join().unwrap();
        assert!(
            acknowledged >= 20 * round && acknowledged < 200,
            "{acknowledged}: it was not killed under load"
        );
        let pid = engine.pid();
        drop(engine);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let engine = bed.start();
        let checks: Vec<String> = (0..acknowledged)
            .map(|at| format!("read -P {} {}k 64k", (at + round) % 250 + 1, at * 64))
            .collect();
        let checked = bed.io(&checks.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(!String::from_utf8_lossy(&checked.stdout).contains("verification failed"), "{checked:?}");
        succeeds(&checked);
        engine.stop();
    }
}

#[test]
fn an_engine_is_found_again_by_the_next_process_and_one_of_another_volume_is_not_taken() {
    let bed = Bed::new(Format::Qcow2);
    let engine = bed.start();
    let pid = engine.pid();
    // As by a process that dies: nobody asks it to end.
    drop(engine);
    let mut adopted = Engine::adopt(&bed.recipe(), pid).unwrap();
    assert_eq!(adopted.facts().unwrap().bytes, SIZE);
    let other = Recipe { format: Format::Raw, ..bed.recipe() };
    drop(adopted);
    let refused = Engine::adopt(&other, pid).unwrap_err();
    assert!(matches!(refused, StorageError::NotThis(_)), "{refused}");
    Engine::adopt(&bed.recipe(), pid).unwrap().stop();
    let gone = Engine::adopt(&bed.recipe(), pid).unwrap_err().to_string();
    assert!(gone.starts_with("can't "), "{gone}");
}

#[test]
fn an_image_that_is_none_is_refused_and_leaves_nothing() {
    let bed = Bed::new(Format::Qcow2);
    fs::write(bed.image(), vec![9; 1 << 20]).unwrap();
    let mut pid = 0;
    let why = Engine::start(&bed.recipe(), |of| {
        pid = of;
        Ok(())
    })
    .unwrap_err()
    .to_string();
    assert!(why.contains("Image is not in qcow2 format"), "{why}");
    assert!(!Path::new(&format!("/proc/{pid}")).exists() && !bed.socket().exists());
    fs::remove_file(bed.image()).unwrap();
    let why = Engine::start(&bed.recipe(), |_| Ok(())).unwrap_err().to_string();
    assert!(why.starts_with("can't open ") && !bed.socket().exists(), "{why}");
    std::os::unix::fs::symlink("/etc/passwd", bed.image()).unwrap();
    assert!(Engine::start(&bed.recipe(), |_| Ok(())).is_err(), "a link is not followed");
    assert_eq!(fs::metadata("/etc/passwd").unwrap().uid(), 0);
}

#[test]
fn a_volume_grows_while_the_engine_runs_and_comes_back_to_its_snapshots() {
    let bed = Bed::new(Format::Qcow2);
    let mut engine = bed.start();
    succeeds(&bed.io(&["write -P 1 0 1M", "flush"]));
    engine.snapshot("before").unwrap();
    assert!(matches!(engine.snapshot("before"), Err(StorageError::Refused { .. })), "the name is taken");
    succeeds(&bed.io(&["write -P 2 0 1M", "flush"]));
    engine.snapshot("after").unwrap();
    assert_eq!(engine.facts().unwrap().snapshots, ["before", "after"]);
    engine.forget("after").unwrap();
    engine.stop();
    let restore = |name| storage::restore(&bed.recipe().program, &bed.image(), USER, name);
    let why = restore("never").unwrap_err().to_string();
    assert!(why.contains("never") || why.contains("snapshot"), "{why}");
    restore("before").unwrap();
    let mut engine = bed.start();
    succeeds(&bed.io(&["read -P 1 0 1M"]));
    engine.resize(2 * SIZE).unwrap();
    assert_eq!((bed.size(), engine.facts().unwrap().bytes), (2 * SIZE, 2 * SIZE));
    succeeds(&bed.io(&["read -P 1 0 1M", "write -P 3 20M 1M"]));
    engine.stop();
}

#[test]
fn a_limit_holds_and_can_be_lifted() {
    let bed = Bed::new(Format::Raw);
    let slow = Limits { bytes: Some(2 << 20), operations: None };
    let mut engine = Engine::start(&Recipe { limits: slow, ..bed.recipe() }, |_| Ok(())).unwrap();
    let write = || {
        let begun = std::time::Instant::now();
        succeeds(&bed.io(&["write 0 1M", "write 1M 1M", "write 2M 1M", "write 3M 1M"]));
        begun.elapsed()
    };
    assert!(write() >= std::time::Duration::from_secs(1), "4 MiB at 2 MiB/s");
    engine.limit(Limits::default()).unwrap();
    let nodes = engine.facts().unwrap();
    assert_eq!(nodes.bytes, SIZE);
    succeeds(&bed.io(&["write 0 8M"]));
    engine.stop();
}

#[test]
fn a_full_disk_is_an_error_of_the_write_and_the_engine_goes_on() {
    let disk = tempfile::tempdir().unwrap();
    let mount =
        sys::mount::detached("tmpfs", &[("size", "20m")], rustix::mount::MountAttrFlags::empty()).unwrap();
    sys::mount::attach(&mount, disk.path()).unwrap();
    let image = disk.path().join("image");
    storage::create(&image, Format::Raw, SIZE).unwrap();
    fs::write(disk.path().join("other"), vec![1; 12 << 20]).unwrap();
    let bed = Bed::new(Format::Raw);
    let engine = Engine::start(&Recipe { image, ..bed.recipe() }, |_| Ok(())).unwrap();
    let full = bed.io(&["write 0 12M"]);
    let said = format!("{}{}", String::from_utf8_lossy(&full.stdout), String::from_utf8_lossy(&full.stderr));
    assert!(said.contains("No space left on device"), "{said}");
    fs::remove_file(disk.path().join("other")).unwrap();
    succeeds(&bed.io(&["write -P 5 0 12M", "flush", "read -P 5 0 12M"]));
    engine.stop();
    sys::mount::detach(disk.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_volume_larger_than_its_disk_or_of_an_odd_size_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    for bytes in [0, 512, (1 << 20) + 1, storage::MAX_BYTES, u64::MAX] {
        assert!(matches!(storage::create(&path, Format::Raw, bytes), Err(StorageError::Size(_))), "{bytes}");
        assert!(!path.exists());
    }
    storage::create(&path, Format::Raw, 1 << 20).unwrap();
    fs::write(&path, "mine").unwrap();
    for format in [Format::Raw, Format::Qcow2] {
        assert!(storage::create(&path, format, 1 << 20).is_err(), "what is there stays");
    }
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn garbage_for_answers_is_an_error_at_once() {
    const HELLO: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}}}"#;
    let bed = Bed::new(Format::Raw);
    let recipe = bed.recipe();
    fs::create_dir_all(recipe.folder.join(storage::SHARE)).unwrap();
    let deep = format!("{}\n{{\"return\": {}1{}}}\n", HELLO, "[".repeat(10_000), "]".repeat(10_000));
    let listener = UnixListener::bind(recipe.folder.join("monitor.sock")).unwrap();
    let answers = [
        "hello\n".to_owned(),
        "\0\0\0\0\n".to_owned(),
        format!("{HELLO}\n{HELLO}\n"),
        format!("{HELLO}\n{{\"return\": {{}}}}\n{{\"return\": 7}}\n"),
        format!("{HELLO}\n{{\"return\": {{}}}}\n{{\"return\": [{{}}, {{}}, {{}}]}}\n"),
        "x".repeat(1 << 20),
        deep,
    ];
    let many = answers.clone();
    let fake = std::thread::spawn(move || {
        for answer in many {
            let (mut client, _) = listener.accept().unwrap();
            for part in answer.split_inclusive('\n') {
                // It hangs up as soon as it has seen enough.
                if client.write_all(part.as_bytes()).is_err() {
                    break;
                }
                let mut asked = [0; 4096];
                let _hung_up = client.read(&mut asked);
            }
        }
    });
    for answer in &answers {
        let error = Engine::adopt(&recipe, std::process::id()).unwrap_err();
        let shown = error.to_string();
        assert!(shown.len() < 1000, "{shown}");
        assert!(
            matches!(error, StorageError::Monitor(_) | StorageError::NotThis(_)),
            "{:.60}: {shown}",
            answer
        );
    }
    fake.join().unwrap();
}
