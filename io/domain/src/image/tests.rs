//! Images that the tests make themselves, good and evil.

use super::*;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// Makes an image layout.
struct Maker {
    dir: tempfile::TempDir,
    layers: Vec<serde_json::Value>,
}

fn layer(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    build(&mut builder);
    builder.into_inner().expect("a tar")
}

fn header(kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header
}

/// An entry with exactly this name, which the library would otherwise refuse to write.
fn raw(builder: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, name: &[u8], link: &[u8], content: &[u8]) {
    let mut header = header(kind, 0o644, content.len());
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name);
    old.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    builder.append(&header, content).expect("append");
}

fn file(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &str) {
    raw(builder, tar::EntryType::Regular, name.as_bytes(), b"", content.as_bytes());
}

fn directory(builder: &mut tar::Builder<Vec<u8>>, name: &str) {
    builder.append_data(&mut header(tar::EntryType::Directory, 0o755, 0), name, &[][..]).expect("append");
}

impl Maker {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("dir");
        fs::create_dir_all(dir.path().join("layout/blobs/sha256")).expect("blobs");
        Self { dir, layers: Vec::new() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("layout")
    }

    fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    fn blob(&self, kind: &str, bytes: &[u8]) -> serde_json::Value {
        let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        fs::write(self.path().join("blobs/sha256").join(&hex), bytes).expect("blob");
        serde_json::json!({ "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{hex}"), "size": bytes.len() })
    }

    fn add(&mut self, tar: &[u8]) -> &mut Self {
        let descriptor = self.blob("layer.v1.tar", tar);
        self.layers.push(descriptor);
        self
    }

    fn finish(&self) -> &Self {
        let arch = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let config = serde_json::json!({ "architecture": arch, "os": "linux",
            "config": { "Env": ["A=1"], "Entrypoint": ["/entry"], "Cmd": ["arg"], "User": "7:8", "WorkingDir": "/w" },
            "rootfs": { "type": "layers", "diff_ids": [] } });
        let config = self.blob("config.v1+json", config.to_string().as_bytes());
        let manifest = serde_json::json!({ "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": self.layers });
        let mut manifest = self.blob("manifest.v1+json", manifest.to_string().as_bytes());
        manifest["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": "latest" });
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(self.path().join("index.json"), index.to_string()).expect("index");
        self
    }

    fn prepare(&self) -> Result<ImageRoot> {
        prepare(&self.images(), &self.path(), None)
    }
}

fn text(root: &ImageRoot, name: &str) -> Option<String> {
    fs::read_to_string(root.tree.join(name)).ok()
}

#[test]
fn layers_are_laid_over_each_other_and_whiteouts_remove() {
    let mut maker = Maker::new();
    maker.add(&layer(|b| {
        for name in ["gone", "stays", "dir/lower", "opaque/lower", "opaque/sub/lower", "becomes-dir"] {
            file(b, name, name);
        }
        directory(b, "becomes-file");
        raw(b, tar::EntryType::Symlink, b"lib", b"usr/lib", b"");
        directory(b, "usr/lib");
    }));
    // A file that becomes a directory has to be whited out, as real layers do.
    maker.add(&layer(|b| {
        file(b, ".wh.gone", "");
        file(b, ".wh.becomes-dir", "");
        file(b, "becomes-dir/inside", "x");
        file(b, "opaque/upper", "upper");
        file(b, "opaque/.wh..wh..opq", "");
        file(b, "becomes-file", "now a file");
        file(b, "lib/through-the-link", "y");
        raw(b, tar::EntryType::Link, b"hard", b"stays", b"");
        file(b, ".wh.never-there", "");
    }));
    let root = maker.finish().prepare().expect("prepare");
    assert_eq!(text(&root, "gone"), None);
    assert_eq!(text(&root, "opaque/lower"), None);
    assert!(!root.tree.join("opaque/sub").exists());
    assert_eq!(text(&root, "opaque/upper").as_deref(), Some("upper"));
    assert_eq!(text(&root, "dir/lower").as_deref(), Some("dir/lower"));
    assert_eq!(text(&root, "becomes-dir/inside").as_deref(), Some("x"));
    assert_eq!(text(&root, "becomes-file").as_deref(), Some("now a file"));
    assert_eq!(text(&root, "usr/lib/through-the-link").as_deref(), Some("y"));
    assert_eq!(
        fs::metadata(root.tree.join("hard")).expect("hard").ino(),
        fs::metadata(root.tree.join("stays")).expect("stays").ino()
    );
    assert!(!root.tree.join(".wh.gone").exists());
    assert_eq!(
        (root.command, root.user),
        (vec!["/entry".to_owned(), "arg".to_owned()], Some("7:8".to_owned()))
    );
    assert_eq!((root.environment, root.workdir), (vec!["A=1".to_owned()], Some(PathBuf::from("/w"))));
}

