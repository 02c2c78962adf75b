//! The admin socket's client: one request a connection, with or without a streamed answer.

use crate::place::{ADMIN_SOCKET, Access, Place};
use crate::{Code, Problem, Progress, VERSION};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// Longest answer that is not streamed, and longest line of one that is, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A client of one node's daemon.
#[derive(Debug, Clone)]
pub struct Client {
    place: Place,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon runs at {}", socket.display())]
    NotRunning {
        /// Where one was looked for.
        socket: PathBuf,
    },
    /// Not allowed to speak to it.
    #[error("not allowed to use {}: only root may, and members of groups that the machine may have for it", socket.display())]
    NotAllowed {
        /// Where.
        socket: PathBuf,
    },
    /// The connection broke.
    #[error("the daemon at {} did not answer: {cause}", socket.display())]
    Broken {
        /// Where.
        socket: PathBuf,
        /// Why.
        cause: String,
    },
    /// The daemon says no.
    #[error(transparent)]
    Refused(#[from] Problem),
}

impl Client {
    /// A client of the daemon at `place`; nothing is connected yet.
    #[must_use]
    pub fn new(place: Place) -> Self {
        Self { place }
    }

    /// `GET /v1/PATH`, as JSON.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.ask(Method::GET, &format!("/{VERSION}/{path}"), Bytes::new()).await?;
        let body = self.whole(answer).await?;
        serde_json::from_slice(&body).map_err(|e| self.broken(e))
    }

