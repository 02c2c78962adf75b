//! A registry as a part of something else.

use registry::Registry;

/// A registry that can stand in a struct that is printed.
pub(crate) trait RegistryDebug: Registry + std::fmt::Debug {}
impl<T: Registry + std::fmt::Debug> RegistryDebug for T {}
