//! A server on a thread.

use super::FakeDaemon;
use session::{Control, Server, Service};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::eventfd::Eventfd;

/// How long a stand-in waits for another before the test has failed.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A server on a thread; dropped, it ends, and with it its links.
#[derive(Debug)]
pub struct ServerThread {
    stop: Arc<Eventfd>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Serves in the domain `server` of `daemon`, and returns when the daemon knows.
    ///
    /// # Panics
    /// Where that fails.
    pub fn start<S: Service + 'static>(
        daemon: &FakeDaemon,
        mut make: impl FnMut() -> S + Send + 'static,
    ) -> Self {
        let control = Control::connect(&daemon.socket("server")).expect("a control socket");
        let stop = Arc::new(Eventfd::new().expect("an event"));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let make: session::Make<'_> = Box::new(|_| Ok(Box::new(make())));
            let mut server = Server::new(control, make).expect("a server");
            server.run(Some(stopped.as_fd())).expect("served");
        });
        let mut asking = Control::connect(&daemon.socket("server")).expect("a control socket");
        let deadline = Instant::now() + TIMEOUT;
        while !asking.services(deadline).expect("services").iter().all(|service| service.up) {
            std::thread::yield_now();
        }
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server has panicked");
        }
    }
}
