//! The agent in a guest: what makes a virtual machine a domain like any other
//! (`docs/spec/guest.md`).
//!
//! Its one link to the node is a port. Over that come what the guest is to be, the streams of the
//! control socket, of the frontend and of further processes; and with them ends of channels, each
//! of which is a PCI device of the guest. One thread serves all of it, so that a member that does
//! not read its socket keeps nobody else waiting.

mod agent;
mod device;
mod ends;
mod enter;
mod entrances;
mod error;
mod port;
mod process;
mod processes;
mod relay;
mod relays;
mod services;
mod setup;
mod terminal;

pub use agent::run;
pub use enter::{ENTER_ROLE, enter_main};
pub use error::AgentError;
pub use port::open_port;
pub use setup::{power_off, protect};

use std::path::PathBuf;

/// Where the agent finds things and puts them.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder that programs of the domain know as `/run/tombolo`.
    pub run: PathBuf,
    /// Where the resolver's socket belongs.
    pub resolve: PathBuf,
    /// Where the services are mounted.
    pub services: PathBuf,
    /// The PCI bus in sysfs: `/sys/bus/pci`.
    pub bus: PathBuf,
    /// Libraries of ours, as far as the image has them; what is there shows in [`Config::run`].
    pub libraries: PathBuf,
    /// The program that has our roles: the frontend, and what becomes the commands.
    pub program: PathBuf,
    /// Whether members are interrupted by their devices.
    pub interrupts: bool,
    /// Whether the machine is the agent's to set up: its name, its network, its mounts.
    pub owns_machine: bool,
}

impl Config {
    /// Those of a guest.
    #[must_use]
    pub fn of_guest() -> Self {
        let bus = PathBuf::from("/sys/bus/pci");
        Self {
            run: "/run/tombolo".into(),
            resolve: "/run/systemd/resolve".into(),
            services: "/srv".into(),
            interrupts: device::can_interrupt(&bus),
            bus,
            libraries: "/usr/lib/tombolo".into(),
            program: std::env::current_exe().unwrap_or_else(|_| "/usr/bin/tombolo".into()),
            owns_machine: true,
        }
    }
}
