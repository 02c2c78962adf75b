//! One service, seen in several ways: each way has to give the same bytes, errnos and readiness.
//!
//! [`compare`] does the operations of [`table`] through each [`View`] and returns what differed. A
//! difference that is meant stands in [`MEANT`], with its reason; one that stands there and is not
//! found is a fault, too, so that the list stays true. The operations want the services that
//! `e2e/tests/all/service_views.rs` starts.

pub mod direct;
pub mod mount;
pub mod ninep;
mod table;

pub use table::Group;

/// A result, or the errno.
pub type Done<T> = Result<T, i32>;

/// `ENOTSUP`: how a view says that it has no such operation.
pub const NOT_SUPPORTED: i32 = 95;

/// An open file of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opened(pub usize);

/// The attributes that all views know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Type and permission bits, as of stat(2).
    pub mode: u32,
    /// Names that it has.
    pub links: u64,
    /// Bytes.
    pub size: u64,
}

/// One way to use services. Paths begin with the service's name; flags are those of open(2);
/// readiness is of poll(2), in words (`in`, `out`, `pri`, `err`).
pub trait View {
    /// The name of the view, in reports and in [`MEANT`].
    fn name(&self) -> &'static str;
    /// The attributes.
    ///
    /// # Errors
    /// The errno; of all that follow, too.
    fn stat(&mut self, path: &str) -> Done<Stat>;
    /// Returns the names in a folder but `.` and `..`, in no order. The listing is taken in parts
    /// as small as the view allows, where it can choose.
    fn list(&mut self, path: &str) -> Done<Vec<Vec<u8>>>;
    /// Opens.
    fn open(&mut self, path: &str, flags: u32) -> Done<Opened>;
    /// Makes a file, and opens it.
    fn create(&mut self, path: &str, flags: u32, mode: u32) -> Done<Opened>;
    /// One read; the offset counts where the file has offsets.
    fn read(&mut self, file: Opened, offset: u64, most: usize) -> Done<Vec<u8>>;
    /// Begins a read that waits; [`View::end_read`] has its result.
    fn begin_read(&mut self, file: Opened, most: usize) -> Done<()>;
    /// The result of the read that was begun.
    fn end_read(&mut self, file: Opened) -> Done<Vec<u8>>;
    /// One write: how many bytes were taken.
    fn write(&mut self, file: Opened, offset: u64, data: &[u8]) -> Done<usize>;
    /// Waits until what was written would outlive a power cut.
    fn sync(&mut self, file: Opened) -> Done<()>;
    /// Waits until these of the events hold, and returns all that do; with none, does not wait.
    fn ready(&mut self, file: Opened, wanted: &[&str]) -> Done<Vec<&'static str>>;
    /// Closes.
    fn close(&mut self, file: Opened);
    /// Makes a folder.
    fn make_folder(&mut self, path: &str) -> Done<()>;
    /// Takes a file's name away.
    fn unlink(&mut self, path: &str) -> Done<()>;
    /// Takes an empty folder away.
    fn remove_folder(&mut self, path: &str) -> Done<()>;
    /// Gives another name, within a service.
    fn rename(&mut self, path: &str, to: &str) -> Done<()>;
    /// Gives one more name.
    fn link(&mut self, path: &str, to: &str) -> Done<()>;
    /// Changes size and permission bits, as far as they are said.
    fn set(&mut self, path: &str, size: Option<u64>, mode: Option<u32>) -> Done<()>;
    /// The value of an extended attribute.
    fn xattr(&mut self, path: &str, name: &str) -> Done<Vec<u8>>;
    /// The names of all extended attributes, each with a NUL behind it.
    fn xattrs(&mut self, path: &str) -> Done<Vec<u8>>;
    /// Sets an extended attribute, as setxattr(2) with these flags; without a value, removes it.
    fn set_xattr(&mut self, path: &str, name: &str, value: Option<&[u8]>, flags: u32) -> Done<()>;
}

/// A difference that is meant.
#[derive(Debug, Clone, Copy)]
pub struct Meant {
    /// A part of the names of the operations that differ.
    pub operation: &'static str,
    /// In which view.
    pub view: &'static str,
    /// Why it is so.
    pub reason: &'static str,
}

/// All differences that are meant.
pub const MEANT: &[Meant] = &[
    Meant {
        operation: "poll ",
        view: "9p",
        reason: "9P2000.L has no poll: who waits reads, and others of its requests go on meanwhile",
    },
    Meant {
        operation: "open a text to write",
        view: "direct",
        reason: "modes are for the caller's kernel, which knows its users; a server asks for verbs",
    },
    Meant {
        operation: "open a stream to write",
        view: "direct",
        reason: "modes are for the caller's kernel, which knows its users; a server asks for verbs",
    },
    Meant {
        operation: "session that was opened to",
        view: "direct",
        reason: "the kernel keeps the access mode of an open file; requests over a channel are not lines",
    },
    Meant {
        operation: "stat a control",
        view: "direct",
        reason: "a frontend shows no permission bits without the verb; an export says the verb itself",
    },
    Meant {
        operation: "write a NUL",
        view: "direct",
        reason: "a request may have any bytes; lines of a file have no NUL",
    },
];

/// An operation and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The operation, as its group and words.
    pub operation: String,
    /// The result, as text.
    pub result: String,
}

/// Does the operations of `groups` through each view. Returns how many were compared, and the
/// findings: empty where all is as it should be.
pub fn compare(views: &mut [Box<dyn View>], groups: &[Group]) -> (usize, Vec<String>) {
    let all: Vec<(&str, Vec<Outcome>)> =
        views.iter_mut().map(|view| (view.name(), table::run(view.as_mut(), groups))).collect();
    let Some(((first, wanted), others)) = all.split_first() else { return (0, Vec::new()) };
    let mut findings = Vec::new();
    let mut used = vec![false; MEANT.len()];
    for (name, found) in others {
        if found.len() != wanted.len() {
            findings.push(format!("{name} did {} operations, {first} did {}", found.len(), wanted.len()));
        }
        for (one, other) in wanted.iter().zip(found) {
            if one == other {
                continue;
            }
            let meant =
                MEANT.iter().position(|meant| meant.view == *name && one.operation.contains(meant.operation));
            match meant {
                Some(at) if one.operation == other.operation => {
                    if let Some(used) = used.get_mut(at) {
                        *used = true;
                    }
                }
                _ => findings.push(format!(
                    "{}: {first} {}, {name} {} ({})",
                    one.operation, one.result, other.result, other.operation
                )),
            }
        }
    }
    for (meant, used) in MEANT.iter().zip(used) {
        let was_asked = others.iter().any(|(name, found)| {
            *name == meant.view && found.iter().any(|one| one.operation.contains(meant.operation))
        });
        if was_asked && !used {
            findings.push(format!("{}: {} differs no more: {}", meant.operation, meant.view, meant.reason));
        }
    }
    (wanted.len(), findings)
}
