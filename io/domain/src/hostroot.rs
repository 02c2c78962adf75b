//! The root `host`: the machine's own programs in a tree that holds nothing of its secrets.
//!
//! `/usr` is bound read-only; `/bin`, `/sbin` and `/lib*` are what they are on the machine. `/etc`
//! is made: what differs per domain is generated, what programs need and everybody may read is
//! taken over name by name, and all else (shadow, keys, the machine's identity, mail, cron,
//! services' settings) is simply not named. `/home`, `/root`, `/var` and `/tmp` are empty.

use crate::error::{Context, Result};
use crate::spec::Mount;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// Files up to this size are copied, which costs a page or two; larger ones are bound, which costs
/// a mount.
const COPY_BYTES: u64 = 16 * 1024;

/// Directories of the root that are empty, or mount points. `/var/run` and `/var/lock` follow as
/// links.
const DIRECTORIES: [&str; 20] = [
    "dev",
    "etc",
    "home",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
    "var/cache",
    "var/lib",
    "var/lib/misc",
    "var/log",
    "var/spool",
    "var/tmp",
    "etc/ssl",
];

/// System directories that are links into `/usr` on a merged system, and directories of their own
/// on others.
const SYSTEM: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"];

/// The files that are taken over from the machine's `/etc`, where they exist and everybody may read
/// them.
const SHARED: [&str; 42] = [
    "alternatives",
    "bash.bashrc",
    "bindresvport.blacklist",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "ethertypes",
    "fonts",
    "gai.conf",
    "groff",
    "host.conf",
    "inputrc",
    "issue",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "mailcap",
    "mime.types",
    "netconfig",
    "networks",
    "os-release",
    "perl",
    "profile",
    "protocols",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "xattr.conf",
    "xdg",
];

/// Makes the tree in the empty directory `root` and tells what is to be mounted on it.
pub(crate) fn build(root: &Path) -> Result<Vec<Mount>> {
    for name in DIRECTORIES {
        let at = root.join(name);
        fs::create_dir_all(&at).at("create", &at)?;
    }
    link("/run", &root.join("var/run"))?;
    link("/run/lock", &root.join("var/lock"))?;
    let mut mounts = vec![shared("/usr".into())];
    for name in SYSTEM {
        take_over(Path::new("/"), root, name, &mut mounts)?;
    }
    let etc = Path::new("/etc");
    for name in SHARED {
        take_over(etc, &root.join("etc"), name, &mut mounts)?;
    }
    for name in versions_of_python(etc)? {
        take_over(etc, &root.join("etc"), &name, &mut mounts)?;
    }
    write(
        root,
        "etc/passwd",
        &without_secrets(&fs::read_to_string("/etc/passwd").at("read", "/etc/passwd")?),
    )?;
    write(root, "etc/group", &without_secrets(&fs::read_to_string("/etc/group").at("read", "/etc/group")?))?;
    write(root, "etc/nsswitch.conf", &nsswitch(resolve_module_exists()))?;
    link("/proc/self/mounts", &root.join("etc/mtab"))?;
    Ok(mounts)
}

/// Whether a path of the domain is the machine's own.
pub(crate) fn is_taken_over(path: &Path) -> bool {
    let top = path.components().nth(1).map(|name| name.as_os_str().to_owned());
    top.is_some_and(|top| top == "usr" || SYSTEM.iter().any(|name| top == *name))
}

/// Whether a path of the domain is a directory that is made for it, and empty but for others of
/// these.
pub(crate) fn is_made(path: &Path) -> bool {
    path.strip_prefix("/").is_ok_and(|path| DIRECTORIES.iter().any(|name| path == Path::new(name)))
}

fn shared(path: PathBuf) -> Mount {
    Mount { source: path.clone(), target: path, read_only: true }
}

