//! Names of nodes: what a certificate can hold, and a topology can say.

use admin::{Code, Problem};
use topology::{Name, NodeChoice};

/// Refuses what no topology could name: a node that nobody can point at.
pub(super) fn check(name: &str) -> Result<(), Problem> {
    let shown: String = name.chars().take(trust::MAX_NODE_NAME_BYTES + 1).collect();
    let refused = |why: &str| {
        Problem::new(Code::BadRequest, format!("{shown:?} can't be the name of a node: {why}"))
            .help("take another: --name NAME")
    };
    if NodeChoice::WORDS.contains(&name) {
        return Err(refused(&format!("in a topology, node = \"{name}\" is a rule by which one is chosen")));
    }
    Name::parse(name).map_err(|error| refused(&error.to_string()))?;
    // What a topology can name, a certificate can.
    trust::check_name(name).map_err(|error| refused(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_node_is_called_what_a_topology_can_name() {
        for good in ["a", "node-7", "n1", &"n".repeat(32)] {
            check(good).unwrap();
        }
        for (bad, why) in [
            ("", "empty"),
            ("any", "rule"),
            ("spread", "rule"),
            ("7of9", "starts with a lower-case letter"),
            ("Alpha", "starts with a lower-case letter"),
            ("a_b", "not '_'"),
            ("a-", "ends with a letter"),
            ("a.example.org", "not '.'"),
            (&"n".repeat(33), "at most 32"),
            (&"n".repeat(100_000), "at most 32"),
        ] {
            let refusal = check(bad).unwrap_err();
            assert!(refusal.message.contains(why) && refusal.message.len() < 300, "{bad:.80}: {refusal}");
            assert!(refusal.help.is_some());
        }
    }
}
