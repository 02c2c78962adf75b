//! Images of containers: pulled from Debian's registry, imported from files, run, pinned, removed;
//! and what a registry must not do.

use crate::roots;
use e2e::{Node, node, wait};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The registry as `make deps` unpacked it, on a port of its own; ended when dropped.
struct Registry {
    process: Child,
    address: String,
    folder: PathBuf,
}

impl Registry {
    /// `None`, and a printed reason, where it is not there.
    fn start(folder: &Path) -> Option<Self> {
        let program = node::target().join("debian/docker-registry/usr/bin/docker-registry");
        if !program.exists() {
            println!("skipped: needs docker-registry; run `make deps`");
            return None;
        }
        let folder = folder.join("registry");
        std::fs::create_dir_all(&folder).expect("a folder");
        // Nobody else takes a port that was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let address = free.to_string();
        let settings = format!(
            "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\nhttp: {{ addr: \"{address}\" }}\n",
            folder.display()
        );
        let file = folder.join("settings.yml");
        std::fs::write(&file, settings).expect("settings");
        let log = std::fs::File::create(folder.join("log")).expect("a log");
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg(file)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log);
        let process = command.spawn().expect("the registry starts");
        wait::until("the registry listens", || TcpStream::connect(&address).is_ok());
        Some(Self { process, address, folder })
    }

    fn reference(&self) -> String {
        format!("{}/team/app:1", self.address)
    }

    /// Puts the image layout at `layout` there, as `team/app:1`.
    fn push(&self, layout: &Path) {
        let index = std::fs::read(layout.join("index.json")).expect("index");
        let index: serde_json::Value = serde_json::from_slice(&index).expect("JSON");
        let blob = |digest: &serde_json::Value| {
            let digest = digest.as_str().expect("a digest").to_owned();
            let bytes =
                std::fs::read(layout.join("blobs/sha256").join(&digest["sha256:".len()..])).expect("blob");
            (digest, bytes)
        };
        let (_, manifest) = blob(&index["manifests"][0]["digest"]);
        let parsed: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
        for described in
            std::iter::once(&parsed["config"]).chain(parsed["layers"].as_array().expect("layers"))
        {
            let (digest, bytes) = blob(&described["digest"]);
            let head = self.request("POST", "/v2/team/app/blobs/uploads/", "", b"");
            let location =
                head.lines().find_map(|line| line.strip_prefix("Location: ")).expect("a place for it");
            let path = location.split_once(&self.address).expect("it is there").1;
            self.request("PUT", &format!("{path}&digest={digest}"), "application/octet-stream", &bytes);
        }
        let kind = parsed["mediaType"].as_str().expect("a type");
        self.request("PUT", "/v2/team/app/manifests/1", kind, &manifest);
    }

    /// Asks it, and insists on an answer that is no error.
    fn request(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("connect");
        let kind = if kind.is_empty() { String::new() } else { format!("Content-Type: {kind}\r\n") };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{kind}Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("ask");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 20"), "{method} {path}: {answer}");
        answer
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _collected = self.process.wait();
    }
}

fn file(image: &str) -> String {
    format!("name = \"shop\"\n[domain.web]\nkind = \"container\"\nroot = {{ image = \"{image}\" }}\n")
}

fn flavour(node: &Node) -> String {
    node.ok(&["exec", "web", "--", "/bin/sh", "-c", "echo $FLAVOUR"]).trim().to_owned()
}

/// An image layout whose containers have this in `$FLAVOUR`.
fn layout(node: &Node, name: &str, flavour: &str) -> PathBuf {
    let folder = node.folder().join(name);
    std::fs::create_dir(&folder).expect("a folder");
    roots::image_of_flavour(&folder, flavour);
    folder.join("image")
}