    /// `GET PATH` (with its version, if it has one), as text.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let answer = self.ask(Method::GET, path, Bytes::new()).await?;
        let body = self.whole(answer).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// `POST /v1/PATH` with a body, and one answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|e| self.broken(e))?;
        let answer = self.ask(Method::POST, &format!("/{VERSION}/{path}"), body.into()).await?;
        let body = self.whole(answer).await?;
        serde_json::from_slice(&body).map_err(|e| self.broken(e))
    }

    /// `POST /v1/PATH` and follows the progress to its end; returns the last line:
    /// [`Progress::Done`] or [`Progress::Failed`].
    ///
    /// # Errors
    /// [`ClientError`]; the daemon's end in the middle is [`ClientError::Broken`].
    pub async fn follow(
        &self,
        path: &str,
        body: &impl Serialize,
        mut each: impl FnMut(&Progress),
    ) -> Result<Progress, ClientError> {
        let body = serde_json::to_vec(body).map_err(|e| self.broken(e))?;
        let answer = self.ask(Method::POST, &format!("/{VERSION}/{path}"), body.into()).await?;
        let mut answer = self.checked(answer).await?.into_body();
        let mut text: Vec<u8> = Vec::new();
        while let Some(frame) = answer.frame().await {
            let frame = frame.map_err(|e| self.broken(e))?;
            text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            if text.len() > MAX_ANSWER_BYTES {
                return Err(self.broken("a line of its answer is too long"));
            }
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let progress: Progress = serde_json::from_slice(&line).map_err(|e| self.broken(e))?;
                if matches!(progress, Progress::Done { .. } | Progress::Failed { .. }) {
                    return Ok(progress);
                }
                each(&progress);
            }
        }
        Err(self.broken("it ended in the middle of the work; see its log"))
    }

    /// `POST /v1/PATH` and changes over to a protocol of bytes in both directions
    /// (`docs/spec/remote.md`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn open(
        &self,
        path: &str,
        protocol: &str,
        body: &impl Serialize,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send, ClientError> {
        let body = serde_json::to_vec(body).map_err(|e| self.broken(e))?;
        let upgrade = [(header::CONNECTION, "upgrade"), (header::UPGRADE, protocol)];
        let path = format!("/{VERSION}/{path}");
        let answer = self.ask_with(Method::POST, &path, body.into(), &upgrade).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            self.checked(answer).await?;
            return Err(self.broken(format!("it does not change over to {protocol}")));
        }
        let upgraded = hyper::upgrade::on(answer).await.map_err(|e| self.broken(e))?;
        Ok(TokioIo::new(upgraded))
    }

    /// `GET /v1/PATH`, one JSON object a line, for as long as there are more.
    ///
    /// # Errors
    /// [`ClientError`]; what `each` says.
    pub async fn lines<T: DeserializeOwned, E: From<ClientError>>(
        &self,
        path: &str,
        mut each: impl FnMut(T) -> Result<(), E>,
    ) -> Result<(), E> {
        let answer = self.ask(Method::GET, &format!("/{VERSION}/{path}"), Bytes::new()).await?;
        let mut answer = self.checked(answer).await?.into_body();
        let mut text: Vec<u8> = Vec::new();
        while let Some(frame) = answer.frame().await {
            let frame = frame.map_err(|e| self.broken(e))?;
            text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            if text.len() > MAX_ANSWER_BYTES {
                return Err(self.broken("a line of its answer is too long").into());
            }
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                each(serde_json::from_slice(&line).map_err(|e| self.broken(e))?)?;
            }
        }
        Ok(())
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, ClientError> {
        self.ask_with(method, path, body, &[]).await
    }

    async fn ask_with(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        headers: &[(header::HeaderName, &str)],
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = TokioIo::new(self.connect().await?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|e| self.broken(e))?;
        // Ends with the connection; what goes wrong there shows in the answer.
        tokio::spawn(async move { connection.with_upgrades().await.ok() });
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "node")
            .header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request.body(Full::new(body)).map_err(|e| self.broken(e))?;
        sender.send_request(request).await.map_err(|e| self.broken(e))
    }

    /// Whoever may not use root's socket tries those of groups.
    async fn connect(&self) -> Result<UnixStream, ClientError> {
        let socket = self.place.admin_socket();
        let mut refused = ClientError::NotAllowed { socket: socket.clone() };
        for access in Access::ALL {
            match connect_in(&self.place.socket_folder(access)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => match (access, error.kind()) {
                    (_, io::ErrorKind::PermissionDenied) => {}
                    (Access::Root, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                        return Err(ClientError::NotRunning { socket });
                    }
                    (Access::Root, _) => {
                        return Err(ClientError::Broken { socket, cause: error.to_string() });
                    }
                    // The group may, and the daemon that let it in is gone.
                    (_, io::ErrorKind::ConnectionRefused) => {
                        refused = ClientError::NotRunning { socket: socket.clone() };
                    }
                    // There is no such group.
                    _ => {}
                },
            }
        }
        Err(refused)
    }

    async fn whole(&self, answer: Response<Incoming>) -> Result<Bytes, ClientError> {
        let answer = self.checked(answer).await?;
        self.collect(answer).await
    }

    async fn collect(&self, answer: Response<Incoming>) -> Result<Bytes, ClientError> {
        let limited = http_body_util::Limited::new(answer.into_body(), MAX_ANSWER_BYTES);
        Ok(limited.collect().await.map_err(|e| self.broken(e))?.to_bytes())
    }

    async fn checked(&self, answer: Response<Incoming>) -> Result<Response<Incoming>, ClientError> {
        let status = answer.status();
        if status == StatusCode::OK {
            return Ok(answer);
        }
        let body = self.collect(answer).await?;
        let problem = serde_json::from_slice(&body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(&body);
            Problem::new(Code::BadRequest, format!("the daemon answered {status}: {}", text.trim()))
        });
        Err(problem.into())
    }

    fn broken(&self, cause: impl ToString) -> ClientError {
        ClientError::Broken { socket: self.place.admin_socket(), cause: cause.to_string() }
    }
}

/// Connects through a descriptor of the folder: its path may be longer than a socket's address.
async fn connect_in(folder: &Path) -> io::Result<UnixStream> {
    use rustix::fs::{Mode, OFlags};
    let folder = rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    UnixStream::connect(format!("/proc/self/fd/{}/{ADMIN_SOCKET}", folder.as_raw_fd())).await
}