#[test]
fn compressed_layers_long_names_and_set_user_id() {
    let mut maker = Maker::new();
    let long = format!("{}/{}", "d".repeat(150), "f".repeat(150));
    let tar = layer(|b| {
        let mut header = header(tar::EntryType::Regular, 0o4755, 4);
        b.append_data(&mut header, &long, &b"long"[..]).expect("append");
    });
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).expect("gzip");
    maker.add(&gzip.finish().expect("gzip"));
    maker.add(&zstd::encode_all(layer(|b| file(b, "z", "zstd")).as_slice(), 1).expect("zstd"));
    let root = maker.finish().prepare().expect("prepare");
    assert_eq!(text(&root, &long).as_deref(), Some("long"));
    assert_eq!(fs::metadata(root.tree.join(&long)).expect("long").permissions().mode() & 0o7777, 0o4755);
    assert_eq!(text(&root, "z").as_deref(), Some("zstd"));
}

#[test]
fn an_archive_is_the_same_as_a_directory_and_the_second_time_is_kept() {
    let mut maker = Maker::new();
    maker.add(&layer(|b| file(b, "f", "x"))).finish();
    let archive = maker.dir.path().join("image.tar");
    let mut builder = tar::Builder::new(File::create(&archive).expect("create"));
    builder.append_dir_all(".", maker.path()).expect("append");
    builder.into_inner().expect("finish");
    let from_archive = prepare(&maker.images(), &archive, Some("latest")).expect("archive");
    let before = fs::metadata(&from_archive.tree).expect("tree").ino();
    assert_eq!(maker.prepare().expect("directory"), from_archive);
    assert_eq!(fs::metadata(&from_archive.tree).expect("tree").ino(), before, "it was unpacked twice");
    let error = prepare(&maker.images(), &archive, Some("nightly")).expect_err("no such tag");
    assert!(error.to_string().contains("latest"), "{error}");
}

