//! A registry in memory: gone with the process. For tests.

use crate::watch::Watchers;
use crate::{
    Change, Entry, Expected, Registry, RegistryError, Watch, check_all, check_guarded, check_key, check_value,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug, Default)]
pub struct Memory {
    state: Mutex<State>,
    watchers: Watchers,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    entries: BTreeMap<String, Entry>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all of these, at one revision, which is returned.
    fn write_all(&self, state: &mut State, changes: &[(String, Option<Vec<u8>>)]) -> u64 {
        state.revision += 1;
        let revision = state.revision;
        for (key, value) in changes {
            let was = match value {
                Some(value) => {
                    state.entries.insert(key.clone(), Entry { value: value.clone(), revision });
                    true
                }
                None => state.entries.remove(key).is_some(),
            };
            if was {
                self.watchers.tell(&Change { key: key.clone(), revision, value: value.clone() });
            }
        }
        revision
    }
}

impl State {
    fn expect(&self, key: &str, expected: Expected) -> Result<(), RegistryError> {
        let found = self.entries.get(key).map(|entry| entry.revision);
        if expected.meets(found) {
            return Ok(());
        }
        Err(RegistryError::Conflict { key: key.to_owned(), expected, found })
    }
}

impl Registry for Memory {
    fn get(&self, key: &str) -> Result<Option<Entry>, RegistryError> {
        check_key(key)?;
        Ok(self.lock().entries.get(key).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Entry)>, RegistryError> {
        let state = self.lock();
        let matching =
            state.entries.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        Ok(matching.map(|(key, entry)| (key.clone(), entry.clone())).collect())
    }

    fn put(&self, key: &str, value: &[u8], expected: Expected) -> Result<u64, RegistryError> {
        check_key(key)?;
        check_value(key, value)?;
        let mut state = self.lock();
        state.expect(key, expected)?;
        state.revision += 1;
        let revision = state.revision;
        state.entries.insert(key.to_owned(), Entry { value: value.to_vec(), revision });
        self.watchers.tell(&Change { key: key.to_owned(), revision, value: Some(value.to_vec()) });
        Ok(revision)
    }

    fn delete(&self, key: &str, expected: Expected) -> Result<bool, RegistryError> {
        check_key(key)?;
        let mut state = self.lock();
        state.expect(key, expected)?;
        if state.entries.remove(key).is_none() {
            return Ok(false);
        }
        state.revision += 1;
        self.watchers.tell(&Change { key: key.to_owned(), revision: state.revision, value: None });
        Ok(true)
    }

    fn write(&self, changes: &[(String, Option<Vec<u8>>)]) -> Result<(), RegistryError> {
        check_all(changes)?;
        self.write_all(&mut self.lock(), changes);
        Ok(())
    }

    fn write_if(
        &self,
        guards: &[(&str, Expected)],
        changes: &[(String, Option<Vec<u8>>)],
    ) -> Result<u64, RegistryError> {
        check_guarded(guards, changes)?;
        let mut state = self.lock();
        for (guard, expected) in guards {
            state.expect(guard, *expected)?;
        }
        Ok(self.write_all(&mut state, changes))
    }

    fn watch(&self, prefix: &str) -> Result<Watch, RegistryError> {
        Ok(self.watchers.add(prefix))
    }
}
