//! Whole images, of a made-up kernel and of what this machine has: what is in them, when they are
//! built anew, what is refused.

use image::{Compression, ImageError, Kernel, MAX_IMAGES, Progress, Spec, build, copy_to};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A kernel without modules.
fn kernel(folder: &Path) -> Kernel {
    let tree = folder.join("lib/modules/6.1.0-1");
    std::fs::create_dir_all(tree.join("kernel")).expect("a folder");
    std::fs::create_dir_all(folder.join("boot")).expect("a folder");
    std::fs::write(tree.join("modules.builtin"), "kernel/fs/tmpfs.ko\n").expect("a list");
    std::fs::write(folder.join("boot/vmlinuz-6.1.0-1"), "a kernel").expect("a kernel");
    Kernel::find(folder).expect("the kernel")
}

/// The least that makes an image.
fn spec(folder: &Path) -> Spec {
    let mut spec = Spec::new(kernel(folder));
    spec.bytes("#!/bin/sh\n", "/init", 0o755);
    spec
}

fn quiet(_: Progress) {}

/// Unpacks LZ4's legacy frame as the kernel does.
fn unpack_lz4(packed: &[u8]) -> Vec<u8> {
    let (magic, mut rest) = packed.split_first_chunk().expect("a magic number");
    assert_eq!(u32::from_le_bytes(*magic), 0x184C_2102);
    let mut all = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk() {
        let (block, next) = after.split_at(usize::try_from(u32::from_le_bytes(*length)).expect("a length"));
        all.extend(lz4_flex::block::decompress(block, 8 << 20).expect("a block"));
        rest = next;
    }
    assert!(rest.is_empty());
    all
}

/// Unpacks an initramfs by busybox; `None`, with a message, where there is none.
fn unpack(initramfs: &Path, compression: Compression) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    let packed = std::fs::read(initramfs).expect("the initramfs");
    let archive = match compression {
        Compression::None => packed,
        Compression::Gzip => {
            let mut all = Vec::new();
            flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut all).expect("gzip");
            all
        }
        Compression::Lz4 => unpack_lz4(&packed),
        Compression::Zstd => zstd::decode_all(packed.as_slice()).expect("zstd"),
    };
    let path = folder.path().join("archive");
    std::fs::write(&path, archive).expect("a file");
    let input = std::fs::File::open(&path).expect("it");
    let into = folder.path().join("root");
    std::fs::create_dir(&into).expect("a folder");
    let status = Command::new("busybox")
        .args(["cpio", "-idm"])
        .current_dir(&into)
        .stdin(input)
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) => assert!(status.success(), "busybox cpio: {status}"),
        Err(_) => {
            println!("skipped: needs busybox; run `make deps`");
            return None;
        }
    }
    Some(folder)
}

#[test]
fn what_goes_in_is_what_the_guest_finds_however_it_is_packed() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("note"), "of the machine").expect("a file");
    for compression in [Compression::None, Compression::Gzip, Compression::Lz4, Compression::Zstd] {
        let mut spec = spec(folder.path());
        spec.compression = compression;
        spec.file(folder.path().join("note"), "/srv/deep/er/note", 0o640).link("/bin", "usr/bin");
        spec.directory("/tmp", 0o1777).bytes("tool", "/bin/tool", 0o755);
        let mut steps = Vec::new();
        let image =
            build(&spec, &folder.path().join("cache"), &mut |step| steps.push(step)).expect("an image");
        assert_eq!(std::fs::read(&image.kernel).expect("the kernel"), b"a kernel");
        assert!(steps.len() > image.entries && steps[0] == Progress::Reading, "{steps:?}");
        let Some(unpacked) = unpack(&image.initramfs, compression) else { return };
        let root = unpacked.path().join("root");
        let text = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
        assert_eq!(text("init"), "#!/bin/sh\n");
        assert_eq!(text("srv/deep/er/note"), "of the machine");
        // What is put below /bin lands where the link leads.
        assert_eq!(text("usr/bin/tool"), "tool");
        assert_eq!(text("bin/tool"), "tool");
        assert_eq!(text("etc/tombolo/modules"), "");
    }
}

