//! Endpoints of a distributed container for programs that block: calls, names, granted buffers.

pub use ipc::{
    Asked, Broken, Content, From, NoPeer, NotifyError, ReceiveError, Received, RelayError, Reply, ReplyError,
    RequestError, Rights, SendError,
};
pub use wire::ipc::Address;