/// A link stays a link, a small file is copied, a directory or a large file is to be bound; the
/// rest is not taken.
fn take_over(from: &Path, to: &Path, name: &str, mounts: &mut Vec<Mount>) -> Result<()> {
    let (source, target) = (from.join(name), to.join(name));
    let Ok(metadata) = fs::symlink_metadata(&source) else { return Ok(()) };
    if metadata.is_symlink() {
        return link(fs::read_link(&source).at("read link", &source)?, &target);
    }
    if metadata.mode() & 0o004 == 0 {
        return Ok(());
    }
    if metadata.is_dir() {
        fs::create_dir_all(&target).at("create", &target)?;
        mounts.push(shared(source));
    } else if metadata.is_file() && metadata.len() <= COPY_BYTES {
        fs::copy(&source, &target).at("copy", &source)?;
    } else if metadata.is_file() {
        fs::write(&target, "").at("create", &target)?;
        mounts.push(shared(source));
    }
    Ok(())
}

fn versions_of_python(etc: &Path) -> Result<Vec<String>> {
    let names = fs::read_dir(etc).at("list", etc)?.flatten().filter_map(|e| e.file_name().into_string().ok());
    Ok(names.filter(|n| n.starts_with("python")).collect())
}

fn link(to: impl AsRef<Path>, at: &Path) -> Result<()> {
    symlink(to, at).at("create link", at)
}

fn write(root: &Path, name: &str, text: &str) -> Result<()> {
    let at = root.join(name);
    fs::write(&at, text).at("write", &at)
}

/// `passwd` or `group` with `x` for every password that some ancient system may still keep there.
fn without_secrets(text: &str) -> String {
    let clean = |line: &str| {
        let mut fields: Vec<&str> = line.split(':').collect();
        if let Some(password) = fields.get_mut(1).filter(|p| !matches!(**p, "x" | "*" | "!")) {
            *password = "x";
        }
        fields.join(":") + "\n"
    };
    text.lines().map(clean).collect()
}

/// Names only modules that exist: a missing one makes some programs fail instead of going on.
fn nsswitch(resolve: bool) -> String {
    let hosts = if resolve { "files resolve [!UNAVAIL=return] dns" } else { "files dns" };
    format!(
        "passwd: files\ngroup: files\nshadow: files\nhosts: {hosts}\nnetworks: files\nprotocols: files\n\
         services: files\nethers: files\nrpc: files\n"
    )
}

fn resolve_module_exists() -> bool {
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let dirs = [
        format!("/usr/lib/{multiarch}"),
        format!("/lib/{multiarch}"),
        "/usr/lib64".into(),
        "/usr/lib".into(),
    ];
    dirs.iter().any(|d| Path::new(d).join("libnss_resolve.so.2").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_what_programs_need_and_no_secret() {
        let dir = tempfile::tempdir().expect("dir");
        let mounts = build(dir.path()).expect("build");
        assert!(mounts.iter().all(|m| m.read_only));
        assert!(mounts.iter().any(|m| m.target == Path::new("/usr")));
        for needed in ["etc/passwd", "etc/nsswitch.conf", "srv", "proc", "bin"] {
            assert!(fs::symlink_metadata(dir.path().join(needed)).is_ok(), "{needed} is missing");
        }
        for secret in
            ["etc/shadow", "etc/gshadow", "etc/ssh", "etc/machine-id", "etc/ssl/private", "etc/sudoers"]
        {
            assert!(!dir.path().join(secret).exists(), "{secret} is there");
            let bound = mounts.iter().any(|m| Path::new("/").join(secret).starts_with(&m.source));
            assert!(!bound, "{secret} is bound");
        }
    }

    #[test]
    fn old_passwords_are_blanked() {
        assert_eq!(without_secrets("a:$1$x:0:0\nb:x:1:1\nc::2:2\n"), "a:x:0:0\nb:x:1:1\nc:x:2:2\n");
    }

    #[test]
    fn only_modules_that_exist_are_named() {
        assert!(nsswitch(false).contains("hosts: files dns\n"));
        assert!(nsswitch(true).contains("hosts: files resolve "));
    }
}
