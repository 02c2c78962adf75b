//! Work that would hold up the event loop, and how its failures are told.
//!
//! Each purpose has threads of its own and a line of its own before them. So what is slow (a disk,
//! the registry, a domain that does not end, strangers) holds up its own kind and nobody else.

use tokio::sync::Semaphore;

/// Starts of domains, and what is read about them. Mostly short, of the disk and of the OCI
/// runtime.
static DOMAINS: Pool = Pool::new("domains", DOMAIN_THREADS, MANY);
/// Files that are admitted, and images that are unpacked.
pub(crate) static UNPACKING: Pool = Pool::new("admitting and unpacking", UNPACKING_THREADS, MANY);
/// Ends that are waited for: as long as a file gives a domain to end.
pub(crate) static ENDS: Pool = Pool::new("ending domains", END_THREADS, MANY);
/// Removals of what ended: processes that are killed, trees that are taken apart.
pub(crate) static REMOVALS: Pool = Pool::new("removing domains", REMOVAL_THREADS, MANY);
/// Removals of what health checks left in a domain. They look through its processes, which a domain
/// can make slow.
pub(crate) static CHECKS: Pool = Pool::new("ending health checks", CHECK_THREADS, MANY);
/// Volumes and their engines.
pub(crate) static DISKS: Pool = Pool::new("volumes", VOLUME_THREADS, MANY);
/// The book of what is promised, and the kernel that is told of it.
pub(crate) static BOOK: Pool = Pool::new("promises", BOOK_THREADS, MANY);
/// WebAssembly modules that select for adaptations: bounded by their fuel, and some longer to
/// begin.
pub(crate) static SELECTORS: Pool = Pool::new("modules that select", 2, MANY);
/// Writes below the node's state directory: one at a time, in the order in which they came.
pub(crate) static KEPT: Pool = Pool::new("writing to the state directory", 1, MANY);
/// Questions to the registry of a cluster, which may be away.
pub(crate) static REGISTRY: Pool = Pool::new("the registry", REGISTRY_THREADS, MANY);
/// Requests for keys and locks that tenants keep in the registry.
pub(crate) static TENANTS: Pool = Pool::new("keys and locks", TENANT_THREADS, MANY);
/// This node's member of the cluster's own etcd, which is started while nobody answers questions to
/// the registry.
pub(crate) static MEMBER: Pool = Pool::new("this node's etcd member", 1, 16);
/// Proxies for other nodes.
pub(crate) static PROXIES: Pool = Pool::new("links", LINK_THREADS, MANY);
/// Looks at what there is, for whoever asks.
pub(crate) static LOOKS: Pool = Pool::new("looks at what there is", LOOK_THREADS, 1024);
/// Machines that want to join, of which nothing is known but that they have reached us.
pub(crate) static STRANGERS: Pool = Pool::new("machines that want to join", STRANGER_THREADS, 16);
/// As many as all of it once had together.
const DOMAIN_THREADS: usize = 16;
/// They take the disk for minutes, and more at a time make none of them faster; a disk that does
/// not answer keeps some of them.
const UNPACKING_THREADS: usize = 8;
/// Each sleeps for as long as a domain takes to end, and costs its stack alone.
const END_THREADS: usize = 32;
/// A tree of a million files takes a minute.
const REMOVAL_THREADS: usize = 8;
const CHECK_THREADS: usize = 4;
/// As many engines as start at the same time after a power cut.
const VOLUME_THREADS: usize = 8;
/// They wait for one lock most of the time.
const BOOK_THREADS: usize = 4;
/// Each waits for one answer.
const REGISTRY_THREADS: usize = 8;
/// See [`REGISTRY_THREADS`].
const TENANT_THREADS: usize = 4;
const LINK_THREADS: usize = 4;
const LOOK_THREADS: usize = 8;
/// Joining is rare, and takes a second.
const STRANGER_THREADS: usize = 2;
/// Waiting jobs of our own: each domain of a node, and each loop of the daemon, waits with one or
/// two things at a time.
const MANY: usize = 8192;
/// Threads for what has no pool: the event loop's own look-ups and files, and children that are
/// reaped.
const OTHERS: usize = 16;