#[test]
fn a_forged_blob_is_refused_and_leaves_nothing() {
    let mut maker = Maker::new();
    maker.add(&layer(|b| file(b, "f", "good"))).finish();
    let hex = maker.layers[0]["digest"].as_str().expect("digest")[7..].to_owned();
    fs::write(maker.path().join("blobs/sha256").join(hex), layer(|b| file(b, "f", "evil"))).expect("forge");
    assert!(matches!(maker.prepare(), Err(ImageError::Digest { .. })));
    let left: Vec<_> =
        fs::read_dir(maker.images()).expect("images").flatten().map(|e| e.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

// An entry's path is at most 4096 bytes long, and through links each entry goes on where the one
// before ended. What was unpacked so was removed by a recursion for each level, and ended the
// daemon, then each one that was started after it.
#[test]
fn a_layer_that_goes_deeper_and_deeper_through_links_is_refused() {
    let mut maker = Maker::new();
    let steps = 60;
    maker.add(&layer(|b| {
        let down = "d/".repeat(40);
        for step in 0..steps {
            let (from, link) = (format!("l{step}"), format!("l{}", step + 1));
            let base = if step == 0 { String::new() } else { format!("{from}/") };
            file(b, &format!("{base}{down}f"), "x");
            raw(b, tar::EntryType::Symlink, link.as_bytes(), format!("{base}{down}").as_bytes(), b"");
        }
    }));
    let error = maker.finish().prepare().expect_err("it was unpacked");
    assert!(matches!(error, ImageError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("256 directories deep"), "{error}");
    assert_eq!(fs::read_dir(maker.images()).expect("images").count(), 0);
    // What an earlier version left of such a one goes, too, and only what nobody is unpacking.
    let (left, busy) = (maker.images().join(".unpacking-left"), maker.images().join(".unpacking-busy"));
    fs::create_dir_all(left.join("tree")).expect("left");
    let mut at: std::os::fd::OwnedFd = File::open(left.join("tree")).expect("open").into();
    for _ in 0..1_000 {
        rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::RWXU).expect("deeper");
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        at = rustix::fs::openat(&at, "d", flags, rustix::fs::Mode::empty()).expect("open");
    }
    let held = Unfinished::take(busy.clone()).expect("take").expect("ours");
    clear_unfinished(&maker.images());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while left.exists() {
        assert!(std::time::Instant::now() < deadline, "it is not removed");
        std::thread::yield_now();
    }
    assert!(busy.exists());
    drop(held);
}

#[test]
fn one_image_is_unpacked_once_however_many_want_it_at_a_time() {
    let mut maker = Maker::new();
    maker.add(&layer(|b| (0..200).for_each(|file_| file(b, &format!("f{file_}"), "x")))).finish();
    let trees: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| maker.prepare().expect("prepare"))).collect();
        all.into_iter()
            .map(|one| fs::metadata(one.join().expect("it ends").tree).expect("tree").ino())
            .collect()
    });
    assert!(trees.iter().all(|inode| *inode == trees[0]), "{trees:?}");
    assert_eq!(fs::read_dir(maker.images()).expect("images").count(), 1);
}

#[test]
fn evil_layers_write_nothing_outside() {
    use tar::EntryType::{Link, Regular, Symlink};
    type Build = Box<dyn FnOnce(&mut tar::Builder<Vec<u8>>)>;
    let cases: Vec<(&str, bool, Build)> = vec![
        ("upwards", true, Box::new(|b| raw(b, Regular, b"a/../../../outside", b"", b"evil"))),
        ("absolute", true, Box::new(|b| raw(b, Regular, b"/tmp/outside", b"", b"evil"))),
        ("a hard link upwards", true, Box::new(|b| raw(b, Link, b"l", b"../../../layout/index.json", b""))),
        ("an absolute hard link", true, Box::new(|b| raw(b, Link, b"l", b"/etc/shadow", b""))),
        ("a whiteout of ..", true, Box::new(|b| raw(b, Regular, b"a/.wh...", b"", b""))),
        ("a whiteout of nothing", true, Box::new(|b| raw(b, Regular, b".wh.", b"", b""))),
        (
            "a link out and a file through it",
            false,
            Box::new(|b| {
                raw(b, Symlink, b"out", b"../../../../../..", b"");
                raw(b, Regular, b"out/outside", b"", b"evil");
            }),
        ),
        (
            "a file over a link out",
            false,
            Box::new(|b| {
                raw(b, Symlink, b"f", b"../../outside", b"");
                raw(b, Regular, b"f", b"", b"evil");
            }),
        ),
        (
            "a hard link to a link out, and a file over it",
            false,
            Box::new(|b| {
                raw(b, Symlink, b"s", b"../../outside", b"");
                raw(b, Link, b"h", b"s", b"");
                raw(b, Regular, b"h", b"", b"evil");
            }),
        ),
    ];
    for (name, refused, build) in cases {
        let mut maker = Maker::new();
        let tar = layer(|b| {
            file(b, "a/b", "x");
            build(b);
        });
        let result = maker.add(&tar).finish().prepare();
        assert_eq!(matches!(result, Err(ImageError::Refused { .. })), refused, "{name}: {result:?}");
        let mut seen = Vec::new();
        find(maker.dir.path(), "outside", &mut seen);
        assert!(seen.iter().all(|p| p.starts_with(maker.images())), "{name}: {seen:?}");
        assert!(!Path::new("/outside").exists() && !Path::new("/tmp/outside").exists(), "{name}");
    }
}