#[test]
fn the_same_inputs_are_the_same_image_and_a_changed_one_is_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let note = folder.path().join("note");
    std::fs::write(&note, "first").expect("a file");
    let mut spec = spec(folder.path());
    spec.file(&note, "/note", 0o644);
    let first = build(&spec, &cache, &mut quiet).expect("an image");
    let again = build(&spec, &cache, &mut quiet).expect("an image");
    assert!(!first.cached && again.cached);
    assert_eq!((&first.key, &first.initramfs), (&again.key, &again.initramfs));
    let bytes = std::fs::read(&first.initramfs).expect("the initramfs");
    std::fs::write(&note, "other").expect("a file");
    let other = build(&spec, &cache, &mut quiet).expect("an image");
    assert!(!other.cached && other.key != first.key);
    std::fs::write(&note, "first").expect("a file");
    assert!(build(&spec, &cache, &mut quiet).expect("an image").cached, "the first content is known");
    std::fs::write(folder.path().join("boot/vmlinuz-6.1.0-1"), "another kernel").expect("a kernel");
    let kernel = build(&spec, &cache, &mut quiet).expect("an image");
    assert!(!kernel.cached && kernel.key != first.key);
    // Built anew somewhere else, it is the same to the byte.
    std::fs::write(folder.path().join("boot/vmlinuz-6.1.0-1"), "a kernel").expect("a kernel");
    let elsewhere = build(&spec, &folder.path().join("elsewhere"), &mut quiet).expect("an image");
    assert_eq!(elsewhere.key, first.key);
    assert_eq!(std::fs::read(elsewhere.initramfs).expect("the initramfs"), bytes);
}

#[test]
fn a_program_comes_with_everything_that_it_needs() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut spec = spec(folder.path());
    spec.compression = Compression::None;
    spec.link("/lib64", "usr/lib64").link("/lib", "usr/lib").link("/bin", "usr/bin");
    spec.program("/bin/bash", "/bin/bash").program("/usr/bin/env", "/usr/bin/env");
    let image = build(&spec, &folder.path().join("cache"), &mut quiet).expect("an image");
    let Some(unpacked) = unpack(&image.initramfs, Compression::None) else { return };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can chroot");
        return;
    }
    let root = unpacked.path().join("root");
    let output = Command::new("chroot")
        .arg(&root)
        .args(["/usr/bin/env", "-i", "/bin/bash", "-c", "echo it runs"])
        .output()
        .expect("chroot(8)");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "it runs\n", "{output:?}");
}

#[test]
fn what_is_missing_is_said_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let refused = |change: &dyn Fn(&mut Spec)| {
        let mut spec = spec(folder.path());
        change(&mut spec);
        build(&spec, &cache, &mut quiet).expect_err("refused")
    };
    let error = refused(&|spec| spec.modules.push("no-such".into()));
    assert_eq!(error.to_string(), "kernel 6.1.0-1 has no module `no_such`");
    let error = refused(&|spec| {
        spec.program("/no/such/busybox", "/bin/busybox");
    });
    assert!(error.to_string().contains("/no/such/busybox"), "{error}");
    assert!(error.help().expect("a help").contains("busybox-static"));
    let error = refused(&|spec| {
        spec.bytes("one", "/etc/x", 0o644).bytes("two", "/bin", 0o644).bytes("three", "/etc/x", 0o644);
    });
    assert_eq!(error.to_string(), "two different things are to be at /etc/x");
    let error = refused(&|spec| {
        spec.bytes("a file", "/etc", 0o644).bytes("below it", "/etc/x", 0o644);
    });
    assert!(matches!(error, ImageError::Conflict { .. }), "{error}");
    let error = refused(&|spec| spec.entries.clear());
    assert!(matches!(error, ImageError::NoInit), "{error}");
    let error = refused(&|spec| {
        spec.file("/dev/zero", "/zero", 0o644);
    });
    assert!(error.to_string().contains("no regular file"), "{error}");
    for place in ["relative", "/", "/a/../b", &format!("/{}", "x".repeat(5000))] {
        let error = refused(&|spec| {
            spec.bytes("", place, 0o644);
        });
        assert!(matches!(error, ImageError::BadPlace { .. }), "{place}: {error}");
    }
    assert!(!cache.exists(), "a refused spec leaves nothing");
}

#[test]
fn a_library_that_is_nowhere_is_named_with_where_it_was_looked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut spec = spec(folder.path());
    // This very test, with the name of its C library broken.
    let mut program = std::fs::read(std::env::current_exe().expect("this test")).expect("this test");
    let name = b"libc.so.6\0";
    let at: Vec<usize> =
        (0..program.len() - name.len()).filter(|&i| &program[i..i + name.len()] == name).collect();
    at.iter().for_each(|&i| program[i..i + 4].copy_from_slice(b"gone"));
    let broken = folder.path().join("broken");
    std::fs::write(&broken, program).expect("a file");
    spec.library_paths.push(PathBuf::from("/unpacked/lib"));
    spec.program(&broken, "/bin/broken");
    let error = build(&spec, &folder.path().join("cache"), &mut quiet).expect_err("refused");
    let text = error.to_string();
    assert!(
        text.contains("gone.so.6") && text.contains("/unpacked/lib") && text.contains("/usr/lib"),
        "{text}"
    );
}

