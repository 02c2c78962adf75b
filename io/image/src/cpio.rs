//! The kernel's archive of an initramfs: cpio in the form "newc"
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`).
//!
//! Everything that could differ between two machines is left out (times, owners, numbers of
//! inodes), so equal contents are equal bytes.

use std::io::{self, Read, Write};

/// The magic before each header.
const MAGIC: &[u8] = b"070701";
/// The name that ends an archive.
const TRAILER: &str = "TRAILER!!!";
/// Headers with names, and contents, begin at multiples of this.
const ALIGNMENT: u64 = 4;
/// File types in the mode (`stat(2)`).
const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_LINK: u32 = 0o120_000;
const TYPE_CHARACTER: u32 = 0o020_000;

/// The content of a header, beside the name.
#[derive(Debug, Default, Clone, Copy)]
struct Header {
    mode: u32,
    links: u32,
    length: u32,
    device: (u32, u32),
}

/// An archive that is being written.
#[derive(Debug)]
pub(crate) struct Archive<W: Write> {
    out: W,
    at: u64,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub fn new(out: W) -> Self {
        Self { out, at: 0, inode: 0 }
    }

    /// A directory. `name` has no slash in front; directories come before what is in them.
    pub fn directory(&mut self, name: &str, mode: u32) -> io::Result<()> {
        self.header(name, Header { mode: TYPE_DIRECTORY | mode, links: 2, ..Header::default() })
    }

    /// A symbolic link.
    pub fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        let length = short(target.len() as u64)?;
        self.header(name, Header { mode: TYPE_LINK | 0o777, links: 1, length, ..Header::default() })?;
        self.put(target.as_bytes())?;
        self.pad()
    }

    /// A character device.
    pub fn device(&mut self, name: &str, mode: u32, number: (u32, u32)) -> io::Result<()> {
        self.header(
            name,
            Header { mode: TYPE_CHARACTER | mode, links: 1, device: number, ..Header::default() },
        )
    }

    /// A file whose content has exactly `length` bytes.
    pub fn file(&mut self, name: &str, mode: u32, length: u64, content: &mut dyn Read) -> io::Result<()> {
        self.header(
            name,
            Header { mode: TYPE_FILE | mode, links: 1, length: short(length)?, ..Header::default() },
        )?;
        let copied = io::copy(&mut content.take(length), &mut self.out)?;
        self.at += copied;
        if copied != length {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was read"));
        }
        self.pad()
    }

    /// The end; gives back what was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.header(TRAILER, Header { links: 1, ..Header::default() })?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn header(&mut self, name: &str, header: Header) -> io::Result<()> {
        let inode = if name == TRAILER { 0 } else { self.inode + 1 };
        self.inode = inode;
        let name_length = short(name.len() as u64 + 1)?;
        let fields = [
            inode,
            header.mode,
            0, // user
            0, // group
            header.links,
            0, // time
            header.length,
            0,
            0, // the device that it is on
            header.device.0,
            header.device.1,
            name_length,
            0, // check sum, of another form
        ];
        self.put(MAGIC)?;
        for field in fields {
            self.put(format!("{field:08x}").as_bytes())?;
        }
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        while !self.at.is_multiple_of(ALIGNMENT) {
            self.put(&[0])?;
        }
        Ok(())
    }
}

/// A field of the header has 32 bits.
fn short(length: u64) -> io::Result<u32> {
    u32::try_from(length)
        .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "an initramfs has no file of 4 GiB"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn example() -> Vec<u8> {
        let mut archive = Archive::new(Vec::new());
        archive.directory("a", 0o755).expect("a directory");
        archive.file("a/odd", 0o644, 3, &mut &b"odd"[..]).expect("a file");
        archive.file("a/run", 0o755, 4, &mut &b"even"[..]).expect("a file");
        archive.link("b", "a/odd").expect("a link");
        archive.device("null", 0o666, (1, 3)).expect("a device");
        archive.finish().expect("an end")
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut archive = Archive::new(Vec::new());
        archive.file("f", 0o644, 2, &mut &b"hi"[..]).expect("a file");
        let bytes = archive.finish().expect("an end");
        let fields = "00000001000081a40000000000000000000000010000000000000002\
                      0000000000000000000000000000000000000002\
                      00000000";
        assert_eq!(String::from_utf8_lossy(&bytes[..110]), format!("070701{fields}"));
        assert_eq!(&bytes[110..116], b"f\0hi\0\0");
        assert!(bytes.len().is_multiple_of(4) && bytes.windows(10).any(|w| w == TRAILER.as_bytes()));
    }

    #[test]
    fn the_same_content_is_the_same_bytes() {
        assert_eq!(example(), example());
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let mut archive = Archive::new(Vec::new());
        assert!(archive.file("f", 0o644, 9, &mut &b"short"[..]).is_err());
    }

    #[test]
    fn busybox_unpacks_what_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let unpack = Command::new("busybox")
            .args(["cpio", "-idm"])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut unpack) = unpack else {
            println!("skipped: needs busybox; run `make deps`");
            return;
        };
        let mut archive = Archive::new(unpack.stdin.take().expect("its input"));
        archive.directory("a", 0o750).expect("a directory");
        archive.file("a/odd", 0o640, 3, &mut &b"odd"[..]).expect("a file");
        archive.link("b", "a/odd").expect("a link");
        drop(archive.finish().expect("an end"));
        assert!(unpack.wait().expect("an end").success());
        assert_eq!(std::fs::read(folder.path().join("b")).expect("through the link"), b"odd");
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(folder.path().join("a/odd")).expect("it").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }
}
