//! Cameras: V4L2 devices that are files, used by unmodified ffmpeg in containers that have no
//! capability and no device.

use e2e::{Node, node, wait};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use v4l2::{Picture, pattern};
use wire::camera::Format;

/// The client.
const FFMPEG: &str = "/usr/bin/ffmpeg";
/// How long a recording of some seconds may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two domains that watch, each with a folder for what it records.
fn topology(node: &Node) -> String {
    let watcher = |name: &str| {
        let folder = node.folder().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        format!(
            "[domain.{name}]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\n\
             services = {{ camera = \"/srv/camera\" }}\n\
             mounts = [{{ source = \"{}\", target = \"/out\", read_only = false }}]\n",
            folder.display()
        )
    };
    let media = node.folder().join("media");
    std::fs::create_dir_all(&media).expect("a folder");
    // A film of three frames, each all of one grey.
    let film: Vec<u8> = [10_u8, 20, 30].iter().flat_map(|grey| vec![*grey; 64 * 48]).collect();
    std::fs::write(media.join("film.grey"), film).expect("a film");
    format!(
        "name = \"studio\"\n\
         [domain.cameras]\nkind = \"container\"\n\
         mounts = [{{ source = \"{}\", target = \"/media\" }}]\n\
         restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"500ms\" }}\n\
         {}{}\
         [service.camera]\nkind = \"camera\"\ndomain = \"cameras\"\n\
         allow = [{{ domains = [\"kiosk\", \"guard\"], verbs = [\"watch\"] }}]\n\
         [service.camera.settings]\n\
         cameras = [\n  {{ name = \"front\", size = \"160x128\" }},\n  \
         {{ name = \"film\", file = \"/media/film.grey\", format = \"grey\", size = \"64x48\", rate = 60 }},\n]\n",
        media.display(),
        watcher("kiosk"),
        watcher("guard"),
    )
}

fn start() -> Option<Node> {
    if !Path::new(FFMPEG).exists() {
        println!("skipped: needs ffmpeg; run `make deps`");
        return None;
    }
    let node = Node::start()?;
    node.up_ok(&topology(&node));
    Some(node)
}

/// Recordings until one has every frame.
const TRIES: usize = 6;

/// The line that records frames of a camera as they are, into a file of the domain.
fn recording(input: &str, frames: u32, file: &str) -> String {
    format!(
        "{FFMPEG} -nostdin -v error -y -f v4l2 {input} -frames:v {frames} -c:v copy -flush_packets 1 \
         -f rawvideo /out/{file}"
    )
}

/// The numbers of the frames in a recording, every one of which is whole.
fn numbers(path: &Path, picture: Picture) -> Vec<u32> {
    let recorded = std::fs::read(path).expect("a recording");
    let frames = recorded.chunks(picture.bytes() as usize).enumerate();
    frames
        .map(|(at, frame)| pattern::read(picture, frame).unwrap_or_else(|| panic!("frame {at} is torn")))
        .collect()
}

fn yuyv(width: u32, height: u32) -> Picture {
    Picture { format: Format::Yuyv, width, height }
}

fn state(node: &Node, domain: &str) -> Value {
    serde_json::from_str(&node.shell_ok(domain, "cat /srv/camera/state")).expect("JSON")
}

