//! The first process of a process domain, before it becomes the command: mounts, cgroup,
//! privileges, then it waits for the start.

use crate::bundle::{INSIDE, environment};
use crate::cgroup::Cgroups;
use crate::drop_privileges::drop_privileges;
use crate::error::{Context, Error, Result, chain};
use crate::incarnation::Incarnation;
use crate::layout::DomainPaths;
use crate::monitor::control::take_stdin;
use crate::monitor::payload::READY;
use crate::privilege::{Accounts, Identity};
use crate::root::open_directory;
use crate::spec::{DomainSpec, Mount};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount_bind, mount_bind_recursive, mount_change, mount_remount,
};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The entry of `tombolo internal-init DC NAME RUN_DIR`, which only the monitor runs. Returns only
/// when it fails, with the exit code.
#[must_use]
pub fn init_main(arguments: &[OsString]) -> i32 {
    let mut control = match take_stdin() {
        Ok(control) => UnixStream::from(control),
        Err(error) => {
            eprintln!("tombolo internal-init: {error}; it is run by the monitor, not by hand");
            return 2;
        }
    };
    let Err(error) = become_the_command(arguments, &mut control) else { return 0 };
    // If the monitor is gone, so is who could be told.
    let _ = control.write_all(chain(&error).as_bytes());
    crate::exec::failure_code(&error)
}

/// Never returns `Ok` but when the monitor gives up.
fn become_the_command(arguments: &[OsString], control: &mut UnixStream) -> Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::KILL)).doing("follow the monitor into death")?;
    let [dc, name, run_dir] = arguments else {
        return Err(Error::Specification("usage: tombolo internal-init DC NAME RUN_DIR".into()));
    };
    let (incarnation, paths) =
        Incarnation::read(Path::new(run_dir), &dc.to_string_lossy(), &name.to_string_lossy())?;
    let Incarnation { layout, spec, .. } = incarnation;
    Cgroups::discover()?.join(&paths.payload_cgroup(), std::process::id())?;
    let identity = Accounts::read(open_directory(Path::new("/"))?)?.resolve(spec.user.as_deref())?;
    own_the_streams(&identity)?;
    let hides_run_dir = mounts(&layout, &paths, &spec)?;
    let mut command = command(&spec, &identity, &paths, hides_run_dir)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    drop_privileges(&identity, &spec.capabilities)?;
    // A change of user clears it, and the monitor may have died meanwhile.
    set_parent_process_death_signal(Some(Signal::KILL)).doing("follow the monitor into death")?;
    if getppid() != parent {
        return Err(std::io::Error::other("it ended meanwhile")).doing("wait for the monitor");
    }
    control.write_all(&[READY]).doing("tell the monitor")?;
    let mut go = [0];
    if control.read(&mut go).doing("hear the monitor")? == 0 {
        return Ok(());
    }
    let error = command.exec();
    Err(error).doing(format!("execute {:?}", command.get_program()))
}

/// Lets a user other than root open `/dev/stdout` again, as in a container.
fn own_the_streams(identity: &Identity) -> Result<()> {
    let user = Some(rustix::fs::Uid::from_raw(identity.uid));
    for stream in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        rustix::fs::fchown(stream, user, None).doing("give the output to the user")?;
    }
    Ok(())
}

/// Its own mount namespace: later mounts of the host show, its own don't. Tells whether
/// `/run/tombolo` is what is its own.
fn mounts(layout: &crate::layout::Layout, paths: &DomainPaths, spec: &DomainSpec) -> Result<bool> {
    sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNS)
        .doing("make a mount namespace (are we root?)")?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .at("make private the mounts of", "/")?;
    for mount in &spec.mounts {
        bind(mount)?;
    }
    if let Some(text) = &spec.resolv_conf {
        let (source, target) = (paths.dir.join("resolv.conf"), Path::new("/etc/resolv.conf"));
        fs::write(&source, text).at("write", &source)?;
        bind(&Mount { source, target: fs::canonicalize(target).at("find", target)?, read_only: true })?;
    }
    let inside = paths.inside();
    let program = inside.join("tombolo");
    bind(&Mount { source: layout.program.clone(), target: program, read_only: true })?;
    let hides = layout.run_dir == Path::new(INSIDE);
    if hides {
        mount_bind_recursive(&inside, INSIDE).at("bind on", INSIDE)?;
        restrict(Path::new(INSIDE), true)?;
    }
    Ok(hides)
}

/// Binds a mount. Mounts below a read-only source stay away: they would be writable.
fn bind(mount: &Mount) -> Result<()> {
    let Mount { source, target, read_only } = mount;
    if *read_only { mount_bind(source, target) } else { mount_bind_recursive(source, target) }
        .at("bind on (it must exist on the machine)", target)?;
    restrict(target, *read_only)
}

fn restrict(target: &Path, read_only: bool) -> Result<()> {
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, read_only);
    mount_remount(target, flags, c"").at("restrict the mount on", target)
}

fn command(
    spec: &DomainSpec,
    identity: &Identity,
    paths: &DomainPaths,
    hides_run_dir: bool,
) -> Result<Command> {
    let [program, arguments @ ..] = spec.command.as_slice() else {
        return Err(Error::Specification("command: is empty".into()));
    };
    let mut variables = spec.environment.clone();
    if !hides_run_dir {
        let socket = paths.inside().join("control.sock");
        variables
            .insert(0, (wire::control::SOCKET_VARIABLE.to_owned(), socket.to_string_lossy().into_owned()));
    }
    let variables = environment(&[], &variables, identity.home.as_deref());
    std::env::set_current_dir(spec.workdir.as_deref().unwrap_or(Path::new("/")))
        .at("enter", spec.workdir.clone().unwrap_or_else(|| PathBuf::from("/")))?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(variables.iter().filter_map(|v| v.split_once('=')));
    Ok(command)
}
