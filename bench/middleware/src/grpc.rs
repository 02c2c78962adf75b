//! gRPC by tonic: one call that streams both ways, over a Unix socket, or over TCP and TLS from
//! node to node. The messages are bytes as they are (what protobuf would add is not measured), and
//! each side has one thread, on which the connection is driven while the worker waits: nothing is
//! handed from thread to thread.

use crate::pieces::Pieces;
use bench::channel::meeting::Meeting;
use bench::channel::task::{Role, Tale, Task, Work};
use bench::channel::transport::{Job as _, Transport};
use bench::channel::work::Messages;
use bench::ipc::means::Tuning;
use bench::ipc::transport::kernel;
use bytes::{Buf, Bytes};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::transport::server::Connected;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};
use tower::{Service, service_fn};

/// The one call.
const PATH: &str = "/tombolo.bench.Messages/Exchange";
/// The protocol that both sides name over TLS.
const HTTP2: &[u8] = b"h2";
/// The bytes that may be on their way in a stream: more wins nothing, and the default of HTTP/2, 64
/// KiB, is slower.
const WINDOW_BYTES: u32 = 8 << 20;
/// Longest frame of HTTP/2: a long message in few frames.
const FRAME_BYTES: u32 = 1 << 20;
/// Longest message.
const MESSAGE_BYTES: usize = 64 << 20;
/// The bytes that tonic gathers before it writes.
const GATHERED_BYTES: usize = 256 << 10;
/// Bytes of messages between the worker and the connection; at least two, at most so many messages.
const QUEUE_BYTES: usize = 256 << 10;
/// See [`QUEUE_BYTES`].
const QUEUE_MESSAGES: usize = 1024;
/// The first message of the leader, which says that the call stands.
const HELLO: &[u8] = b"hello";
/// How long a follower waits for the leader to let go.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes this end, and does the job with it.
///
/// # Errors
/// Those of tonic, and of the job.
pub fn with(task: &Task, tuning: &Tuning, meeting: &mut Meeting, job: Messages<'_, '_>) -> io::Result<Tale> {
    let plain = Tuning::plain(task.bytes);
    let socket = kernel::unix(meeting, task, &plain, rustix::net::SocketType::STREAM)?;
    let end = Grpc::open(task, tuning, meeting, Socket::Unix(std::os::unix::net::UnixStream::from(socket)))?;
    match task.work {
        Work::Copies { .. } => job.copy(Pieces::new(end, task.bytes, tuning.piece_bytes)),
        _ => job.run(end),
    }
}

/// The same from node to node, over TCP; `tls`: with TLS 1.3, as links have it.
///
/// # Errors
/// Those of tonic and of TLS, and of the job.
pub fn between(
    task: &Task,
    means: &bench::links::means::Means,
    tls: bool,
    meeting: &mut Meeting,
    job: Messages<'_, '_>,
) -> io::Result<Tale> {
    let socket = bench::links::transport::socket(means, task.role, meeting)?;
    let socket = if tls { Socket::tls(socket, means, task.role)? } else { Socket::Tcp(socket) };
    job.run(Grpc::open(task, &Tuning::plain(task.bytes), meeting, socket)?)
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    crate::other("gRPC")(error.into())
}

/// The socket below HTTP/2, before there is a runtime for it.
enum Socket {
    Unix(std::os::unix::net::UnixStream),
    Tcp(std::net::TcpStream),
    Client(std::net::TcpStream, TlsConnector, ServerName<'static>),
    Server(std::net::TcpStream, TlsAcceptor),
}

impl Socket {
    fn tls(socket: std::net::TcpStream, means: &bench::links::means::Means, role: Role) -> io::Result<Self> {
        let identity = bench::links::transport::identity(means)?;
        Ok(match role {
            Role::Lead => {
                let config = identity.client(&[HTTP2]).map_err(other)?;
                let name = trust::server_name(&means.peer).map_err(other)?;
                Self::Client(socket, TlsConnector::from(config), name)
            }
            Role::Follow => {
                let config = identity.server(&[HTTP2]).map_err(other)?;
                Self::Server(socket, TlsAcceptor::from(config))
            }
        })
    }

