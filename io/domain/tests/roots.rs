//! Roots other than the machine's own: a directory, an image.

mod ground;

use domain::{DomainSpec, Ending, Root};
use ground::{Ground, ground};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

fn busybox() -> Option<PathBuf> {
    let found = ["/bin/busybox", "/usr/bin/busybox"].into_iter().map(PathBuf::from).find(|p| p.exists());
    if found.is_none() {
        println!("skipped: busybox is missing; apt-get install busybox-static");
    }
    found
}

fn asked(ground: &Ground, spec: &DomainSpec) -> String {
    domain::remove_logs(&ground.layout, "dc", &spec.name).expect("remove logs");
    let exit = ground.run(spec);
    let output = ground.output(&spec.name);
    assert_eq!(exit.ending, Ending::Code(0), "{output}");
    output
}

fn snapshot(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).expect("list").flatten() {
            if entry.file_type().expect("type").is_dir() {
                todo.push(entry.path());
            }
            all.push(entry.path());
        }
    }
    all.sort();
    all
}

#[test]
fn a_directory_is_used_and_never_changed() {
    let (Some(ground), Some(busybox)) = (ground(), busybox()) else { return };
    let root = ground.dir.path().join("root");
    std::fs::create_dir_all(root.join("bin")).expect("create");
    std::fs::copy(busybox, root.join("bin/busybox")).expect("copy");
    std::fs::write(root.join("marker"), "mine\n").expect("write");
    let before = snapshot(&root);
    let mut spec = ground.shell("d", "");
    spec.root = Root::Directory(root.clone());
    spec.command = ["/bin/busybox", "sh", "-c", "cat /marker; busybox touch /x && echo WROTE; busybox ls -d /srv /run/tombolo /proc/1; busybox cat /etc/hostname"].map(Into::into).into();
    let output = asked(&ground, &spec);
    assert_eq!(
        output.lines().filter(|l| !l.contains("touch")).collect::<Vec<_>>(),
        ["mine", "/proc/1", "/run/tombolo", "/srv", "d"]
    );
    spec.writable = true;
    spec.command[3] =
        "echo new > /x && cat /x && echo changed > /marker && cat /marker && busybox rm /bin/busybox".into();
    assert_eq!(asked(&ground, &spec), "new\nchanged\n");
    assert_eq!(snapshot(&root), before);
    assert_eq!(std::fs::read_to_string(root.join("marker")).expect("marker"), "mine\n");
    // What one incarnation wrote, the next does not see.
    spec.command[3] = "busybox test ! -e /x".into();
    asked(&ground, &spec);
}

#[test]
fn a_writable_host_root_forgets() {
    let Some(ground) = ground() else { return };
    let mut spec =
        ground.shell("d", "echo x > /etc/new && mkdir /opt/y && ! touch /usr/z 2>/dev/null && echo done");
    spec.writable = true;
    assert_eq!(asked(&ground, &spec), "done\n");
    assert!(!Path::new("/etc/new").exists() && !Path::new("/opt/y").exists());
}

/// An image layout of one layer: busybox, a user, a link for each applet that is used.
fn image(dir: &Path, busybox: &Path) {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).expect("blobs");
    let blob = |kind: &str, bytes: &[u8]| {
        let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        std::fs::write(blobs.join(&hex), bytes).expect("blob");
        serde_json::json!({ "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{hex}"), "size": bytes.len() })
    };
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_path_with_name(busybox, "bin/busybox").expect("busybox");
    for applet in ["sh", "cat", "id", "ls"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        tar.append_link(&mut header, format!("bin/{applet}"), "busybox").expect("link");
    }
    for (name, text) in
        [("etc/passwd", "app:x:77:78:App:/home/app:/bin/sh\n"), ("home/app/greeting", "hello\n")]
    {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_uid(77);
        header.set_gid(78);
        header.set_mtime(0);
        tar.append_data(&mut header, name, text.as_bytes()).expect("file");
    }
    let layer = blob("layer.v1.tar", &tar.into_inner().expect("tar"));
    let arch = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let config = serde_json::json!({ "architecture": arch, "os": "linux", "rootfs": { "type": "layers", "diff_ids": [] },
        "config": { "Env": ["COLOUR=green"], "Cmd": ["sh", "-c", "id -u; id -g; echo $COLOUR $HOME; cat greeting"],
            "User": "app", "WorkingDir": "/home/app" } });
    let config = blob("config.v1+json", config.to_string().as_bytes());
    let manifest = serde_json::json!({ "schemaVersion": 2, "config": config, "layers": [layer],
        "mediaType": "application/vnd.oci.image.manifest.v1+json" });
    let manifest = blob("manifest.v1+json", manifest.to_string().as_bytes());
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [manifest] });
    std::fs::write(dir.join("index.json"), index.to_string()).expect("index");
}

#[test]
fn an_image_runs_as_it_says_unless_told_otherwise() {
    let (Some(ground), Some(busybox)) = (ground(), busybox()) else { return };
    let path = ground.dir.path().join("image");
    image(&path, &busybox);
    let mut spec = ground.shell("d", "");
    spec.root = Root::Image { path: path.clone(), tag: None };
    spec.command = Vec::new();
    assert_eq!(asked(&ground, &spec), "77\n78\ngreen /home/app\nhello\n");
    spec.command = ["sh", "-c", "id -u; echo $COLOUR; cat /etc/resolv.conf; ls /srv /run/tombolo"]
        .map(Into::into)
        .into();
    spec.user = Some("5:6".into());
    spec.environment = vec![("COLOUR".into(), "red".into())];
    spec.resolv_conf = Some("nameserver 127.0.0.53\n".into());
    let output = asked(&ground, &spec);
    assert!(output.starts_with("5\nred\nnameserver 127.0.0.53\n") && output.contains("tombolo"), "{output}");
    // The source may go: it is kept unpacked.
    let manifest_only = domain::create(
        &ground.layout,
        &DomainSpec { root: Root::Image { path: path.join("none"), tag: None }, ..spec.clone() },
        &[],
    );
    let message = manifest_only.expect_err("no such image").to_string();
    assert!(message.contains("image/none"), "{message}");
    let error = domain::create(
        &ground.layout,
        &DomainSpec { root: Root::Image { path, tag: Some("x".into()) }, ..spec },
        &[],
    );
    assert!(error.expect_err("no such tag").to_string().contains("no image tagged \"x\""));
}

#[test]
fn a_root_that_is_none_says_so() {
    let Some(ground) = ground() else { return };
    let mut spec = ground.shell("d", "true");
    spec.root = Root::Directory(ground.dir.path().join("nowhere"));
    let message = domain::create(&ground.layout, &spec, &[]).expect_err("created").to_string();
    assert!(message.contains("nowhere is not a directory"), "{message}");
    ground.sweep_and_assert_clean();
}
