//! What the registry is to know of promises, written while nobody who asks for something else waits for the disk.
//!
//! Whoever changes the book marks those whose entries are to be written while the book is locked, and has them written when it is not. One writes at a time: all that is marked when it
//! begins, as it is in force then, in one transaction. So what is written last is what is in force, what is on the disk was in force at one moment, whenever the daemon is killed, and whoever
//! waited for its turn finds that its own was written along.

use super::{Book, Entry, State, VTMS};
use registry::MAX_WRITTEN;
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// Whose entries differ from what the registry has.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// By name, the number of the last mark.
    marks: BTreeMap<String, u64>,
    last: u64,
}

impl Unwritten {
    /// Its entry has changed, or is gone.
    pub(super) fn mark(&mut self, name: &str) {
        self.last += 1;
        self.marks.insert(name.to_owned(), self.last);
    }

    /// Whether the registry does not know the last of one yet.
    pub(super) fn has(&self, name: &str) -> bool {
        self.marks.contains_key(name)
    }

    /// What was written is what these marks were for.
    fn wrote(&mut self, marks: &[(String, u64)]) {
        for (name, mark) in marks {
            if self.marks.get(name) == Some(mark) {
                self.marks.remove(name);
            }
        }
    }
}

type Values = Vec<(String, Option<Vec<u8>>)>;

impl Book {
    /// Has the registry know all that is in force, as far as it is marked; not to be called while the book is locked.
    pub(super) fn write_down(&self) {
        if self.lock().unwritten.marks.is_empty() {
            return;
        }
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (marks, values) = self.lock().marked();
        for (marks, values) in marks.chunks(MAX_WRITTEN).zip(values.chunks(MAX_WRITTEN)) {
            match self.registry.write(values) {
                Ok(()) => self.lock().unwritten.wrote(marks),
                Err(error) => {
                    let names: Vec<&str> = marks.iter().map(|(name, _)| name.as_str()).collect();
                    // It stays marked, so the next change tries again.
                    tracing::error!(?names, %error, "what is promised can't be written down: the next daemon goes by what was");
                }
            }
        }
    }

    /// What the registry has of one that is not in the book.
    pub(super) fn remembered(&self, state: &State, name: &str) -> Option<Entry> {
        if state.unwritten.has(name) {
            // What it has is over.
            return None;
        }
        let entry = self.registry.get(&format!("{VTMS}{name}")).ok()??;
        serde_json::from_slice(&entry.value).ok()
    }
}

impl State {
    fn marked(&self) -> (Vec<(String, u64)>, Values) {
        let marks = self.unwritten.marks.iter().map(|(name, mark)| (name.clone(), *mark));
        let values = self.unwritten.marks.keys().map(|name| {
            let entry = self.entries.get(name).filter(|entry| !entry.is_as_its_file_says());
            (format!("{VTMS}{name}"), entry.and_then(|entry| text(name, entry)))
        });
        (marks.collect(), values.collect())
    }
}

impl Entry {
    /// Whether its file says it again by itself.
    fn is_as_its_file_says(&self) -> bool {
        self.file.as_ref() == Some(&self.now) && !self.suspended
    }
}