/// Starts a shell line in a domain.
fn begin(node: &Node, domain: &str, line: &str) -> Child {
    let mut command = node.command(&["exec", domain, "--", "/bin/bash", "-c", line]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tombolo starts")
}

fn finish(child: Child) {
    let output = child.wait_with_output().expect("it ends");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
}

#[test]
fn unmodified_ffmpeg_takes_exact_frames_in_several_domains() {
    let Some(node) = start() else { return };
    assert_eq!(node.shell_ok("kiosk", "cat /srv/camera/cameras").trim(), "front\nfilm");
    // Two domains at once, each with a size and a rate of its own. A machine that is taken away for
    // longer than the buffers last costs frames, of any camera; that is no fault of this one.
    let without_a_gap = (0..TRIES).any(|_| {
        let fast = begin(
            &node,
            "guard",
            &recording("-framerate 240 -video_size 96x64 -i /srv/camera/front", 480, "fast"),
        );
        node.shell_ok(
            "kiosk",
            &recording("-framerate 30 -video_size 160x128 -i /srv/camera/front", 45, "slow"),
        );
        finish(fast);
        let slow = numbers(&node.folder().join("kiosk/slow"), yuyv(160, 128));
        let fast = numbers(&node.folder().join("guard/fast"), yuyv(96, 64));
        assert_eq!((slow.len(), fast.len()), (45, 480));
        assert!(slow.is_sorted_by(|one, next| one < next) && fast.is_sorted_by(|one, next| one < next));
        println!("the last of 45 frames is {:?}, of 480 {:?}", slow.last(), fast.last());
        (slow.last(), fast.last()) == (Some(&44), Some(&479))
    });
    assert!(without_a_gap, "frames were lost in each of {TRIES} recordings");
    // A camera that shows a film shows it as it is.
    node.shell_ok("kiosk", &recording("-i /srv/camera/film", 7, "film"));
    let film = std::fs::read(node.folder().join("kiosk/film")).expect("a recording");
    let greys: Vec<u8> = film.chunks(64 * 48).map(|frame| frame[0]).collect();
    assert_eq!((greys, film.len()), (vec![10, 20, 30, 10, 20, 30, 10], 7 * 64 * 48));
    // Who only reads gets the same frames.
    node.shell_ok("kiosk", "head -c 122880 /srv/camera/front > /out/read");
    let read = numbers(&node.folder().join("kiosk/read"), yuyv(160, 128));
    assert_eq!((read.len(), read[0]), (3, 0));
    // Who is not named sees no camera, and a memory belongs to no program's descriptor.
    let none = node.shell("cameras", "ls /srv/camera");
    assert_ne!(none.code, 0, "{none:?}");
}

/// Waits until a file has grown by `bytes`.
fn grows(path: &Path, bytes: u64) {
    let length = || std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let before = length();
    wait::until_within("the recording goes on", TIMEOUT, || length() >= before + bytes);
}

#[test]
fn a_recording_goes_on_when_server_frontend_and_daemon_are_killed() {
    let Some(node) = start() else { return };
    let picture = yuyv(96, 64);
    let path = node.folder().join("kiosk/film");
    // Longer than the test waits; it is ended by a signal, as a person would.
    let line = recording("-framerate 60 -video_size 96x64 -i /srv/camera/front", 100_000, "film");
    let line = format!("{line} & echo $! > /out/pid; wait $!; true");
    let child = begin(&node, "kiosk", &line);
    let some = u64::from(picture.bytes()) * 30;
    grows(&path, some);
    for _ in 0..2 {
        node.pids("server").into_iter().for_each(node::kill);
        grows(&path, some);
        node.pids("frontend").into_iter().for_each(node::kill);
        grows(&path, some);
    }
    // The next daemon finds the memory at the domain's monitor, and passes it to the next server.
    node.kill_daemon();
    node.up_ok(&topology(&node));
    grows(&path, some);
    node.pids("server").into_iter().for_each(node::kill);
    grows(&path, some);
    node.shell_ok("kiosk", "kill -INT $(cat /out/pid)");
    finish(child);
    wait::until("the file is closed", || state(&node, "kiosk")["open"].as_array().is_some_and(Vec::is_empty));
    let frames_lost = state(&node, "kiosk")["frames_lost"].as_u64().expect("a count");
    let numbers = numbers(&path, picture);
    assert!(numbers.is_sorted_by(|a, b| a < b), "no frame comes twice, none is torn: {numbers:?}");
    let gaps: u32 = numbers.windows(2).map(|pair| pair[1] - pair[0] - 1).sum();
    assert!(
        frames_lost > 0 && u64::from(gaps) <= frames_lost,
        "{gaps} of {frames_lost} lost frames are gaps"
    );
}
