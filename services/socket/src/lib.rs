//! The relay of socket services: between the sockets of one domain and the channels to the relays
//! of other domains (`docs/spec/socket.md`).
//!
//! It enters the namespaces of its domain, listens where the domain's programs connect to, and
//! gives up its privileges. For each service that the domain mounts it opens a channel, by the
//! domain's control socket like any program of it, and for each that the domain serves it accepts
//! channels. One thread moves the bytes of one channel, so that nobody's slowness reaches another
//! domain.

mod counts;
mod guest;
mod held;
mod local;
mod mount;
mod order;
mod place;
mod proxy_header;
mod publish;
mod pump;
mod serve;

pub use guest::{GuestError, run_in_guest};
use order::{Daemon, OrderError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use wire::socket::Answer;

/// The domain's control socket: the relay works in the folder where it is.
const CONTROL_SOCKET: &str = "./control.sock";
/// Stack of a thread that moves bytes, in bytes.
const STACK_BYTES: usize = 256 * 1024;

/// Why a relay ends.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// It was not started as one.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// It can't do what it was told.
    #[error("{0}")]
    Failed(String),
    /// The daemon's socket failed.
    #[error("the socket at which daemons ask is lost")]
    Socket(#[source] io::Error),
}

/// Serves until the process is killed, with its domain's cgroup, or told to end. `listener` is the
/// socket at which daemons ask.
///
/// # Errors
/// [`RelayError`].
pub fn run(listener: OwnedFd) -> Result<(), RelayError> {
    let mut daemon = Daemon::first(listener)?;
    match start(&mut daemon) {
        Ok(counts) => {
            daemon.answer(&Answer::Started)?;
            daemon.serve(&counts)
        }
        Err(why) => {
            daemon.answer(&Answer::Failed(why.clone()))?;
            Err(RelayError::Failed(why))
        }
    }
}

/// Takes its places in the domain, gives up its privileges, and starts its threads.
fn start(daemon: &mut Daemon) -> Result<Arc<counts::Relay>, String> {
    let doors = std::mem::take(&mut daemon.doors);
    let listeners = place::take(daemon)?;
    let order = &daemon.order;
    let counts = Arc::new(counts::Relay::new(order));
    for (mounted, listener) in order.mounts.iter().zip(listeners) {
        let Some(counts) = counts.mounts.get(&mounted.service).cloned() else { continue };
        let mount = mount::Mount { mounted: mounted.clone(), listener, counts };
        spawn("mount", move || mount.run())?;
    }
    for served in &order.serves {
        let Some(counts) = counts.serves.get(&served.service).cloned() else { continue };
        let own = serve::own_places(order, &served.to);
        let serve = serve::Serve { served: served.clone(), dc: order.dc.clone(), counts, own };
        spawn("serve", move || serve.run())?;
    }
    for (published, door) in order.publishes.iter().zip(doors) {
        let Some(counts) = counts.publishes.get(&published.at).cloned() else { continue };
        let publish = publish::Publish::new(order, published.clone(), door, counts);
        spawn("publish", move || publish.run())?;
    }
    Ok(counts)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
    thread.spawn(work).map(drop).map_err(|e| format!("can't start a thread: {e}"))
}

fn control_socket() -> &'static Path {
    Path::new(CONTROL_SOCKET)
}

/// An error with its causes, in one line.
fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
