//! Disks of machines: a root that is on one, in both formats, and what is written to it.

use e2e::machines::{self, shell, shell_ok};
use e2e::{Node, node, wait};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of a disk: enough for busybox, the file system's own tables, and what the test writes.
const DISK: &str = "16M";
/// Of a disk that boots itself: twice what a kernel and a guest take.
const BOOTABLE_BYTES: u64 = 96 << 20;

/// A disk with a small system on it, made without mounting anything; `None`, said, where a program
/// is missing.
fn disk(folder: &Path) -> Option<PathBuf> {
    let tree = folder.join("tree");
    for directory in ["bin", "dev", "etc", "proc", "run", "srv", "sys", "tmp"] {
        std::fs::create_dir_all(tree.join(directory)).expect("a directory");
    }
    let busybox = image::find_program("busybox").expect("busybox");
    std::fs::copy(busybox, tree.join("bin/busybox")).expect("a copy");
    for name in ["cat", "ls", "mount", "nslookup", "sh", "sleep", "sync"] {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(name)).expect("a link");
    }
    std::fs::write(tree.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nsailor:x:1000:1000::/:/bin/sh\n")
        .expect("a file");
    std::fs::write(tree.join("etc/release"), "a disk of the tests\n").expect("a file");
    let disk = folder.join("disk.raw");
    let made = Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-d"])
        .arg(&tree)
        .arg(&disk)
        .arg(DISK)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output();
    match made {
        Ok(output) => assert!(output.status.success(), "mke2fs: {}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => {
            println!("skipped: needs mke2fs (e2fsprogs); run `make deps`");
            return None;
        }
    }
    Some(disk)
}

fn qcow2(raw: &Path) -> Option<PathBuf> {
    let to = raw.with_extension("qcow2");
    let made = Command::new("qemu-img").args(["convert", "-O", "qcow2"]).arg(raw).arg(&to).output();
    match made {
        Ok(output) => {
            assert!(output.status.success(), "qemu-img: {}", String::from_utf8_lossy(&output.stderr))
        }
        Err(_) => {
            println!("skipped: needs qemu-img (qemu-utils); run `make deps`");
            return None;
        }
    }
    Some(to)
}

fn domain(name: &str, disk: &Path, format: &str, more: &str) -> String {
    let disk = format!(
        ", disk = {{ path = {:?}, format = \"{format}\", holds = \"root\"{more} }}",
        disk.display().to_string()
    );
    machines::domain(name, &["sh", "-c", "echo from the disk; cat /etc/release; sleep 1000000"], &disk, "")
}

#[test]
fn a_root_on_a_disk_is_what_programs_see() {
    let Some(node) = machines::start() else { return };
    let Some(raw) = disk(node.folder()) else { return };
    let Some(qcow2) = qcow2(&raw) else { return };
    let file = format!(
        "name = \"disks\"\n{}{}",
        domain("keeps", &qcow2, "qcow2", ""),
        domain("reads", &raw, "raw", ", read_only = true")
    );
    node.up_ok(&file);
    for name in ["keeps", "reads"] {
        wait::until("its command has read the disk", || {
            node.ok(&["logs", name]).contains("a disk of the tests")
        });
        assert_eq!(shell_ok(&node, name, "cat /etc/release"), "a disk of the tests\n");
        // What every domain has is there as well.
        assert!(shell_ok(&node, name, "cat /srv/self/about.json").contains(name));
        let user =
            node.run(&["exec", "--user", "sailor", name, "--", "sh", "-c", "echo $HOME; cat /etc/passwd"]);
        assert!(user.code == 0 && user.out.contains("sailor"), "{user:?}");
    }
    assert_ne!(
        shell(&node, "reads", "echo no >/etc/written").code,
        0,
        "a disk that is read only was written to"
    );
    what_is_written_stays(&node, &file);
}

/// Also across a power cut, where it was synced.
fn what_is_written_stays(node: &Node, file: &str) {
    shell_ok(node, "keeps", "echo kept >/etc/written; sync");
    for qemu in machines::qemus(node, "keeps") {
        node::kill(qemu);
    }
    node.run(&["down", "disks"]);
    node.up_ok(file);
    assert_eq!(shell_ok(node, "keeps", "cat /etc/written"), "kept\n");
}

/// A disk that its firmware boots: a boot loader, and a system in which the agent runs. Made
/// without mounting anything.
fn bootable(folder: &Path) -> Option<PathBuf> {
    const CONFIGURATION: &str = "DEFAULT linux\nLABEL linux\n KERNEL vmlinuz\n INITRD initramfs\n \
        APPEND console=ttyS0 quiet panic=-1 intel_iommu=on rootfstype=ramfs no_timer_check\n";
    let disk = folder.join("bootable.raw");
    File::create(&disk).and_then(|file| file.set_len(BOOTABLE_BYTES)).expect("a disk");
    let configuration = folder.join("syslinux.cfg");
    std::fs::write(&configuration, CONFIGURATION).expect("a file");
    let image = machines::image(env!("CARGO_BIN_EXE_channel_peer"));
    let at = disk.display().to_string();
    let copy = |from: &Path, to: &str| {
        ("mcopy", vec!["-i".into(), at.clone(), from.display().to_string(), format!("::{to}")])
    };
    let steps = [
        ("mformat", vec!["-i".into(), at.clone(), "-F".into(), "::".into()]),
        copy(&image.kernel, "vmlinuz"),
        copy(&image.initramfs, "initramfs"),
        copy(&configuration, "syslinux.cfg"),
        ("syslinux", vec!["--install".into(), at.clone()]),
    ];
    for (program, words) in steps {
        let Ok(output) = Command::new(program).args(words).output() else {
            println!("skipped: needs {program}; run `make deps`");
            return None;
        };
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Some(disk)
}

#[test]
fn a_disk_that_boots_itself_is_a_domain_where_the_agent_runs_on_it() {
    let Some(node) = machines::start() else { return };
    let Some(disk) = bootable(node.folder()) else { return };
    let disk = format!(
        ", disk = {{ path = {:?}, format = \"raw\", holds = \"system\" }}",
        disk.display().to_string()
    );
    node.up_ok(&format!("name = \"disks\"\n{}", machines::domain("boots", &[], &disk, "")));
    assert!(shell_ok(&node, "boots", "cat /proc/cmdline").contains("BOOT_IMAGE=vmlinuz"));
    assert!(shell_ok(&node, "boots", "cat /srv/self/about.json").contains("boots"));
}