fn text(name: &str, entry: &Entry) -> Option<Vec<u8>> {
    serde_json::to_vec(entry)
        .inspect_err(|error| tracing::error!(name, %error, "what is promised has no words"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{book, reserve};
    use super::*;
    use crate::admin::reserve::{AdaptRequest, Change};
    use registry::{Change as Changed, Entry as Value, Expected, Memory, Registry, RegistryError, Watch};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};

    /// A registry on a disk that takes as long as the test says.
    #[derive(Debug)]
    struct Slow {
        inner: Memory,
        began: Mutex<Sender<Values>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Registry for Slow {
        fn get(&self, key: &str) -> Result<Option<Value>, RegistryError> {
            self.inner.get(key)
        }
        fn list(&self, prefix: &str) -> Result<Vec<(String, Value)>, RegistryError> {
            self.inner.list(prefix)
        }
        fn put(&self, key: &str, value: &[u8], expected: Expected) -> Result<u64, RegistryError> {
            self.inner.put(key, value, expected)
        }
        fn delete(&self, key: &str, expected: Expected) -> Result<bool, RegistryError> {
            self.inner.delete(key, expected)
        }
        fn write(&self, changes: &[(String, Option<Vec<u8>>)]) -> Result<(), RegistryError> {
            self.began.lock().unwrap().send(changes.to_vec()).expect("the test listens");
            self.go_on.lock().unwrap().recv().expect("the test says when");
            self.inner.write(changes)
        }
        fn watch(&self, prefix: &str) -> Result<Watch, RegistryError> {
            self.inner.watch(prefix)
        }
    }

    fn budgets(values: &Values) -> Vec<(String, Option<u64>)> {
        let of = |value: &Vec<u8>| {
            let entry: Entry = serde_json::from_slice(value).expect("an entry");
            entry.now.cpu.expect("a budget").budget_ns / 1_000_000
        };
        values.iter().map(|(key, value)| (key.clone(), value.as_ref().map(of))).collect()
    }

    #[test]
    fn who_adapts_waits_for_no_disk_of_another_and_what_is_written_last_is_in_force() {
        let (began, begins) = channel();
        let (says, go_on) = channel();
        let slow =
            Arc::new(Slow { inner: Memory::default(), began: Mutex::new(began), go_on: Mutex::new(go_on) });
        let (book, _folder) = book(Arc::clone(&slow) as _);
        for (name, budget_ms) in [("run/a", 10), ("run/b", 20)] {
            let reserve = reserve(budget_ms);
            let mut state = book.lock();
            let (wish, team) = state.asked(&reserve).expect("it makes sense");
            state.promise_one(name, &reserve, wish, team).expect("there is room");
            state.entries.insert(name.to_owned(), Entry::new(None, reserve, name.to_owned()));
        }
        let adapt = |name: &str, budget_ms: u64| {
            let change = Change { name: name.to_owned(), reserve: reserve(budget_ms) };
            book.adapt(&AdaptRequest { changes: vec![change] }).expect("there is room")
        };
        let budget = |name: &str| book.lock().entries[name].now.cpu.expect("a budget").budget_ns / 1_000_000;
        std::thread::scope(|scope| {
            scope.spawn(|| adapt("run/a", 11));
            let first = begins.recv().expect("the first one is being written");
            assert_eq!(budgets(&first), [("reserve/vtm/run/a".to_owned(), Some(11))]);
            // The disk is busy. Others are adapted nevertheless, one of them twice.
            scope.spawn(|| adapt("run/b", 21));
            scope.spawn(|| adapt("run/a", 12));
            while (budget("run/a"), budget("run/b")) != (12, 21) {
                std::thread::yield_now();
            }
            says.send(()).expect("somebody waits");
            // Both were waiting, and one transaction has what is in force of both.
            let second = begins.recv().expect("the next one is being written");
            let expected =
                [("reserve/vtm/run/a".to_owned(), Some(12)), ("reserve/vtm/run/b".to_owned(), Some(21))];
            assert_eq!(budgets(&second), expected);
            says.send(()).expect("somebody waits");
            // Whoever finds its own written along writes nothing.
            drop(says);
        });
        assert!(book.lock().unwritten.marks.is_empty());
        let there: Values =
            slow.inner.list(VTMS).unwrap().into_iter().map(|(key, value)| (key, Some(value.value))).collect();
        assert_eq!(budgets(&there).iter().map(|(_, ms)| *ms).collect::<Vec<_>>(), [Some(12), Some(21)]);
    }

    #[test]
    fn what_could_not_be_written_is_written_with_the_next_change() {
        /// A disk that is full the first time.
        #[derive(Debug, Default)]
        struct Full(Memory, Mutex<bool>);
        impl Registry for Full {
            fn get(&self, key: &str) -> Result<Option<Value>, RegistryError> {
                self.0.get(key)
            }
            fn list(&self, prefix: &str) -> Result<Vec<(String, Value)>, RegistryError> {
                self.0.list(prefix)
            }
            fn put(&self, key: &str, value: &[u8], expected: Expected) -> Result<u64, RegistryError> {
                self.0.put(key, value, expected)
            }
            fn delete(&self, key: &str, expected: Expected) -> Result<bool, RegistryError> {
                self.0.delete(key, expected)
            }
            fn write(&self, changes: &[(String, Option<Vec<u8>>)]) -> Result<(), RegistryError> {
                if !std::mem::replace(&mut *self.1.lock().unwrap(), true) {
                    return Err(RegistryError::Fenced);
                }
                self.0.write(changes)
            }
            fn watch(&self, prefix: &str) -> Result<Watch, RegistryError> {
                self.0.watch(prefix)
            }
        }
        let full = Arc::new(Full::default());
        let (book, _folder) = book(Arc::clone(&full) as _);
        let insert = |name: &str| {
            let mut state = book.lock();
            state.entries.insert(name.to_owned(), Entry::new(None, reserve(5), name.to_owned()));
            state.unwritten.mark(name);
        };
        insert("run/a");
        book.write_down();
        assert!(full.0.list(VTMS).unwrap().is_empty());
        let watch = full.0.watch(VTMS).unwrap();
        insert("run/b");
        book.lock().unwritten.mark("run/gone");
        book.write_down();
        assert_eq!(full.0.list(VTMS).unwrap().len(), 2);
        let told = watch.next(std::time::Duration::ZERO).unwrap();
        assert!(matches!(told, Some(Changed { value: Some(_), .. })));
        // What is not to be known any more is not found, though the registry still has it.
        let mut state = book.lock();
        state.entries.remove("run/a");
        assert!(book.remembered(&state, "run/a").is_some());
        state.unwritten.mark("run/a");
        assert!(book.remembered(&state, "run/a").is_none());
        drop(state);
        book.write_down();
        assert_eq!(full.0.list(VTMS).unwrap().len(), 1);
    }
}
