//! The base of every room, which knows of none: where things are, work that blocks, descriptors
//! that the event loop watches.

pub(crate) mod doorstep;
mod files;
mod guarded;
pub mod place;
mod prospect;
mod store;
mod watched;
mod words;
mod work;

pub use files::look;
pub(crate) use files::text;
pub(crate) use guarded::Guarded;
pub(crate) use prospect::{image, lacks, root, user_text};
pub(crate) use store::RegistryDebug;
pub(crate) use watched::watched;
pub(crate) use words::meant;
pub(crate) use work::{
    BOOK, CHECKS, DISKS, ENDS, KEPT, LOOKS, MEMBER, PROXIES, REGISTRY, REMOVALS, STRANGERS, TENANTS,
    UNPACKING, blocking, said, threads,
};
