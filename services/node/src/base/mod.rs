//! The base of every room, which knows of none: the places of things, work that blocks,
//! descriptors that the event loop watches.

mod age;
pub(crate) mod doorstep;
mod files;
mod guarded;
pub(crate) mod history;
mod prospect;
mod store;
mod watched;
mod words;
mod work;

pub(crate) use age::process_age;
pub(crate) use files::text;
pub use files::{look, module_bytes};
pub(crate) use guarded::Guarded;
pub(crate) use prospect::{image, lacks, root, user_text};
pub(crate) use store::RegistryDebug;
pub(crate) use watched::watched;
pub(crate) use words::meant;
pub(crate) use work::{
    BOOK, CHECKS, DISKS, ENDS, KEPT, LOOKS, MEMBER, PROXIES, Pool, REGISTRY, REMOVALS, SELECTORS, STRANGERS,
    TENANTS, UNPACKING, blocking, said, threads,
};
