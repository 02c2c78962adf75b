//! Endpoints of a distributed container for programs that block: calls, names, granted buffers.
//!
//! An [`Endpoint`] makes one call at a time. Each call waits as long as it is told to, and a
//! deadline that has passed already makes it a try. Who the peer is and where it runs does not
//! matter to a call: it has an [`Address`].
//!
//! ```
//! use channel::{Config, pair};
//! use endpoint::{Address, Content, Endpoint, From, Options, Rights};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // By hand, as tests do; otherwise the daemon introduces those that the topology file allows.
//! let (camera, planner) = (Address { slot: 1, generation: 1 }, Address { slot: 2, generation: 1 });
//! let mut one = Endpoint::alone(camera, &Options::default())?;
//! let mut other = Endpoint::alone(planner, &Options::default())?;
//! let (here, there) = pair(&Config::default())?;
//! one.introduce(planner, Rights::ALL, here)?;
//! other.introduce(camera, Rights::ALL, there)?;
//!
//! one.send_buffered(planner, 7, b"frame", None)?;
//! one.flush()?;
//! let mut payload = Vec::new();
//! let received = other.receive(&From::Any, &mut payload, None)?;
//! assert_eq!((received.source, received.content), (camera, Content::Message { tag: 7 }));
//! assert_eq!(payload, b"frame");
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//! - The pure state machine of `logic/ipc` decides what becomes of a call; here is only what waits.
//! - A call with a deadline ends by it, whatever a peer does. Without one it ends when the peer
//!   dies, or is in a cycle of waits.
//! - What a peer does wrong cuts off that peer, and no other notices.
//! - An endpoint belongs to the process that made it: a fork's child is refused by name, and closes
//!   nothing.

mod alone;
mod ask;
mod backup;
mod buffer;
mod calls;
mod copy;
mod crossing;
mod endpoint;
mod failed;
mod far;
mod granting;
mod grants;
mod handing;
mod interrupt;
mod lender;
mod link;
mod loans;
mod member;
mod moving;
mod pairs;
mod steps;
mod tell;
mod waiting;

pub use ipc::{
    Asked, Broken, Content, From, Gone, NoPeer, NotifyError, Receive, ReceiveError, Received, RelayError,
    Reply, ReplyError, Request, RequestError, Rights, Said, Send, SendError, Turn,
};
pub use wire::ipc::Address;

pub use alone::Handed;
pub use ask::{Ask, AskError};
pub use backup::{Backup, BackupError};
pub use buffer::Buffer;
pub use copy::{Borrow, CopyError};
pub use crossing::{Copying, Pieces};
pub use endpoint::{Endpoint, Options, Peer};
pub use failed::Failed;
pub use far::StandIn;
pub use granting::{BufferError, GrantError, Unasked};
pub use grants::{GrantId, Granted};
pub use handing::StateError;
pub use interrupt::Interrupter;
pub use ipc::grants::Access;
pub use ipc::grants::OutOfRange;
pub use ipc::spoken::{Hearing, messages};
pub use lender::Lender;
pub use member::{BindError, Find, FindError, Whom};
pub use moving::MigrateError;
pub use pairs::IntroduceError;
pub use steps::Step;
pub use tell::{Tell, TellError};
