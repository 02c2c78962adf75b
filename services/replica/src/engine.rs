//! The engine of this node's replica, as a client of NBD: reads, and writes that are on stable
//! storage when they are answered.
//!
//! An engine that dies has a successor at the same socket, which the daemon starts when the old one
//! is dead for certain. What was asked and not answered is asked again: nothing overtakes a write
//! to the same place, because nobody sends a second one there before the first is answered.

use crate::input::Input;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use wire::nbd::{self, Reply, Request, answer, command, option};

/// The engine's socket, in its folder.
const SOCKET: &str = "engine.sock";
/// The engine's export.
const EXPORT: &str = "volume";
/// Pause before an engine that is not there is looked for again.
const PAUSE: Duration = Duration::from_millis(50);

/// Something that the engine is to do.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Read { offset: u64, length: u32 },
    Write { offset: u64, data: Bytes },
}

/// An ask with its number.
#[derive(Debug)]
pub(crate) struct Job {
    pub token: u64,
    pub ask: Ask,
}

type Pending = Arc<Mutex<BTreeMap<u64, Ask>>>;

fn lock(pending: &Pending) -> MutexGuard<'_, BTreeMap<u64, Ask>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does what is asked, as long as somebody asks. The number of what is asked is bounded by who
/// asks.
pub(crate) async fn run(
    folder: OwnedFd,
    bytes: u64,
    mut jobs: UnboundedReceiver<Job>,
    done: UnboundedSender<Input>,
) {
    let pending = Pending::default();
    let mut told = String::new();
    loop {
        let ended = match connect(&folder, bytes).await {
            Ok(stream) => serve(stream, &pending, &mut jobs, &done).await,
            Err(error) => Err(error),
        };
        let why = match ended {
            Ok(()) => return,
            Err(error) => error.to_string(),
        };
        if why != told {
            tracing::warn!(why, "the engine does not answer; it is tried again");
            told = why;
        }
        // tidy(sleep): the daemon starts the next engine, and nothing tells when it listens.
        tokio::time::sleep(PAUSE).await;
    }
}

async fn connect(folder: &OwnedFd, bytes: u64) -> io::Result<UnixStream> {
    let path = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
    let mut stream = UnixStream::connect(path).await?;
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the engine {what}"));
    if stream.read_u64().await? != nbd::SERVER_MAGIC || stream.read_u64().await? != nbd::OPTION_MAGIC {
        return Err(bad("does not speak NBD"));
    }
    let _flags = stream.read_u16().await?;
    let name_length = u32::try_from(EXPORT.len()).unwrap_or_default();
    let mut go = BytesMut::new();
    go.extend_from_slice(&u32::from(nbd::FIXED_NEWSTYLE | nbd::NO_ZEROES).to_be_bytes());
    go.extend_from_slice(&nbd::OPTION_MAGIC.to_be_bytes());
    go.extend_from_slice(&option::GO.to_be_bytes());
    go.extend_from_slice(&(name_length + 6).to_be_bytes());
    go.extend_from_slice(&name_length.to_be_bytes());
    go.extend_from_slice(EXPORT.as_bytes());
    go.extend_from_slice(&0_u16.to_be_bytes());
    stream.write_all(&go).await?;
    let mut size = None;
    loop {
        if stream.read_u64().await? != nbd::OPTION_REPLY_MAGIC {
            return Err(bad("does not speak NBD"));
        }
        let _option = stream.read_u32().await?;
        let (kind, length) = (stream.read_u32().await?, stream.read_u32().await?);
        if length > nbd::MAX_OPTION_BYTES {
            return Err(bad("says too much"));
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data).await?;
        match kind {
            answer::ACK => break,
            answer::INFO if data.starts_with(&nbd::INFO_EXPORT.to_be_bytes()) => {
                let said = data.get(2..10).and_then(|word| word.try_into().ok());
                size = said.map(u64::from_be_bytes);
            }
            answer::INFO => {}
            _ => return Err(bad("refuses its export")),
        }
    }
    if size == Some(bytes) { Ok(stream) } else { Err(bad("has a volume of another size")) }
}

/// Serves one connection; `Ok`: nobody asks any more.
async fn serve(
    stream: UnixStream,
    pending: &Pending,
    jobs: &mut UnboundedReceiver<Job>,
    done: &UnboundedSender<Input>,
) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let again: Vec<(u64, Ask)> = lock(pending).iter().map(|(token, ask)| (*token, ask.clone())).collect();
    let mut reading = tokio::spawn(read(reader, Arc::clone(pending), done.clone()));
    let served = async {
        for (token, ask) in again {
            write(&mut writer, token, &ask).await?;
        }
        while let Some(Job { token, ask }) = jobs.recv().await {
            lock(pending).insert(token, ask.clone());
            write(&mut writer, token, &ask).await?;
        }
        Ok(())
    };
    let served = tokio::select! {
        served = served => served,
        ended = &mut reading => {
            return ended.unwrap_or_else(|_| Err(io::Error::other("the reader broke off")));
        }
    };
    reading.abort();
    served
}

async fn write(writer: &mut OwnedWriteHalf, token: u64, ask: &Ask) -> io::Result<()> {
    let request = match ask {
        Ask::Read { offset, length } => {
            Request { flags: 0, command: command::READ, cookie: token, offset: *offset, length: *length }
        }
        Ask::Write { offset, data } => Request {
            flags: nbd::FUA,
            command: command::WRITE,
            cookie: token,
            offset: *offset,
            length: u32::try_from(data.len()).map_err(io::Error::other)?,
        },
    };
    writer.write_all(&request.bytes()).await?;
    if let Ask::Write { data, .. } = ask {
        writer.write_all(data).await?;
    }
    Ok(())
}

async fn read(mut reader: OwnedReadHalf, pending: Pending, done: UnboundedSender<Input>) -> io::Result<()> {
    loop {
        let mut head = [0; nbd::REPLY_BYTES];
        reader.read_exact(&mut head).await?;
        let reply = Reply::parse(&head).map_err(io::Error::other)?;
        let asked = lock(&pending).get(&reply.cookie).cloned();
        let asked = asked.ok_or_else(|| io::Error::other("an answer to what nobody asked"))?;
        let mut data = BytesMut::new();
        if let Ask::Read { length, .. } = asked
            && reply.error == 0
        {
            data.resize(length as usize, 0);
            reader.read_exact(&mut data).await?;
        }
        lock(&pending).remove(&reply.cookie);
        let result = if reply.error == 0 { Ok(data.freeze()) } else { Err(reply.error) };
        if done.send(Input::Engine { token: reply.cookie, result }).is_err() {
            return Ok(());
        }
    }
}
