//! The cluster as following wants it.

use super::peers::{Later, Peers};
use crate::base::RegistryDebug;
use crate::membership::Cluster;
use crate::membership::Stream;
use admin::Problem;
use hyper::Method;
use hyper::body::Incoming;
use placement::Standing;
use registry::{Expected, RegistryError};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::watch;

impl Peers for Cluster {
    fn me(&self) -> String {
        Cluster::me(self).to_owned()
    }

    fn incarnation(&self) -> u64 {
        Cluster::incarnation(self)
    }

    fn nodes(&self) -> Vec<placement::Node> {
        let node = |member: crate::membership::Member| placement::Node {
            name: member.name,
            labels: member.labels,
            cpu_milli: u64::from(member.cpus) * 1000,
            memory_bytes: member.memory_bytes,
            standing: if member.alive { Standing::Ready } else { Standing::Lost },
            // The registry says that beside.
            promises: Arc::default(),
        };
        Cluster::nodes(self).into_iter().map(node).collect()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        Cluster::changes(self)
    }

    fn hold_until(&self) -> watch::Receiver<u64> {
        self.fence_deadline()
    }

    fn why_cut_off(&self) -> Option<String> {
        Cluster::why_fenced(self)
    }

    fn registry(&self) -> Arc<dyn RegistryDebug> {
        Cluster::registry(self)
    }

    fn put_leased(&self, key: &str, value: &[u8], expected: Expected) -> Result<u64, RegistryError> {
        Cluster::put_leased(self, key, value, expected)
    }

    fn open<'a>(
        &'a self,
        node: &'a str,
        path: String,
        protocol: &'static str,
        body: Value,
    ) -> Later<'a, Result<Box<dyn Stream>, Problem>> {
        Box::pin(async move { Cluster::open_stream(self, node, &path, protocol, &body).await })
    }

    fn read<'a>(&'a self, node: &'a str, path: String) -> Later<'a, Result<Incoming, Problem>> {
        Box::pin(async move { Cluster::read_from(self, node, &path).await })
    }

    fn call<'a>(
        &'a self,
        node: &'a str,
        path: String,
        body: Option<Value>,
    ) -> Later<'a, Result<Value, String>> {
        Box::pin(async move {
            let method = if body.is_some() { Method::POST } else { Method::GET };
            let answer: Result<Value, _> =
                Cluster::call(self, node, method, &path, &body.unwrap_or(Value::Null)).await;
            answer.map_err(|problem| problem.to_string())
        })
    }
}
