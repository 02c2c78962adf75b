//! `tombolo 9p`: a domain's files by 9P at a socket of this node, whichever node has the domain.

use super::look::encoded;
use super::{client, wait};
use crate::cli::{NinepArgs, PlaceArgs};
use admin::client::{Client, ClientError};
use rustix::fs::Mode;
use rustix::process::umask;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;
use terminal::{Failure, harmless_line, print};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use wire::remote::NINEP_PROTOCOL;

/// Clients at a time; the next ones wait. A domain has no more.
const CLIENTS_MAX: usize = 16;

/// Listens until it is told to end.
pub fn run(place: &PlaceArgs, arguments: &NinepArgs) -> Result<(), Failure> {
    let client = client(place)?;
    wait(serve(client, arguments))?
}

async fn serve(client: Client, arguments: &NinepArgs) -> Result<(), Failure> {
    let path = format!("domains/{}/9p", encoded(&arguments.domain));
    // What can't be is said at once, not to the first client.
    drop(client.open(&path, NINEP_PROTOCOL, &()).await?);
    let (listener, _removed) = listen(&arguments.listen)?;
    let (mut ended, mut asked) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    print(&format!("9P of {} at {}\n", arguments.domain, arguments.listen.display()))?;
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
            listener.accept().await.map(|(near, _)| (place, near))
        };
        let (place, near) = tokio::select! {
            next = next => next?,
            _ = ended.recv() => return Ok(()),
            _ = asked.recv() => return Ok(()),
        };
        let (client, path) = (client.clone(), path.clone());
        tokio::spawn(async move {
            if let Err(error) = relay(&client, &path, near).await {
                eprintln!("{}", harmless_line(&format!("a client of 9P is served no more: {error}")));
            }
            drop(place);
        });
    }
}

async fn relay(client: &Client, path: &str, mut near: UnixStream) -> Result<(), ClientError> {
    let mut far = client.open(path, NINEP_PROTOCOL, &()).await?;
    // Either end may go when it likes; what was under way is told by the other one.
    let _gone = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    Ok(())
}

/// Takes the socket's name away when nobody listens any more.
struct Removed<'p>(&'p Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // Somebody else may have done so.
        let _gone = std::fs::remove_file(self.0);
    }
}

/// A socket for root alone. One at which nobody listens any more makes room.
fn listen(at: &Path) -> Result<(UnixListener, Removed<'_>), Failure> {
    let failed = |error: io::Error| {
        Failure::new(format!("can't listen at {}: {error}", at.display()))
            .help("name a socket in a folder that is there, at most 107 bytes in all")
    };
    let is_socket = std::fs::symlink_metadata(at).is_ok_and(|found| found.file_type().is_socket());
    let refuses = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && std::os::unix::net::UnixStream::connect(at).is_err_and(refuses) {
        std::fs::remove_file(at).map_err(failed)?;
    }
    let before = umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(at);
    umask(before);
    Ok((listener.map_err(failed)?, Removed(at)))
}
