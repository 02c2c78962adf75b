//! The admitted topology: what is left of a file after every rule has passed.
//!
//! Everything is resolved: defaults are filled in, durations are milliseconds, sizes bytes, paths
//! absolute, `"*"` is a list of names. These are plain structs, so that the daemon can store them,
//! send them and compare them.

mod adaptation;
mod camera;
mod domain;
mod endpoint;
mod events;
mod files;
mod location;
mod machine;
mod placement;
mod reserve;
mod service;
mod socket;
mod volume;

use serde::{Deserialize, Serialize};

pub(crate) use adaptation::MonitorWord;
pub use adaptation::{ActivatorProgram, Adaptation, Giving, Monitor, Pressed, SelectorProgram};
pub use camera::{Camera, CameraSettings, FrameFormat};
pub use domain::{
    Domain, DomainKind, Health, IdOrName, Layer, Limits, LogLimits, Mount, Network, Program, Ready, Resolv,
    Restart, RestartPolicy, Root, ServiceMount, Signal, Stop, Target, User,
};
pub use endpoint::{Caller, Endpoint, EndpointVerb, IpcLimits};
pub use events::{EventChannel, EventFilter, EventsSettings};
pub use files::FilesSettings;
pub use location::{LocationKind, LocationSettings, LocationSource};
pub use machine::{Accel, Disk, DiskFormat, DiskHolds, Machine, MachineKernel};
pub use placement::{NodeChoice, Placement};
pub use reserve::{
    DiskShare, Enforce, Job, JobPolicy, NetworkClass, NetworkShare, Outside, ProcessorShare, Reserve, Who,
};
pub use service::{
    Cache, CacheMode, ChannelMode, ChannelSettings, CoordinationSettings, DirectorySettings, ProgramSettings,
    Service, ServiceKind, Settings, Verb,
};
pub use socket::{Published, SocketMount, SocketPlace, SocketSettings};
pub use volume::{VolumeMount, VolumeStore};

use crate::name::Name;

/// One distributed container: its domains, services and endpoints.
///
/// Made by [`crate::parse`]. A value that comes back from a registry was admitted when it went in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The distributed container's name.
    pub name: Name,
    /// The domains, sorted by name. For the order in which they start see
    /// [`Topology::start_order`].
    pub domains: Vec<Domain>,
    /// The services, sorted by name.
    pub services: Vec<Service>,
    /// The endpoints that have names, sorted by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// How much there may be of what endpoints need.
    #[serde(default, skip_serializing_if = "IpcLimits::is_default")]
    pub ipc: IpcLimits,
    /// The adaptations that move promises while domains run, sorted by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adaptations: Vec<Adaptation>,
}

impl Topology {
    /// An empty distributed container: what stands before the first `up` and after `down`.
    #[must_use]
    pub fn empty(name: Name) -> Self {
        Self {
            name,
            domains: Vec::new(),
            services: Vec::new(),
            endpoints: Vec::new(),
            ipc: IpcLimits::default(),
            adaptations: Vec::new(),
        }
    }

    /// The domain with this name.
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.iter().find(|domain| domain.name == *name)
    }

    /// The service with this name.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == *name)
    }

    /// The services whose backend runs in this domain, sorted by name.
    pub fn hosted_by<'a>(&'a self, domain: &'a str) -> impl Iterator<Item = &'a Service> + 'a {
        self.services.iter().filter(move |service| service.domain == *domain)
    }

    /// The services whose server runs in this domain, sorted by name. Channels and services of
    /// programs have none: the domain's own programs offer them.
    pub fn served_by<'a>(&'a self, domain: &'a str) -> impl Iterator<Item = &'a Service> + 'a {
        self.hosted_by(domain).filter(|service| service.kind().has_server())
    }

    /// Whether a domain mounts a service.
    #[must_use]
    pub fn mounts(&self, domain: &str, service: &str) -> bool {
        self.domain(domain)
            .is_some_and(|domain| domain.services.iter().any(|mount| mount.service == *service))
    }

    /// Whether programs of `domain` may use `verb` of `service`. An unknown service or domain may
    /// nothing.
    #[must_use]
    pub fn allows(&self, domain: &str, service: &str, verb: &Verb) -> bool {
        self.service(service).is_some_and(|service| service.allows(domain, verb))
    }
}
