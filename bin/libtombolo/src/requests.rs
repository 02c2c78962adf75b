//! Requests that wait for an answer, by the numbers that the program knows them by.

use endpoint::{Address, Asked};
use std::collections::{HashMap, HashSet};

/// So many requests are kept before anybody looks whether those who asked are still there.
const PRUNE_AT_LEAST: usize = 64;

/// Requests that were received. Of two of one endpoint only the newer can be answered, so there is
/// at most one of each.
#[derive(Debug)]
pub struct Requests {
    /// Number of the last one.
    last: u64,
    asked: HashMap<u64, Asked>,
    numbers: HashMap<Address, u64>,
    prune_at: usize,
}

impl Requests {
    pub fn new() -> Self {
        Self { last: 0, asked: HashMap::new(), numbers: HashMap::new(), prune_at: PRUNE_AT_LEAST }
    }

    /// Keeps a request; `alive` are those who can still be answered. Returns the number.
    pub fn keep(&mut self, asked: Asked, alive: impl FnOnce() -> HashSet<Address>) -> u64 {
        if self.asked.len() >= self.prune_at {
            let alive = alive();
            self.asked.retain(|_, asked| alive.contains(&asked.requester()));
            self.numbers.retain(|requester, _| alive.contains(requester));
            self.prune_at = PRUNE_AT_LEAST.max(2 * self.asked.len());
        }
        self.last += 1;
        if let Some(older) = self.numbers.insert(asked.requester(), self.last) {
            self.asked.remove(&older);
        }
        self.asked.insert(self.last, asked);
        self.last
    }

    pub fn find(&self, number: u64) -> Option<Asked> {
        self.asked.get(&number).copied()
    }

    /// It has been answered, or nobody waits for it.
    pub fn forget(&mut self, number: u64) {
        if let Some(asked) = self.asked.remove(&number) {
            self.numbers.remove(&asked.requester());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use endpoint::{Content, Endpoint, From, Options, Request, Rights, Step};

    /// A request of somebody new.
    fn asked_by(server: &mut Endpoint, slot: u32) -> (Endpoint, Request, Asked) {
        let address = Address { slot, generation: 1 };
        let mut requester = Endpoint::alone(address, &Options::default()).expect("an endpoint");
        let config = channel::Config { ring_bytes: 4096, ..channel::Config::default() };
        let (here, there) = channel::pair(&config).expect("a channel");
        requester.introduce(server.address(), Rights::ALL, here).expect("introduced");
        server.introduce(address, Rights::ALL, there).expect("introduced");
        let (call, asked) = asked_again(server, &mut requester);
        (requester, call, asked)
    }

    fn asked_again(server: &mut Endpoint, requester: &mut Endpoint) -> (Request, Asked) {
        let mut call = Request::new(server.address(), 0, 8);
        let step = requester.step_request(&mut call, b"?", &mut Vec::new(), false).expect("asked");
        assert!(matches!(step, Step::Pending { .. }));
        let received = server.receive(&From::Any, &mut Vec::new(), None).expect("received");
        let Content::Request { asked, .. } = received.content else { panic!("no request") };
        (call, asked)
    }

    fn server() -> Endpoint {
        Endpoint::alone(Address { slot: 0, generation: 1 }, &Options::default()).expect("an endpoint")
    }

    #[test]
    fn of_one_requester_the_newest_is_kept() {
        let (mut requests, mut server) = (Requests::new(), server());
        let (mut requester, mut call, first) = asked_by(&mut server, 7);
        let first = requests.keep(first, HashSet::new);
        assert!(requests.find(first).is_some());
        requester.cancel_request(&mut call);
        let (_call, second) = asked_again(&mut server, &mut requester);
        let second = requests.keep(second, HashSet::new);
        assert!(requests.find(first).is_none() && requests.find(second).is_some());
        requests.forget(second);
        assert!(requests.find(second).is_none() && requests.numbers.is_empty());
    }

    #[test]
    fn those_of_requesters_that_are_gone_do_not_pile_up() {
        let (mut requests, mut server) = (Requests::new(), server());
        let (_alive, _call, asked) = asked_by(&mut server, 1_000_000);
        let kept = requests.keep(asked, HashSet::new);
        let alive = HashSet::from([asked.requester()]);
        for slot in 1..1000 {
            let (_gone, _call, asked) = asked_by(&mut server, slot);
            let number = requests.keep(asked, || alive.clone());
            assert!(requests.find(number).is_some());
            assert!(requests.asked.len() <= PRUNE_AT_LEAST && requests.numbers.len() <= PRUNE_AT_LEAST);
        }
        assert!(requests.find(kept).is_some());
    }
}
