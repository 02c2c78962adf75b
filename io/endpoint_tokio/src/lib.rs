//! Endpoints for programs that wait with tokio: the calls of `endpoint`, as futures.
//!
//! ```
//! use channel::{Config, pair};
//! use endpoint::{Address, Content, From, Options, Rights};
//! use endpoint_tokio::Endpoint;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! // By hand, as tests do; otherwise `Endpoint::bind` and `Endpoint::wait_for_bind`.
//! let (asker, server) = (Address { slot: 1, generation: 1 }, Address { slot: 2, generation: 1 });
//! let mut one = endpoint::Endpoint::alone(asker, &Options::default())?;
//! let mut other = endpoint::Endpoint::alone(server, &Options::default())?;
//! let (here, there) = pair(&Config::default())?;
//! one.introduce(server, Rights::ALL, here)?;
//! other.introduce(asker, Rights::ALL, there)?;
//! let (mut one, mut other) = (Endpoint::new(one)?, Endpoint::new(other)?);
//!
//! let serving = async {
//!     let mut question = Vec::new();
//!     let received = other.receive(&From::Any, &mut question, None).await?;
//!     let Content::Request { asked, .. } = received.content else { return Err("no request".into()) };
//!     other.reply(&asked, 0, b"turn left")?;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! };
//! let mut answer = Vec::new();
//! let asking = one.send_receive(server, 0, b"where to?", &mut answer, 100, None);
//! let (served, asked) = tokio::join!(serving, asking);
//! served?;
//! asked?;
//! assert_eq!(answer, b"turn left");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds, beyond what `endpoint` says
//! - Every future may be dropped before it is ready (`select!`, a timeout). What it wanted to send
//!   is withdrawn unless it has been received; what it would have received is received next.
//! - Nothing spins and nothing blocks: a wait is a wait on a descriptor and a timer, and the
//!   runtime's thread goes on with other tasks. A peer that floods, or rings for nothing, does not
//!   keep a task from yielding.
//! - What asks the daemon and has no steps is a short call, to be made through
//!   [`Endpoint::get_mut`] where a few milliseconds of the runtime's thread are not too many:
//!   buffers, grants, and taking them back.
//! - A deadlock is reported among tasks of one thread as it is among processes.
//!
//! All needs a runtime with I/O and time enabled, and panics without one, as tokio's own types do.

mod bind;
mod call;
mod copy;
mod member;
mod wait;

pub use member::Endpoint;

/// The page's examples in Rust compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/endpoints.md")]
struct Page;
