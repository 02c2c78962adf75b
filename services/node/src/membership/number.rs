//! Numbers of nodes: each has one that no other node of its cluster ever had, so that no address of
//! an endpoint is given twice.

use super::{failed, to_json};
use admin::{Code, Problem};
use registry::{Expected, Registry, RegistryError};
use wire::ipc::NODE_NUMBER_MAX;

/// Keys by number; each holds the name of the node that took it. They stay when the node is gone.
const NUMBERS: &str = "number/";
/// How often it is tried again when another node was first.
const TRIES: usize = 64;

/// Takes a number for a node that joins. 0 is that of the first node.
pub(super) fn take(registry: &dyn Registry, name: &str) -> Result<u32, Problem> {
    for _ in 0..TRIES {
        let taken = registry.list(NUMBERS).map_err(failed)?;
        let greatest =
            taken.iter().filter_map(|(key, _)| key.strip_prefix(NUMBERS)?.parse::<u32>().ok()).max();
        let number = greatest.unwrap_or(0) + 1;
        if number > NODE_NUMBER_MAX {
            return Err(Problem::new(
                Code::Refused,
                format!("{NODE_NUMBER_MAX} machines have joined this cluster in its life, and no number is used twice"),
            )
            .help("make a new cluster, and move the topologies there"));
        }
        match registry.put(&format!("{NUMBERS}{number}"), &to_json(&name)?, Expected::Absent) {
            Ok(_) => return Ok(number),
            Err(RegistryError::Conflict { .. }) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Problem::new(Code::Refused, "too many machines join at this moment").help("try again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::Memory;

    #[test]
    fn no_two_machines_that_join_have_one_number() {
        let registry = Memory::default();
        assert_eq!((take(&registry, "b").unwrap(), take(&registry, "c").unwrap()), (1, 2));
        registry.put(&format!("{NUMBERS}{NODE_NUMBER_MAX}"), b"\"z\"", Expected::Absent).unwrap();
        assert!(take(&registry, "d").unwrap_err().message.contains("4095 machines"));
    }
}
