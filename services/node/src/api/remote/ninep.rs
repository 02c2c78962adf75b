//! A domain's files by 9P for clients elsewhere: bytes between them and the socket that the
//! domain's frontend serves (`docs/spec/ninep.md`), which takes them apart and bounds them.

use crate::domains::spec;
use crate::membership::Stream;
use admin::{Code, Problem};
use domain::Layout;
use rustix::fs::{FileType, Mode, OFlags};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at a time, of all domains: four domains have all that their frontends take.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take to hear of the end.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Places for connections.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CONNECTIONS)))
    }
}

/// A connection to a domain's socket.
pub(crate) struct Tree {
    socket: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl Tree {
    /// Connects to it.
    ///
    /// # Errors
    /// The domain's file asks for none; too many are there.
    pub(crate) async fn connect(
        places: &Places,
        layout: &Layout,
        (dc, domain): (&str, &str),
    ) -> Result<Self, Problem> {
        let place = Arc::clone(&places.0).try_acquire_owned().map_err(|_| {
            let message = format!("{MAX_CONNECTIONS} clients of 9P are relayed here already");
            Problem::new(Code::Failed, message)
                .help("end some, or connect to the domain's socket on its node")
        })?;
        let paths = layout.domain(dc, domain);
        let paths = paths.map_err(|error| Problem::new(Code::Failed, error.to_string()))?;
        let socket = connect(&paths.inside()).await;
        let socket = socket.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Problem::new(Code::Refused, format!("{dc}/{domain} shows nothing by 9P"))
                    .help(format!("write `nine_p = true` into `[domain.{domain}]` of its file"))
            }
            _ => Problem::new(Code::Failed, format!("9P of {dc}/{domain} can't be reached: {error}")),
        })?;
        Ok(Self { socket, _place: place })
    }

    /// Passes on whatever comes, in both directions, until the frontend has closed: of itself, or
    /// because the client has said its last.
    pub(crate) async fn attend(mut self, stream: Result<Box<dyn Stream>, String>) {
        let stream = match stream {
            Ok(stream) => stream,
            Err(why) => return tracing::info!(why, "whoever wanted to speak 9P with a domain is gone"),
        };
        let (mut from_client, mut to_client) = tokio::io::split(stream);
        let (mut from_frontend, mut to_frontend) = self.socket.split();
        let asks = async {
            // However it ended: the frontend is told, and closes.
            let _cut_off = tokio::io::copy(&mut from_client, &mut to_frontend).await;
            let _closed_already = to_frontend.shutdown().await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answered = tokio::io::copy(&mut from_frontend, &mut to_client) => {
                if let Err(error) = answered {
                    tracing::debug!(%error, "a client of 9P was cut off");
                }
            }
            () = asks => {}
        }
        let _gone = tokio::time::timeout(END_TIMEOUT, to_client.shutdown()).await;
    }
}

/// Connects to the socket itself and follows no link, whoever may have put one there; and whatever
/// the length of its path.
async fn connect(inside: &Path) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let socket = rustix::fs::open(inside.join(spec::NINEP_SOCKET), flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&socket)?.st_mode) != FileType::Socket {
        return Err(io::Error::other("there is something else than a socket"));
    }
    UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn a_socket_is_reached_and_neither_a_link_to_one_nor_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().join(spec::NINEP_SOCKET);
        assert_eq!(connect(folder.path()).await.expect_err("none").kind(), io::ErrorKind::NotFound);
        let other = folder.path().join("other.sock");
        let listener = UnixListener::bind(&other).expect("bound");
        std::os::unix::fs::symlink(&other, &at).expect("a link");
        let said = connect(folder.path()).await.expect_err("a link").to_string();
        assert!(said.contains("something else"), "{said}");
        std::fs::remove_file(&at).expect("removed");
        std::fs::write(&at, "").expect("a file");
        assert!(connect(folder.path()).await.is_err());
        std::fs::remove_file(&at).expect("removed");
        std::fs::rename(&other, &at).expect("renamed");
        connect(folder.path()).await.expect("it is the socket now");
        drop(listener);
    }

    #[tokio::test]
    async fn bytes_go_both_ways_until_either_end_closes() {
        for is_client_first in [true, false] {
            let places = Places::default();
            let _place = Arc::clone(&places.0).try_acquire_owned().expect("a place");
            let (socket, mut frontend) = UnixStream::pair().expect("a pair");
            let (stream, mut client) = UnixStream::pair().expect("a pair");
            let relay = tokio::spawn(Tree { socket, _place }.attend(Ok(Box::new(stream))));
            let mut piece = [0; 3];
            client.write_all(b"ask").await.expect("said");
            frontend.read_exact(&mut piece).await.expect("heard");
            frontend.write_all(&piece).await.expect("said");
            client.read_exact(&mut piece).await.expect("heard");
            assert_eq!(&piece, b"ask");
            // Who is left hears the end; and the relay ends, whoever of them stays.
            let (gone, mut left) = if is_client_first { (client, frontend) } else { (frontend, client) };
            drop(gone);
            assert_eq!(left.read(&mut piece).await.expect("the end"), 0);
            if is_client_first {
                drop(left);
            }
            relay.await.expect("it ends");
            assert_eq!(places.0.available_permits(), MAX_CONNECTIONS);
        }
    }

    #[tokio::test]
    async fn a_connection_too_many_and_a_domain_that_shows_nothing_are_refused_in_words() {
        let folder = tempfile::tempdir().expect("a folder");
        let layout = Layout {
            run_dir: folder.path().into(),
            state_dir: folder.path().into(),
            cgroup_name: "tombolo".into(),
            program: "/bin/false".into(),
        };
        let places = Places::default();
        let refused =
            async || Tree::connect(&places, &layout, ("house", "hall")).await.err().map(|it| it.message);
        assert_eq!(refused().await.as_deref(), Some("house/hall shows nothing by 9P"));
        let all = Arc::clone(&places.0).try_acquire_many_owned(MAX_CONNECTIONS as u32).expect("all places");
        let said = refused().await.expect("refused");
        assert!(said.starts_with("64 clients of 9P"), "{said}");
        drop(all);
    }
}