#[test]
fn a_cache_keeps_what_was_used_last_and_nothing_unfinished() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    std::fs::create_dir_all(cache.join(".unfinished-of-somebody-killed/sub")).expect("a folder");
    std::fs::write(cache.join("a-file-of-mine"), "stays").expect("a file");
    let build_one = |number: usize| {
        let mut spec = spec(folder.path());
        spec.bytes(number.to_string(), "/number", 0o644);
        build(&spec, &cache, &mut quiet).expect("an image")
    };
    let first = build_one(0);
    assert!(!cache.join(".unfinished-of-somebody-killed").exists());
    for number in 1..MAX_IMAGES {
        build_one(number);
    }
    assert!(build_one(0).cached, "used again, so it is not the next to go");
    build_one(MAX_IMAGES);
    assert!(first.initramfs.exists() && cache.join("a-file-of-mine").exists());
    assert!(!build_one(1).cached, "it was the one used least recently");
}

#[test]
fn builders_of_one_cache_wait_for_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let spec = spec(folder.path());
    let images: Vec<_> = std::thread::scope(|scope| {
        let builders: Vec<_> =
            (0..4).map(|_| scope.spawn(|| build(&spec, &cache, &mut quiet).expect("an image"))).collect();
        builders.into_iter().map(|builder| builder.join().expect("no panic")).collect()
    });
    assert_eq!(images.iter().filter(|image| !image.cached).count(), 1, "built more than once");
}

#[test]
fn a_copy_of_an_image_replaces_what_was_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = build(&spec(folder.path()), &folder.path().join("cache"), &mut quiet).expect("an image");
    let output = folder.path().join("out");
    std::fs::create_dir(&output).expect("a folder");
    std::fs::write(output.join("vmlinuz"), "an older one").expect("a file");
    let copy = copy_to(&image, &output).expect("a copy");
    assert_eq!(copy.kernel, output.join("vmlinuz"));
    assert_eq!(std::fs::read(&copy.kernel).expect("the copy"), b"a kernel");
    let both = [&copy.initramfs, &image.initramfs].map(|path| std::fs::read(path).expect("an initramfs"));
    assert_eq!(both[0], both[1]);
}

/// The image of a domain that names no kernel: known again as long as nothing of it changes, and
/// made of what is there.
#[test]
fn the_guest_of_a_node_is_made_anew_when_the_kernel_or_the_binary_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let error =
        || image::default_guest(&state, None, Path::new("/bin/true"), &mut quiet).expect_err("no kernel");
    if Kernel::find(Path::new("/")).is_err() {
        let error = error();
        let at = state.join("kernel").display().to_string();
        assert!(error.to_string().contains(&at) && error.help().expect("a help").contains(&at), "{error}");
    }
    let kernel = kernel(&state.join("kernel"));
    let has = |names: &[&str]| {
        let list: String = names.iter().map(|name| format!("kernel/{name}.ko\n")).collect();
        std::fs::write(kernel.modules.join("modules.builtin"), list).expect("a list");
    };
    has(&[&image::GUEST_MODULES[..], &["ext4", "virtio_blk"]].concat());
    let tombolo = folder.path().join("tombolo");
    std::fs::copy("/bin/true", &tombolo).expect("a program");
    let build = || match image::default_guest(&state, None, &tombolo, &mut quiet) {
        Ok(image) => Some(image),
        Err(error) if error.to_string().contains("busybox") => {
            println!("skipped: needs busybox; run `make deps`");
            None
        }
        Err(error) => panic!("{error}"),
    };
    let Some(first) = build() else { return };
    assert_eq!(first.missing_modules, ["vfio-pci", "vfio_iommu_type1", "pvpanic-pci"]);
    assert!(first.initramfs.starts_with(image::cache(&state)) && !first.cached);
    let again = build().expect("as before");
    assert!(again.cached && again.key == first.key);
    std::fs::copy("/bin/false", &tombolo).expect("another program");
    let second = build().expect("as before");
    assert!(!second.cached && second.key != first.key);
    std::fs::write(&kernel.image, "another kernel").expect("a kernel");
    let third = build().expect("as before");
    assert!(!third.cached && third.key != second.key);
    has(&image::GUEST_MODULES[1..]);
    let error = image::default_guest(&state, None, &tombolo, &mut quiet).expect_err("a module is missing");
    assert_eq!(error.to_string(), "kernel 6.1.0-1 has no module `fuse`");
}
