//! The registry's copy of promises, written while no other request waits for the disk.
//!
//! Whoever changes the book marks those whose entries are to be written while the book is locked,
//! and has them written when it is not. One writes at a time: all that is marked when it begins, as
//! it is in force then, in one transaction. So what is written last is what is in force, what is on
//! the disk was in force at one moment, whenever the daemon is killed, and whoever waited for its
//! turn finds that its own was written along.

use super::{Book, Entry, RUN, State, VTMS};
use registry::MAX_WRITTEN;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

/// The domains whose entries differ from the registry's.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// By name, the number of the last mark.
    marks: BTreeMap<String, u64>,
    last: u64,
    /// The domains of a new file that is not written down yet. Until it is, the registry has the
    /// entries of the file before, for a daemon that finds that file.
    waiting: BTreeSet<String>,
}

impl Unwritten {
    /// Its entry has changed, or is gone.
    pub(super) fn mark(&mut self, name: &str) {
        self.last += 1;
        self.marks.insert(name.to_owned(), self.last);
    }

    /// It is not to be written before its file is.
    pub(super) fn wait(&mut self, name: &str) {
        self.waiting.insert(name.to_owned());
    }

    /// Whether what the registry has of one is over.
    pub(super) fn has(&self, name: &str) -> bool {
        self.marks.contains_key(name) && !self.waiting.contains(name)
    }

    /// Returns the entries that are to be written now.
    fn due(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.marks.iter().filter(|(name, _)| !self.waiting.contains(*name))
    }

