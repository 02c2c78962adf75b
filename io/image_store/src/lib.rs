//! Images of containers on a node: kept by content, imported from layouts and archives, pulled from
//! registries.
//!
//! The maker of an image, and the keeper of a registry, may be hostile. All content is verified
//! against the digest by which it was asked for before it has a name in the store; all sizes,
//! numbers and waits have a bound. Nothing is unpacked here.

mod challenge;
mod copy;
mod credentials;
mod document;
mod error;
mod files;
mod import;
mod naming;
mod registry;
mod store;

pub use copy::Progress;
pub use credentials::Credentials;
pub use error::{Error, Result};
pub use import::import;
pub use naming::{familiar, reference};
pub use oci_spec::distribution::Reference;
pub use registry::{Access, pull};
pub use store::{Collected, FOLDER, Image, Store};

#[cfg(test)]
mod tests;
