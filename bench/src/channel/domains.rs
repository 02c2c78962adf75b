//! Two domains of a node of the bench's own, and a channel service between them: for channels that
//! are made by the daemon. The domains are processes that sleep; the workers speak over the
//! domains' control sockets, which is what makes them programs of these domains.

use crate::node::Node;
use crate::scenario::BenchError;
use crate::undo::Undo;
use std::path::{Path, PathBuf};

/// Name of the distributed container.
const DC: &str = "bench";
/// The service that the follower offers.
pub const SERVICE: &str = "messages";

/// The two domains, once they are up.
#[derive(Debug)]
pub struct Domains(Node);

impl Domains {
    /// Brings them up, in `folder`, with the `tombolo` that lies beside `binary`; `undo` learns how
    /// they are brought down.
    ///
    /// # Errors
    /// Where they do not come up here.
    pub fn start(binary: &Path, folder: &Path, undo: &mut Undo) -> Result<Self, BenchError> {
        Node::start(binary, folder, undo, &topology()).map(Self)
    }

    /// The control socket of the domain that offers.
    #[must_use]
    pub fn offering(&self) -> PathBuf {
        self.0.control(DC, "offering")
    }

    /// The control socket of the domain that opens.
    #[must_use]
    pub fn opening(&self) -> PathBuf {
        self.0.control(DC, "opening")
    }
}

fn topology() -> String {
    let domain = |name: &str| {
        format!(
            "\n[domain.{name}]\nkind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\nstop = {{ signal = \"KILL\" }}\n"
        )
    };
    format!(
        "name = \"{DC}\"\n{}{}\n[service.{SERVICE}]\nkind = \"channel\"\ndomain = \"offering\"\n\
         allow = [{{ domains = [\"opening\"], verbs = [\"open\"] }}]\n",
        domain("offering"),
        domain("opening"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topology_has_both_domains_and_the_service() {
        assert!(topology().contains("[service.messages]") && topology().contains("[domain.offering]"));
    }
}