    /// Notes that the entries of these marks were written.
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
    /// Has the registry know all that is in force, as far as it is marked; not to be called while
    /// the book is locked.
    pub(super) fn write_down(&self) {
        if self.lock().unwritten.due().next().is_none() {
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

    /// The file of a distributed container that was entered is written down, or the one before it
    /// is in its place again: what goes with it follows.
    pub(crate) fn settle(&self, dc: &str) {
        self.lock().unwritten.waiting.retain(|name| !is_of(name, dc));
        self.write_down();
    }

    /// Forgets what was adapted of domains that no file has any more: a daemon that ended a
    /// distributed container died before it had done so.
    pub(crate) fn forget_all_but(&self, is_in_a_file: impl Fn(&str) -> bool) {
        let known = match self.registry.list(VTMS) {
            Ok(known) => known,
            Err(error) => {
                tracing::error!(%error, "what was promised before can't be read");
                return;
            }
        };
        let names = known.iter().filter_map(|(key, _)| key.strip_prefix(VTMS));
        for name in names.filter(|name| !name.starts_with(RUN) && !is_in_a_file(name)) {
            self.lock().unwritten.mark(name);
        }
        self.write_down();
    }

    /// Returns the registry's entry of one domain, where that is not over.
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
        let marks = self.unwritten.due().map(|(name, mark)| (name.clone(), *mark));
        let values = self.unwritten.due().map(|(name, _)| {
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

/// Whether a domain of this name is one of this distributed container.
fn is_of(name: &str, dc: &str) -> bool {
    name.split_once('/').is_some_and(|(of, _)| of == dc)
}

fn text(name: &str, entry: &Entry) -> Option<Vec<u8>> {
    serde_json::to_vec(entry)
        .inspect_err(|error| tracing::error!(name, %error, "what is promised has no words"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::super::Promises;
    use super::super::tests::{book, reserve};
    use super::*;
    use admin::reserve::{AdaptRequest, Change};
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
        fn write_if(
            &self,
            guards: &[(&str, Expected)],
            changes: &[(String, Option<Vec<u8>>)],
        ) -> Result<u64, RegistryError> {
            self.inner.write_if(guards, changes)
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
            fn write_if(
                &self,
                guards: &[(&str, Expected)],
                changes: &[(String, Option<Vec<u8>>)],
            ) -> Result<u64, RegistryError> {
                self.0.write_if(guards, changes)
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

    /// One domain that is promised so much.
    fn file(dc: &str, budget_ms: u64) -> topology::Topology {
        let text = format!(
            "name = \"{dc}\"\n[domain.gold]\nkind = \"process\"\ncommand = [\"true\"]\n\
             reserve = {{ cpu = {{ budget = \"{budget_ms}ms\", period = \"40ms\" }} }}\n"
        );
        topology::parse(&text, "film.toml", std::path::Path::new("/")).expect("a topology")
    }

    fn promised(book: &Book, name: &str) -> u64 {
        book.lock().entries[name].now.cpu.expect("a budget").budget_ns / 1_000_000
    }

    /// A daemon was killed between the promises of a file and the file: its successor went on with
    /// the file before, and what had been adapted of that was forgotten, though whoever had adapted
    /// it had been told that it was done.
    #[test]
    fn what_was_adapted_is_there_until_another_file_is_written_down_and_gone_then() {
        let registry = Arc::new(Memory::default());
        let (book, _folder) = book(Arc::clone(&registry) as _);
        let (red, blue) = (file("film", 12), file("film", 8));
        book.enter("film", Some(&red), "top").expect("there is room");
        let change = Change { name: "film/gold".into(), reserve: reserve(10) };
        book.adapt(&AdaptRequest { changes: vec![change] }).expect("there is room");
        let successor = |file: &topology::Topology| {
            let (book, _folder) = super::super::tests::book(Arc::clone(&registry) as _);
            book.enter("film", Some(file), "top").expect("there is room");
            promised(&book, "film/gold")
        };
        // The other file is on its way, and an adaptation of somebody else is written down
        // meanwhile.
        book.begin("film", Some(&blue), "top").expect("there is room");
        book.lock().unwritten.mark("run/a");
        book.write_down();
        assert_eq!((promised(&book, "film/gold"), successor(&red)), (8, 10));
        // It did not come up: what was before is so again, with what was adapted of it.
        book.enter("film", Some(&red), "top").expect("there is room");
        assert_eq!((promised(&book, "film/gold"), successor(&red)), (10, 10));
        // It came up, and was written down: of what was before nothing comes back, not even with
        // the file.
        book.begin("film", Some(&blue), "top").expect("there is room");
        book.settle("film");
        assert_eq!((successor(&blue), registry.list(VTMS).unwrap().len()), (8, 0));
        book.enter("film", Some(&red), "top").expect("there is room");
        assert_eq!(promised(&book, "film/gold"), 12);
    }

    /// A daemon was killed between the end of a distributed container and the end of its promises:
    /// who brought it up again found what had once been adapted.
    #[test]
    fn what_was_adapted_of_a_file_that_is_gone_is_forgotten_at_the_next_start() {
        let registry = Arc::new(Memory::default());
        let (first, _folder) = book(Arc::clone(&registry) as _);
        for dc in ["film", "shop"] {
            first.enter(dc, Some(&file(dc, 8)), "top").expect("there is room");
            let change = Change { name: format!("{dc}/gold"), reserve: reserve(10) };
            first.adapt(&AdaptRequest { changes: vec![change] }).expect("there is room");
        }
        registry.put(&format!("{VTMS}run/a"), b"of no file", Expected::Anything).unwrap();
        let (next, _folder) = book(Arc::clone(&registry) as _);
        next.enter("shop", Some(&file("shop", 8)), "top").expect("there is room");
        next.forget_all_but(|name| name == "shop/gold");
        let left: Vec<String> = registry.list(VTMS).unwrap().into_iter().map(|(key, _)| key).collect();
        assert_eq!(left, ["reserve/vtm/run/a", "reserve/vtm/shop/gold"]);
        next.enter("film", Some(&file("film", 8)), "top").expect("there is room");
        assert_eq!((promised(&next, "film/gold"), promised(&next, "shop/gold")), (8, 10));
    }
}
