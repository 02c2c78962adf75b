//! libtombolo_preload.so: name look-ups of dynamic programs over a channel of their own.
//!
//! `LD_PRELOAD=libtombolo_preload.so program` makes the program's `getaddrinfo`, `getnameinfo`,
//! `gethostbyname`, `gethostbyname2`, `gethostbyaddr` and their `_r` forms ask the directory
//! service that the domain mounts. What is not for it (addresses in digits, names of `/etc/hosts`,
//! odd flags), and everything while there is no service, goes to the C library, as if nothing were
//! preloaded. Described in `docs/spec/entrances.md`.

mod directory;
mod hosts;
mod order;

use directory::Directory;

static DIRECTORY: Directory = Directory::new();

// A test program must go on to resolve as ever.
#[cfg(not(test))]
sys::interpose_names!(DIRECTORY);

#[cfg(test)]
const _: &Directory = &DIRECTORY;
