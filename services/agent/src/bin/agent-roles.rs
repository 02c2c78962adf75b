//! Stands for the binary `tombolo` in this crate's tests: it has this crate's roles, an agent whose
//! guest is a folder, and a frontend that only asks what to show.

use agent::{Config, ENTER_ROLE};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [ENTER_ROLE] => ExitCode::from(u8::try_from(agent::enter_main()).unwrap_or(u8::MAX)),
        ["agent", folder] => agent(Path::new(folder)),
        ["frontend", _] => frontend(),
        _ => {
            eprintln!("usage: agent-roles agent FOLDER | frontend DC/DOMAIN | {ENTER_ROLE}");
            ExitCode::from(2)
        }
    }
}

fn input() -> OwnedFd {
    std::io::stdin().as_fd().try_clone_to_owned().expect("a standard input")
}

/// The agent of a guest that is a folder: its port is the standard input, its mounts and its
/// loopback are in namespaces of its own.
fn agent(folder: &Path) -> ExitCode {
    use sys::namespace::{UnshareFlags, unshare};
    let alone = unshare(UnshareFlags::NEWNS).is_ok();
    if alone {
        use rustix::mount::{MountPropagationFlags, mount_change};
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .expect("private mounts");
    }
    let config = Config {
        run: folder.join("run"),
        resolve: folder.join("resolve"),
        services: folder.join("srv"),
        bus: folder.join("pci"),
        libraries: folder.join("lib"),
        program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("agent-roles")),
        interrupts: false,
        owns_machine: false,
    };
    let _only_in_a_guest = agent::protect();
    rustix::io::ioctl_fionbio(std::io::stdin(), true).expect("a socket");
    match agent::run(config, input()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Takes its launch, asks what to show, and ends when its socket does.
fn frontend() -> ExitCode {
    let socket = input();
    let launch = frontend::receive_launch(&socket).expect("a launch");
    eprintln!("frontend: of {}, successor: {}", launch.order.domain, launch.order.successor);
    let question = if launch.order.successor {
        &b"{\"op\":\"services\",\"id\":2}"[..]
    } else {
        b"{\"op\":\"services\",\"id\":1}"
    };
    sys::descriptors::send_with_descriptors(&socket, question, &[]).expect("asked");
    let mut bytes = vec![0; 65_536];
    while let Ok((length, _)) = sys::descriptors::receive_with_descriptors(&socket, &mut bytes, 8) {
        match bytes.get(..length) {
            Some([]) | None => break,
            Some(b"die") => std::process::abort(),
            Some(_) => {}
        }
    }
    ExitCode::SUCCESS
}
