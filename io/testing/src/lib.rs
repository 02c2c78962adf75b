//! Stand-ins for tests: the daemon's side of a control socket, a directory service that answers as
//! it is told, and a real etcd with an address and a folder of its own. Only tests depend on this
//! crate.

mod daemon;
mod directory;
mod endpoints;
pub mod etcd;
mod outbox;
mod product;
mod server;

pub use daemon::FakeDaemon;
pub use directory::FakeDirectory;
pub use etcd::EtcdServers;
pub use product::assert_fresh;
pub use server::ServerThread;