/// Threads that all of that may have: nobody waits for a thread that another purpose has.
pub(crate) fn threads() -> usize {
    let pools = [
        &DOMAINS, &UNPACKING, &ENDS, &REMOVALS, &CHECKS, &DISKS, &BOOK, &KEPT, &REGISTRY, &TENANTS, &MEMBER,
        &PROXIES, &LOOKS, &STRANGERS, &SELECTORS,
    ];
    OTHERS + pools.iter().map(|pool| pool.threads).sum::<usize>()
}

/// Threads for one purpose, and a bounded line before them.
#[derive(Debug)]
pub(crate) struct Pool {
    name: &'static str,
    threads: usize,
    line: usize,
    /// At work and in line.
    places: Semaphore,
    working: Semaphore,
}

impl Pool {
    const fn new(name: &'static str, threads: usize, line: usize) -> Self {
        let (places, working) = (Semaphore::const_new(threads + line), Semaphore::const_new(threads));
        Self { name, threads, line, places, working }
    }

    /// Does `work` on a thread of the pool, when it is its turn.
    ///
    /// # Errors
    /// The line is full, which is said at once; the work broke off.
    pub(crate) async fn run<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let broke_off = |error: &dyn std::fmt::Display| format!("the work broke off: {error}");
        let Ok(place) = self.places.try_acquire() else {
            let Self { name, threads, line, .. } = self;
            return Err(format!(
                "this node is busy with {name}: {threads} at work and {line} waiting; try again later"
            ));
        };
        let turn = self.working.acquire().await.map_err(|error| broke_off(&error))?;
        let done = tokio::task::spawn_blocking(move || {
            // Until it is done, whether anybody still waits for it or not.
            let _taken = (place, turn);
            work()
        });
        done.await.map_err(|error| broke_off(&error))
    }
}

/// Runs what blocks away from the loop, with what is about domains.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    DOMAINS.run(work).await
}

/// An error with its causes, as one sentence.
pub(crate) fn said(error: domain::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::path::{Path, PathBuf};

    /// A file that is opened only when its other end is: as slow as a disk, a registry or a domain
    /// can be.
    fn slow(folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, 0o600.into(), 0).expect("a fifo");
        path
    }

    #[tokio::test]
    async fn what_is_slow_holds_up_its_own_kind_and_says_so_when_its_line_is_full() {
        static SLOW: Pool = Pool::new("slow things", 2, 3);
        static OTHER: Pool = Pool::new("other things", 1, 1);
        let folder = tempfile::tempdir().expect("a folder");
        let path = slow(folder.path(), "slow");
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let path = path.clone();
            waiting.spawn(SLOW.run(move || File::open(path).map(drop)));
        }
        while SLOW.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = SLOW.run(|| ()).await.expect_err("the line is full");
        assert_eq!(refused, "this node is busy with slow things: 2 at work and 3 waiting; try again later");
        assert_eq!(OTHER.run(|| 7).await, Ok(7), "held up by another purpose");
        // As long as somebody writes, each that opens it gets through.
        let _writer = tokio::task::spawn_blocking(move || File::options().read(true).write(true).open(path));
        while let Some(done) = waiting.join_next().await {
            done.expect("a task").expect("its turn came").expect("it opened");
        }
        assert_eq!(SLOW.run(|| 8).await, Ok(8), "its places are free again");
    }

    #[tokio::test]
    async fn work_whose_caller_is_gone_keeps_its_place_until_it_is_done() {
        static ABANDONED: Pool = Pool::new("abandoned things", 1, 0);
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (ended, has_ended) = tokio::sync::oneshot::channel::<()>();
        let work = ABANDONED.run(move || {
            let _heard = begun.send(());
            let _gone = wait.recv();
            ended
        });
        let caller = tokio::spawn(work);
        has_begun.await.expect("it begins");
        caller.abort();
        assert!(ABANDONED.run(|| ()).await.is_err(), "there is one thread, and it is at work");
        drop(go);
        let _dropped_when_done = has_ended.await;
        while ABANDONED.places.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(ABANDONED.run(|| 1).await, Ok(1));
    }
}
