//! The topology file: parsing, validation, admission and the plan that follows from it.

mod model;
mod name;

pub use model::{
    Cache, CacheMode, DirectorySettings, Domain, DomainKind, IdOrName, Limits, LogLimits, Mount, Network,
    Program, Ready, Resolv, Restart, RestartPolicy, Root, Service, ServiceKind, ServiceMount, Settings,
    Signal, Stop, Topology, User, Verb,
};
pub use name::{NAME_BYTES_MAX, NAME_PATTERN, Name, NameError};
