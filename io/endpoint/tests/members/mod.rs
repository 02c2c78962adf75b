//! Endpoints that a stand-in for the daemon has bound.
#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::time::{Duration, Instant};

use endpoint::{Endpoint, Options};
use tempfile::TempDir;
use testing::FakeDaemon;

pub fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

pub fn shortly() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(30))
}

pub struct Bed {
    pub folder: TempDir,
    daemon: Option<FakeDaemon>,
}

impl Bed {
    pub fn new() -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Some(start(&folder));
        Bed { folder, daemon }
    }

    pub fn daemon(&self) -> &FakeDaemon {
        self.daemon.as_ref().unwrap()
    }

    pub fn options(&self) -> Options {
        Options { control: Some(self.folder.path().join("a/control.sock")), ..Options::default() }
    }

    pub fn bind(&self, name: &str) -> Endpoint {
        Endpoint::bind(Some(name), &self.options()).unwrap()
    }

    /// Two endpoints that know each other.
    pub fn two(&self, names: [&str; 2]) -> (Endpoint, Endpoint) {
        let (mut one, other) = (self.bind(names[0]), self.bind(names[1]));
        one.find(names[1], soon()).unwrap();
        (one, other)
    }

    pub fn kill(&mut self) {
        self.daemon.take().unwrap().kill();
    }

    pub fn start(&mut self) {
        self.daemon = Some(start(&self.folder));
    }
}

fn start(folder: &TempDir) -> FakeDaemon {
    FakeDaemon::start(folder.path(), &["a"], Vec::new())
}
