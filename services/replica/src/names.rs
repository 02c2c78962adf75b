//! Nodes with a replica: their names, and the numbers that the rules have for them.

use volume::{Node, named};
use wire::replica::Configure;

/// Names and numbers of a volume's nodes.
#[derive(Debug)]
pub(crate) struct Names {
    replicas: Vec<String>,
    own: String,
}

impl Names {
    pub fn new(configured: &Configure) -> Self {
        Self { replicas: configured.replicas.clone(), own: configured.node.clone() }
    }

    pub fn own(&self) -> Option<Node> {
        self.number(&self.own)
    }

    pub fn number(&self, name: &str) -> Option<Node> {
        named::number(&self.replicas, name)
    }

    pub fn name(&self, node: Node) -> &str {
        named::name(&self.replicas, node).unwrap_or("?")
    }
}
