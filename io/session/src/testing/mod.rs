//! Stand-ins for the tests of what talks to a daemon or to a directory service (feature `testing`).

mod daemon;
mod directory;
mod endpoints;
mod server;

pub use daemon::FakeDaemon;
pub use directory::FakeDirectory;
pub use server::ServerThread;