fn find(dir: &Path, name: &str, seen: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("list").flatten() {
        if entry.file_name() == name {
            seen.push(entry.path());
        }
        if entry.file_type().expect("type").is_dir() {
            find(&entry.path(), name, seen);
        }
    }
}

#[test]
fn extensions_of_absurd_size_are_not_taken_into_memory() {
    let mut maker = Maker::new();
    let name = vec![b'n'; 1 << 20];
    maker.add(&layer(|b| raw(b, tar::EntryType::GNULongName, b"././@LongLink", b"", &name)));
    assert!(matches!(maker.finish().prepare(), Err(ImageError::TooBig { .. })));
}

#[test]
fn what_is_no_layout_says_so() {
    let maker = Maker::new();
    assert!(matches!(maker.prepare(), Err(ImageError::NotALayout(_))));
    let file = maker.dir.path().join("text");
    fs::write(&file, "no tar at all, and longer than nothing").expect("write");
    assert!(prepare(&maker.images(), &file, None).is_err());
    fs::write(maker.path().join("index.json"), "{}").expect("index");
    assert!(matches!(maker.prepare(), Err(ImageError::Malformed { .. })));
    assert!(prepare(&maker.images(), Path::new("/no/such"), None).is_err());
}

/// Set where the test below is the traced process: the layout, and where to unpack it.
const TRACED: &str = "TOMBOLO_TEST_TRACED";

// An image was renamed to the name that is trusted before it was on the disk: after a power cut it
// was there with empty programs, for good.
#[test]
fn an_image_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_used() {
    if let Ok(places) = std::env::var(TRACED) {
        let (layout, images) = places.split_once('\n').expect("two places");
        prepare(Path::new(images), Path::new(layout), None).expect("prepare");
        return;
    }
    let mut maker = Maker::new();
    maker.add(&layer(|b| (0..5).for_each(|number| file(b, &format!("bin/f{number}"), "x")))).finish();
    let trace = maker.dir.path().join("trace");
    let places = format!("{}\n{}", maker.path().display(), maker.images().display());
    let traced = std::process::Command::new("strace")
        .args([
            "-f",
            "-y",
            "-e",
            "trace=openat,openat2,write,rename,renameat,renameat2,syncfs,sync,fsync,fchown,mkdirat",
        ])
        .arg("-o")
        .arg(&trace)
        .arg(std::env::current_exe().expect("exe"))
        .args([
            "--exact",
            concat!(
                "image::tests::",
                "an_image_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_used"
            ),
        ])
        .env(TRACED, places)
        .output();
    let traced = match traced {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!("skipped: needs strace; run `make deps`");
            return;
        }
        other => other.expect("strace"),
    };
    assert!(traced.status.success(), "{traced:?}");
    let trace = fs::read_to_string(&trace).expect("trace");
    let images = maker.images().display().to_string();
    let at = |what: &str, call: &dyn Fn(&str) -> bool| {
        let lines: Vec<usize> = trace.lines().enumerate().filter(|(_, l)| call(l)).map(|(i, _)| i).collect();
        assert!(!lines.is_empty(), "{what} is not in the trace:\n{trace}");
        (lines[0], lines[lines.len() - 1])
    };
    let (_, made) = at("the last file", &|line| line.contains("fchown") && line.contains("/tree/bin/f4"));
    let (synced, _) = at("the sync", &|line| line.contains("syncfs(") && line.contains(UNFINISHED));
    let (renamed, _) = at("the rename", &|line| line.contains("rename") && line.contains("sha256-"));
    let (named, _) =
        at("the sync of the name", &|line| line.contains("fsync(") && line.contains(&format!("<{images}>")));
    assert!(
        made < synced && synced < renamed && renamed < named,
        "{made} {synced} {renamed} {named}:\n{trace}"
    );
}