    /// In the current runtime.
    async fn wake(self) -> io::Result<Io> {
        let tcp = |socket: std::net::TcpStream| {
            socket.set_nonblocking(true)?;
            TcpStream::from_std(socket)
        };
        Ok(Io(match self {
            Self::Unix(socket) => {
                socket.set_nonblocking(true)?;
                Box::new(UnixStream::from_std(socket)?)
            }
            Self::Tcp(socket) => Box::new(tcp(socket)?),
            Self::Client(socket, connector, name) => Box::new(connector.connect(name, tcp(socket)?).await?),
            Self::Server(socket, acceptor) => Box::new(acceptor.accept(tcp(socket)?).await?),
        }))
    }
}

/// Any socket.
trait Both: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Both for T {}

/// One, of whichever kind.
struct Io(Box<dyn Both>);

impl Connected for Io {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Bytes as they are.
#[derive(Debug, Clone, Copy)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(into, item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(GATHERED_BYTES, GATHERED_BYTES)
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// The two directions of the call, at either side.
struct Grpc {
    outward: Option<mpsc::Sender<Bytes>>,
    inward: Streaming<Bytes>,
    received: Bytes,
    role: Role,
    // Last: what it drives goes first.
    runtime: Runtime,
}

impl Grpc {
    fn open(task: &Task, tuning: &Tuning, meeting: &mut Meeting, socket: Socket) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let messages = (QUEUE_BYTES / tuning.piece_bytes).clamp(2, QUEUE_MESSAGES);
        let (outward, queue) = mpsc::channel(messages);
        let inward = runtime.block_on(async {
            let socket = socket.wake().await?;
            match task.role {
                Role::Lead => call(socket, &outward, queue).await,
                Role::Follow => serve(socket, queue).await,
            }
        })?;
        drive_until_together(&runtime, meeting, task.role)?;
        Ok(Self { outward: Some(outward), inward, received: Bytes::new(), role: task.role, runtime })
    }
}

/// Waits until both have come this far, and drives the connection meanwhile: the leader's greeting
/// is not yet on its way.
fn drive_until_together(runtime: &Runtime, meeting: &mut Meeting, role: Role) -> io::Result<()> {
    let (tell, told) = oneshot::channel();
    std::thread::scope(|scope| {
        // Nobody listens any more only if the runtime has failed, which is told below.
        scope.spawn(|| tell.send(meeting.together(role)).is_ok());
        runtime.block_on(told).map_err(other)?
    })
}

/// Calls the follower, and greets it.
async fn call(
    socket: Io,
    outward: &mpsc::Sender<Bytes>,
    queue: mpsc::Receiver<Bytes>,
) -> io::Result<Streaming<Bytes>> {
    let mut socket = Some(TokioIo::new(socket));
    let connect = service_fn(move |_| ready(socket.take().ok_or(io::ErrorKind::NotConnected)).map_error());
    // The address is for the header alone: the socket is there.
    let channel = Endpoint::from_static("http://localhost")
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .connect_with_connector(connect)
        .await
        .map_err(other)?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(MESSAGE_BYTES);
    client.ready().await.map_err(other)?;
    let path = PathAndQuery::from_static(PATH);
    let answer = client.streaming(Request::new(ReceiverStream::new(queue)), path, Plain).await;
    let inward = answer.map_err(other)?.into_inner();
    outward.send(Bytes::from_static(HELLO)).await.map_err(other)?;
    Ok(inward)
}

/// A ready result with an error of the kind that tower wants.
trait MapError<T> {
    fn map_error(self) -> Ready<io::Result<T>>;
}

impl<T> MapError<T> for Ready<Result<T, io::ErrorKind>> {
    fn map_error(self) -> Ready<io::Result<T>> {
        ready(self.into_inner().map_err(Into::into))
    }
}

/// Waits for the call, and for its greeting.
async fn serve(socket: Io, queue: mpsc::Receiver<Bytes>) -> io::Result<Streaming<Bytes>> {
    let (accept, accepted) = oneshot::channel();
    let service = Exchange(Arc::new(Mutex::new(Some((accept, queue)))));
    let sockets = tokio_stream::once(Ok::<_, io::Error>(socket)).chain(tokio_stream::pending());
    let server = Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .serve_with_incoming(service, sockets);
    tokio::spawn(server);
    let mut inward = accepted.await.map_err(other)?;
    match inward.message().await.map_err(other)? {
        Some(hello) if hello == HELLO => Ok(inward),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Where the call's inward stream goes, and where its outward one comes from.
type Waiting = (oneshot::Sender<Streaming<Bytes>>, mpsc::Receiver<Bytes>);

/// The service: it hands its first call to the worker.
#[derive(Clone)]
struct Exchange(Arc<Mutex<Option<Waiting>>>);

impl Service<http::Request<tonic::body::Body>> for Exchange {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let exchange = self.clone();
        let mut server = tonic::server::Grpc::new(Plain).max_decoding_message_size(MESSAGE_BYTES);
        Box::pin(async move { Ok(server.streaming(exchange, request).await) })
    }
}

impl tonic::server::StreamingService<Bytes> for Exchange {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let waiting = self.0.lock().ok().and_then(|mut waiting| waiting.take());
        let Some((accept, queue)) = waiting else {
            return ready(Err(Status::already_exists("one call is all that there is")));
        };
        if accept.send(request.into_inner()).is_err() {
            return ready(Err(Status::cancelled("nobody waits for this call")));
        }
        let outward: Self::ResponseStream = Box::pin(ReceiverStream::new(queue).map(Ok));
        ready(Ok(Response::new(outward)))
    }
}

impl Transport for Grpc {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let outward = self.outward.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        match outward.try_send(Bytes::copy_from_slice(message)) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(message)) => {
                self.runtime.block_on(outward.send(message)).map_err(other)
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        // What is here already needs nobody to drive the connection.
        let here = Pin::new(&mut self.inward).poll_next(&mut Context::from_waker(Waker::noop()));
        let message = match here {
            Poll::Ready(message) => message.transpose(),
            Poll::Pending => self.runtime.block_on(self.inward.message()),
        };
        self.received = message.map_err(other)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(&self.received)
    }
}

impl Drop for Grpc {
    fn drop(&mut self) {
        self.outward = None;
        if self.role == Role::Follow {
            // The last message is on its way until the leader has let go; what it says of that, or
            // that it takes too long, changes nothing.
            let inward = &mut self.inward;
            let over = async { while let Ok(Some(_)) = inward.message().await {} };
            let _over = self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, over).await });
        }
    }
}
