//! Where the numbers of endpoints are kept: in the registry, so that no daemon hands out what an
//! earlier one did.

use crate::base::RegistryDebug;
use crate::broker::{Reserved, Store};
use registry::{Expected, RegistryError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Key of what was reserved.
const RESERVED: &str = "endpoints";
/// Prefix of the keys for the slots that names have, by distributed container.
const NAMES: &str = "endpoint-slots/";

/// See the module.
#[derive(Debug)]
pub(crate) struct Kept(pub(crate) Arc<dyn RegistryDebug>);

impl Kept {
    fn get<T: DeserializeOwned>(&self, key: &str) -> io::Result<Option<T>> {
        let entry = self.0.get(key).map_err(failed)?;
        entry.map(|entry| serde_json::from_slice(&entry.value).map_err(io::Error::other)).transpose()
    }

    fn put<T: Serialize>(&self, key: &str, value: &T) -> io::Result<()> {
        let value = serde_json::to_vec(value).map_err(io::Error::other)?;
        self.0.put(key, &value, Expected::Anything).map(drop).map_err(failed)
    }
}

fn failed(error: RegistryError) -> io::Error {
    io::Error::other(error)
}

impl Store for Kept {
    fn load(&self) -> io::Result<Option<Reserved>> {
        self.get(RESERVED)
    }

    fn save(&self, reserved: &Reserved) -> io::Result<()> {
        self.put(RESERVED, reserved)
    }

    fn load_names(&self, dc: &str) -> io::Result<BTreeMap<String, u32>> {
        Ok(self.get(&format!("{NAMES}{dc}"))?.unwrap_or_default())
    }

    fn save_names(&self, dc: &str, names: &BTreeMap<String, u32>) -> io::Result<()> {
        let key = format!("{NAMES}{dc}");
        if names.is_empty() {
            return self.0.delete(&key, Expected::Anything).map(drop).map_err(failed);
        }
        self.put(&key, names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Numbers;
    use registry::Memory;

    #[test]
    fn what_is_kept_is_there_for_the_next_daemon_and_what_is_broken_stops_it() {
        let registry: Arc<dyn RegistryDebug> = Arc::new(Memory::default());
        let kept = || Kept(Arc::clone(&registry));
        assert!(kept().load().unwrap().is_none());
        Numbers::open(Box::new(kept()), 0).unwrap();
        let before = kept().load().unwrap().unwrap();
        Numbers::open(Box::new(kept()), 0).unwrap();
        assert_ne!(kept().load().unwrap().unwrap(), before, "it counts daemons");
        assert!(kept().load_names("shop").unwrap().is_empty());
        let names = BTreeMap::from([("planner".to_owned(), 7)]);
        kept().save_names("shop", &names).unwrap();
        assert_eq!(kept().load_names("shop").unwrap(), names);
        kept().save_names("shop", &BTreeMap::new()).unwrap();
        assert!(registry.list(NAMES).unwrap().is_empty());
        // To go on without it would be to hand out again what others have.
        registry.put(RESERVED, b"{}", Expected::Anything).unwrap();
        assert!(Numbers::open(Box::new(kept()), 0).is_err());
    }
}