#[test]
fn an_image_is_pulled_run_pinned_and_not_removed_while_somebody_has_it() {
    let Some(node) = Node::start() else { return };
    let Some(registry) = Registry::start(node.folder()) else { return };
    let reference = registry.reference();
    registry.push(&layout(&node, "one", "from-the-image"));
    let refused = node.up(&file(&reference));
    assert!(
        refused.code != 0 && refused.err.contains(&format!("tombolo image pull {reference}")),
        "{}",
        refused.err
    );
    let first = node.json(&["image", "pull", &reference]);
    let digest = first["digest"].as_str().expect("a digest").to_owned();
    assert_eq!(first["names"][0], reference.as_str());
    assert_eq!(node.json(&["image", "ls"])[0]["digest"], digest.as_str());
    assert!(node.ok(&["image", "inspect", &reference]).contains("/bin/sleep 1000000"));
    node.up_ok(&file(&reference));
    assert_eq!(flavour(&node), "from-the-image");
    assert_eq!(node.json(&["inspect", "dc/shop/domains/web"])["root"]["digest"], digest.as_str());
    let refused = node.run(&["image", "rm", &reference]);
    assert!(refused.code != 0 && refused.err.contains("in use by shop/web"), "{}", refused.err);
    // The name goes to another image; the domain keeps its own until somebody says `up`.
    registry.push(&layout(&node, "two", "another"));
    let second = node.json(&["image", "pull", &reference]);
    assert_ne!(second["digest"], digest.as_str());
    node.ok(&["image", "gc"]);
    node.ok(&["restart", "web"]);
    assert_eq!(flavour(&node), "from-the-image");
    node.up_ok(&file(&reference));
    assert_eq!(flavour(&node), "another");
    let removed = node.json(&["image", "gc"]);
    assert_eq!((&removed["removed"]["images"], &removed["unpacked"]), (&1.into(), &1.into()), "{removed}");
    assert_eq!(flavour(&node), "another");
    // By its digest nobody needs the name.
    let by_digest = format!("app@{}", second["digest"].as_str().expect("a digest"));
    node.up_ok(&file(&by_digest));
    node.ok(&["down", "shop"]);
    node.ok(&["image", "rm", &reference]);
    assert_eq!(node.json(&["image", "ls"]), serde_json::json!([]));
}

#[test]
fn content_that_a_registry_changed_is_refused_and_mended_by_the_next_pull() {
    let Some(node) = Node::start() else { return };
    let Some(registry) = Registry::start(node.folder()) else { return };
    let reference = registry.reference();
    let layout = layout(&node, "one", "from-the-image");
    registry.push(&layout);
    let manifest = std::fs::read(layout.join("index.json")).expect("index");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let name = &manifest["manifests"][0]["digest"].as_str().expect("a digest")["sha256:".len()..];
    let manifest = std::fs::read(layout.join("blobs/sha256").join(name)).expect("manifest");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let layer = &manifest["layers"][0]["digest"].as_str().expect("a digest")["sha256:".len()..];
    let kept = registry.folder.join(format!("docker/registry/v2/blobs/sha256/{}/{layer}/data", &layer[..2]));
    let good = std::fs::read(&kept).expect("the layer");
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    std::fs::write(&kept, &bad).expect("tamper");
    let refused = node.run(&["image", "pull", &reference]);
    assert!(refused.code == 1 && refused.err.contains("damaged or forged"), "{}", refused.err);
    assert_eq!(node.json(&["image", "ls"]), serde_json::json!([]));
    std::fs::write(&kept, &good).expect("mend");
    node.ok(&["image", "pull", &reference]);
    node.up_ok(&file(&reference));
    assert_eq!(flavour(&node), "from-the-image");
}

/// Serves an image layout; the layer only half, while `stalls`.
fn slow_registry(layout: PathBuf, stalls: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().expect("clone")).lines().map_while(Result::ok);
            let Some(first) = lines.next() else { continue };
            let _rest = lines.take_while(|line| !line.is_empty()).count();
            let name = first
                .split(' ')
                .nth(1)
                .and_then(|path| path.rsplit('/').next())
                .unwrap_or_default()
                .to_owned();
            let index = std::fs::read_to_string(layout.join("index.json")).expect("index");
            let index: serde_json::Value = serde_json::from_str(&index).expect("JSON");
            let top = index["manifests"][0]["digest"].as_str().expect("a digest").to_owned();
            let digest = if name == "1" { top } else { name };
            let blob = layout.join("blobs/sha256").join(&digest["sha256:".len()..]);
            let bytes = std::fs::read(blob).expect("blob");
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
            let _sent = stream.write_all(head.as_bytes());
            if bytes.len() > 100_000 && stalls.load(Ordering::SeqCst) {
                let _half = stream.write_all(&bytes[..bytes.len() / 2]);
                // Whoever waits for the rest ends this by its death.
                let _gone = stream.read(&mut [0]);
            } else {
                let _sent = stream.write_all(&bytes);
            }
        }
    });
    address
}

