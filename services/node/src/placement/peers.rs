//! The calls of the cluster that following makes.

use crate::base::RegistryDebug;
use crate::membership::Stream;
use admin::Problem;
use hyper::body::Incoming;
use registry::{Expected, RegistryError};
use serde_json::Value;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;

/// A result that comes later.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The cluster, as far as placement is concerned.
pub(crate) trait Peers: Send + Sync + std::fmt::Debug {
    /// This node's name.
    fn me(&self) -> String;
    /// Returns the incarnation of this node's daemon, which its claims carry.
    fn incarnation(&self) -> u64;
    /// All nodes; those that are drained are not told apart from others that are there.
    fn nodes(&self) -> Vec<placement::Node>;
    /// Ticks when a node comes or goes.
    fn changes(&self) -> watch::Receiver<u64>;
    /// Until when this node holds its claims, in ns of `CLOCK_BOOTTIME`; 0: no longer.
    fn hold_until(&self) -> watch::Receiver<u64>;
    /// Why it does not hold them, for a person.
    fn why_cut_off(&self) -> Option<String>;
    /// The registry of the cluster. Its calls wait for the network.
    fn registry(&self) -> Arc<dyn RegistryDebug>;
    /// Sets a key that goes with this node's lease. Waits for the network.
    ///
    /// # Errors
    /// As [`registry::Registry::put`].
    fn put_leased(&self, key: &str, value: &[u8], expected: Expected) -> Result<u64, RegistryError>;
    /// Asks the daemon of another node to change over to a protocol of bytes in both directions,
    /// with a POST.
    fn open<'a>(
        &'a self,
        node: &'a str,
        path: String,
        protocol: &'static str,
        body: Value,
    ) -> Later<'a, Result<Box<dyn Stream>, Problem>>;
    /// Asks the daemon of another node for something that may have no end, with a GET.
    fn read<'a>(&'a self, node: &'a str, path: String) -> Later<'a, Result<Incoming, Problem>>;
    /// Asks the daemon of another node: `None` as the body is a GET, anything else a POST.
    fn call<'a>(
        &'a self,
        node: &'a str,
        path: String,
        body: Option<Value>,
    ) -> Later<'a, Result<Value, String>>;
}
