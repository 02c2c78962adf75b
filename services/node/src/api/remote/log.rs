//! The log of a domain of this node, for a reader on another, or one who may not read its file.

use admin::{Code, Problem};
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use domain::{Layout, LogQuery, LogReader, Waited};
use hyper::body::Frame;
use std::io;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Such readers at a time: each has a thread.
const MAX_READERS: usize = 64;
/// Lines that may wait for a slow reader.
const MAX_WAITING_LINES: usize = 64;
/// How long to wait for more before looking again; events come at once, this is for file systems
/// without any.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Places for readers.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_READERS)))
    }
}

/// The lines of a log as they are written, or those that there are: one JSON object a line.
///
/// # Errors
/// The log can't be read, or has too many readers.
pub(crate) fn lines(
    places: &Places,
    layout: &Layout,
    (dc, domain): (&str, &str),
    query: &LogQuery,
) -> Result<Response, Problem> {
    let failed = |why: String| Problem::new(Code::Failed, why);
    let place = Arc::clone(&places.0).try_acquire_owned().map_err(|_| {
        failed(format!("{MAX_READERS} logs are read already, by other nodes and members of groups"))
            .help("end some, or say it on this node as root")
    })?;
    let reader = domain::logs(layout, dc, domain, query).map_err(|error| failed(error.to_string()))?;
    let (teller, lines) = mpsc::channel(MAX_WAITING_LINES);
    // Hangs up when nobody reads any more, also while nothing is written.
    let (reads, is_read) = UnixStream::pair().map_err(|error| failed(error.to_string()))?;
    let follow = query.follow;
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || {
            if let Err(error) = tell(reader, follow, &teller, &is_read) {
                // The answer is cut: its reader sees that it is not whole.
                let _gone = teller.blocking_send(Err(error));
            }
        })
        .map_err(|error| failed(format!("no thread to read it: {error}")))?;
    let body = Body::new(Lines { lines, _reads: reads, _place: place });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

fn tell(
    mut reader: LogReader,
    follow: bool,
    teller: &mpsc::Sender<io::Result<Bytes>>,
    is_read: &UnixStream,
) -> io::Result<()> {
    loop {
        while let Some(record) = reader.next_record().map_err(io::Error::other)? {
            let mut line = serde_json::to_vec(&record)?;
            line.push(b'\n');
            if teller.blocking_send(Ok(line.into())).is_err() {
                return Ok(());
            }
        }
        if !follow || reader.wait_for(TIMEOUT, is_read).map_err(io::Error::other)? != Waited::More {
            return Ok(());
        }
    }
}

/// The body of the answer.
struct Lines {
    lines: mpsc::Receiver<io::Result<Bytes>>,
    _reads: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.lines.poll_recv(context).map(|line| line.map(|line| line.map(Frame::data)))
    }
}
