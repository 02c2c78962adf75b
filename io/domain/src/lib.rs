//! Domains of kind process, container and vm: creation, supervision, logs, exec, clean-up.
//!
//! [`create`] makes a domain whose command waits, [`Created::start`] starts it, [`Running`] tells
//! of its end. Each incarnation has a monitor of its own, a process that outlives the daemon;
//! [`adopt`] finds it again, and [`sweep`] clears away what was left when everything was killed.
//! All calls are synchronous, and the longer ones wait: call them where waiting is allowed.
//!
//! The binary at [`Layout::program`] has to call [`role_main`] first thing, before it starts a
//! thread.

mod bundle;
mod cgroup;
mod clock;
mod copy;
mod discard;

mod drop_privileges;
mod error;
mod exchange;
mod exec;
mod exec_machine;
mod exec_process;
mod exec_start;
pub mod hold;
mod host;
mod hostroot;
mod image;
mod incarnation;
mod init;
mod layout;
mod lifecycle;
mod log;
mod machine;
mod monitor;
mod mounts;
mod namespaces;
mod privilege;
mod prospect;
mod root;
mod runtime;
mod seccomp;
mod secrets;
mod spare;
mod spec;
mod status;
mod sweep;
mod unused;
mod users;

pub use cgroup::{
    Cgroups, Demand, Device, MAX_PERIOD_US, Memory, Part, Quota, QuotaFile, SHORTEST_PERIOD_US, USUAL_WEIGHT,
    Usage,
};
pub use copy::{COPY_ROLE, pack, unpack};
pub use error::{Error, Result};
pub use exec::{ExecOptions, exec_command};
pub use host::{Missing, check_host};
pub use image::ImageError;
pub use layout::{DomainId, DomainPaths, Layout, MAX_NAME_BYTES};
pub use lifecycle::{Adopted, Created, Running, adopt, create, make_folder, make_room, unpack_image};
pub use log::{LogQuery, LogReader, MAX_LINE_BYTES, Record, Stream, Waited};
pub use machine::Outcome;
pub use monitor::KEPT_BASE;
pub use monitor::control::MAX_KEPT;
pub use namespaces::{attach_mount, in_mount_namespace, in_network_namespace, open_init, replace_mount};
pub use privilege::capability;
pub use prospect::{ProgramError, Prospect, Unpack};
pub use runtime::find_program;
pub use secrets::{SECRETS, attach_secrets};
pub use spec::{
    DomainSpec, Kind, Layer, Limits, LogLimits, Machine, Mount, Network, Root, RuntimeChoice, Stop,
};
pub use status::{Ending, Exit, Phase, ProcessIdentity, Status};
pub use sweep::{Report, SPARED_CGROUP, remove, sweep};
pub use unused::remove_unused_images;

use std::ffi::OsString;

/// Runs one of this crate's own roles if the arguments (without the program's name) ask for it, and
/// returns its exit code: `monitor`, `internal-init`, `internal-exec`, `internal-enter`,
/// `internal-copy`. Other arguments are the caller's: `None`.
#[must_use]
pub fn role_main(arguments: &[OsString]) -> Option<i32> {
    let (role, rest) = arguments.split_first()?;
    match role.to_str()? {
        "monitor" => Some(monitor::monitor_main(rest)),
        "internal-init" => Some(init::init_main(rest)),
        "internal-exec" => Some(exec::exec_main(rest)),
        copy::COPY_ROLE => Some(copy::copy_main(rest)),
        "internal-enter" => Some(exec_process::enter_main(rest)),
        users::ROLE => Some(users::bound_main(rest)),
        _ => None,
    }
}

/// Puts a process into the part of a running domain that it works for, where the domain's limits
/// hold for it too.
///
/// # Errors
/// When the domain has no cgroup, or the process is gone.
pub fn join_cgroup(layout: &Layout, dc: &str, name: &str, part: Part, pid: u32) -> Result<()> {
    let paths = layout.domain(dc, name)?;
    let cgroup = format!("{}/{}", paths.cgroup, part.name());
    let cgroups = Cgroups::discover()?;
    cgroups.create(&cgroup)?;
    cgroups.join(&cgroup, pid)
}

/// The processes of a domain, those of its frontend included; none when there is no such domain.
///
/// # Errors
/// When the machine's cgroups can't be found.
pub fn pids_of(layout: &Layout, dc: &str, name: &str) -> Result<Vec<u32>> {
    Ok(Cgroups::discover()?.processes(&layout.domain(dc, name)?.cgroup))
}

/// The resources that a domain uses, its frontend included.
///
/// # Errors
/// When the machine's cgroups can't be found.
pub fn usage(layout: &Layout, dc: &str, name: &str) -> Result<Usage> {
    Ok(Cgroups::discover()?.usage(&layout.domain(dc, name)?.cgroup))
}

/// The amount that a domain has written to its root so far; `None` where it has no layer, or its
/// monitor is gone.
#[must_use]
pub fn layer_usage(layout: &Layout, dc: &str, name: &str, monitor_pid: u32) -> Option<Layer> {
    root::layer_usage(&layout.domain(dc, name).ok()?, monitor_pid)
}

/// The monitor's last report about a domain; `None` when there is none of this boot.
///
/// # Errors
/// [`Error::Damaged`].
pub fn status(layout: &Layout, dc: &str, name: &str) -> Result<Option<Status>> {
    Status::read(&layout.domain(dc, name)?)
}

/// The domain's output, over all its incarnations as far as it is kept.
///
/// # Errors
/// When the files can't be read; a domain without a log has an empty one.
pub fn logs(layout: &Layout, dc: &str, name: &str, query: &LogQuery) -> Result<LogReader> {
    LogReader::open(&layout.domain(dc, name)?.log, query)
}

/// Deletes the domain's output.
///
/// # Errors
/// When a file can't be deleted.
pub fn remove_logs(layout: &Layout, dc: &str, name: &str) -> Result<()> {
    let log = layout.domain(dc, name)?.log;
    for age in 0..=log::MAX_FILES {
        let file = log::file(&log, age);
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return error::Context::at(Err::<(), _>(e), "remove", file);
            }
            _ => {}
        }
    }
    Ok(())
}