#[test]
fn half_a_pull_is_used_by_nobody_and_the_next_one_gets_it_all() {
    let Some(node) = Node::start() else { return };
    let stalls = Arc::new(AtomicBool::new(true));
    let address = slow_registry(layout(&node, "one", "from-the-image"), Arc::clone(&stalls));
    let reference = format!("{address}/app:1");
    let mut pull = node.command(&["image", "pull", &reference]).spawn().expect("tombolo starts");
    let partial = node.state_dir().join("store/partial");
    let half = || {
        let files = std::fs::read_dir(&partial).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).any(|file| file.len() > 100_000)
    };
    wait::until("half of it is there", half);
    let refused = node.run(&["image", "gc"]);
    assert!(refused.code == 1 && refused.err.contains("is being added"), "{}", refused.err);
    pull.kill().and_then(|()| pull.wait()).expect("kill");
    assert_eq!(node.json(&["image", "ls"]), serde_json::json!([]));
    assert!(node.up(&file(&reference)).err.contains("tombolo image pull"));
    let removed = node.json(&["image", "gc"]);
    assert!(removed["removed"]["bytes"].as_u64().is_some_and(|bytes| bytes > 100_000), "{removed}");
    stalls.store(false, Ordering::SeqCst);
    node.ok(&["image", "pull", &reference]);
    node.up_ok(&file(&reference));
    assert_eq!(flavour(&node), "from-the-image");
}

#[test]
fn images_are_imported_from_layouts_and_archives_and_run_by_their_name() {
    let Some(node) = Node::start() else { return };
    let layout = layout(&node, "one", "from-the-image");
    let refused = node.run(&["image", "import", &layout.to_string_lossy()]);
    assert!(refused.code == 1 && refused.err.contains("--name NAME:TAG"), "{}", refused.err);
    let archive = node.folder().join("one/image.tar");
    for (from, name) in [(&layout, "app:1"), (&archive, "app:2")] {
        node.ok(&["image", "import", &from.to_string_lossy(), "--name", name]);
        node.up_ok(&file(name));
        assert_eq!(flavour(&node), "from-the-image");
    }
    let images = node.json(&["image", "ls"]);
    assert_eq!(images[0]["names"].as_array().map(Vec::len), Some(2), "{images}");
    node.ok(&["image", "rm", "app:1"]);
    let refused = node.run(&["image", "rm", "app:2"]);
    assert!(refused.err.contains("in use by shop/web"), "{}", refused.err);
}

#[test]
fn a_compose_file_becomes_a_topology_file_that_comes_up() {
    let Some(node) = Node::start() else { return };
    let layout = layout(&node, "one", "from-the-image");
    let compose = node.folder().join("compose.yaml");
    let text = "name: shop\nservices:\n  web:\n    image: app:1\n    environment: { GREETING: \"${GREETING:-hello}\" }\n    \
                volumes: [./one/tree:/data:ro]\n    ports: [\"8080:80/udp\"]\n";
    std::fs::write(&compose, text).expect("write");
    let (compose, made) = (compose.to_string_lossy().into_owned(), node.folder().join("made.toml"));
    let made = made.to_string_lossy().into_owned();
    let refused = node.run(&["import", &compose, "-o", &made]);
    assert!(refused.code == 1 && refused.err.contains(":7: refused services.web.ports"), "{}", refused.err);
    assert!(
        refused.err.contains("tombolo image pull app:1") && !Path::new(&made).exists(),
        "{}",
        refused.err
    );
    node.ok(&["import", &compose, "--partial", "-o", &made]);
    assert_eq!(node.run(&["import", &compose, "--partial", "-o", &made]).code, 1, "it is overwritten");
    assert_eq!(node.run(&["import", "/no/such"]).code, 2);
    node.ok(&["image", "import", &layout.to_string_lossy(), "--name", "app:1"]);
    node.ok(&["up", &made]);
    let said = node.ok(&["exec", "web", "--", "/bin/sh", "-c", "echo $GREETING $FLAVOUR; ls /data"]);
    assert!(said.starts_with("hello from-the-image\nbin\n"), "{said}");
}
