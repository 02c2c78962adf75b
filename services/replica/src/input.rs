//! Inputs from the engine, clients and other nodes.

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use wire::nbd::Reply;
use wire::replica::{Greeted, Greeting};

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// The engine has done something, or failed with an error of NBD.
    Engine { token: u64, result: Result<Bytes, u32> },
    /// A client of the view wants something.
    Client { view: u64, wish: Wish, replier: Replier },
    /// So many clients more, or fewer.
    Clients(isize),
    /// Another node's replica takes writes on this connection.
    PeerUp { node: String, connection: u64 },
    /// It has one on stable storage, or failed.
    PeerStored { node: String, connection: u64, sequence: u64, error: u32 },
    /// The connection is over, or never came to be.
    PeerGone { node: String, connection: u64, why: String },
    /// Another node's replica wants to write here.
    Caller(Caller),
    /// It writes.
    CallerWrites(Write),
    /// It is gone.
    CallerGone { connection: u64 },
}

/// A request of a client.
#[derive(Debug)]
pub(crate) enum Wish {
    Read { offset: u64, length: u32 },
    Write { offset: u64, data: Bytes },
}

/// Where the reply to a request goes. Without one the client's connection ends.
#[derive(Debug)]
pub(crate) struct Replier {
    pub out: UnboundedSender<Outgoing>,
    pub cookie: u64,
    pub permits: Vec<OwnedSemaphorePermit>,
}

impl Replier {
    pub fn done(self, result: Result<Bytes, u32>) {
        let (error, data) = match result {
            Ok(data) => (0, data),
            Err(error) => (error, Bytes::new()),
        };
        let reply = Reply { error, cookie: self.cookie };
        // A client that is gone needs no reply.
        let _gone = self.out.send(Outgoing { reply, data, _permits: self.permits });
    }
}

/// A reply on its way to a client.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub reply: Reply,
    pub data: Bytes,
    _permits: Vec<OwnedSemaphorePermit>,
}

/// A write of another node's replica.
#[derive(Debug)]
pub(crate) struct Write {
    pub connection: u64,
    pub sequence: u64,
    pub offset: u64,
    pub data: Bytes,
    pub _room: OwnedSemaphorePermit,
}

/// Somebody who wants to write.
#[derive(Debug)]
pub(crate) struct Caller {
    pub connection: u64,
    pub node: String,
    pub greeting: Greeting,
    /// Where replies go.
    pub replies: UnboundedSender<Reply>,
    /// Whether there is a session.
    pub answer: oneshot::Sender<Greeted>,
}
