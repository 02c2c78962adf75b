//! The calls of the reservation table that other rooms may make. Only the API sees all of it.

use super::{Book, Ground, Looking, Offer};
use admin::Problem;
use std::fmt;
use tokio::sync::watch;
use topology::{Domain, Topology};

/// The reservation table for the lives of domains: a file is entered as a whole before anything of
/// it starts, the promise to a domain is kept from when its cgroup is there, and let go of before
/// it ends. Calls may wait for the kernel, a dispatcher or a disk.
pub(crate) trait Promises: fmt::Debug + Send + Sync {
    /// Returns the promises beside which a file of `dc` is admitted.
    fn beside(&self, dc: &str) -> Looking;
    /// Enters what a distributed container is promised from now on, in place of all that it was;
    /// `None`: nothing. The registry's records of it wait for [`Promises::settle`].
    ///
    /// # Errors
    /// Where the node can't keep it; the book is as before.
    fn begin(&self, dc: &str, topology: Option<&Topology>, cgroup: &str) -> Result<(), Problem>;
    /// The file that was begun is written down, or the one before it is in its place again.
    fn settle(&self, dc: &str);
    /// Enters what one domain is promised, beside all that is promised already. One that is not
    /// `strict` goes without where nothing can be promised to it.
    ///
    /// # Errors
    /// Why a strict one can't be promised it.
    fn enter_one(&self, dc: &str, domain: &Domain, cgroup: &str) -> Result<(), String>;
    /// Tells the kernel what a domain, `DC/DOMAIN`, is promised whose cgroup is there.
    ///
    /// # Errors
    /// Where it can't be kept and is `strict`, or the kernel refuses.
    fn keep(&self, name: &str) -> Result<(), String>;
    /// Whether all processes of a domain are held by hand.
    fn is_suspended(&self, name: &str) -> bool;
    /// The quota of a cgroup is about to be set by its limits.
    fn leave_quota(&self, cgroup: &str);
    /// A domain has ended, or is about to: nobody keeps its promise any more.
    fn ended(&self, name: &str);
    /// Lets go of the domains that an earlier daemon's dispatchers keep and that are promised
    /// nothing.
    fn settle_dispatchers(&self);

    /// [`Promises::begin`] and [`Promises::settle`] at once: for a file that is written down, or
    /// gone.
    ///
    /// # Errors
    /// As [`Promises::begin`].
    fn enter(&self, dc: &str, topology: Option<&Topology>, cgroup: &str) -> Result<(), Problem> {
        self.begin(dc, topology, cgroup)?;
        self.settle(dc);
        Ok(())
    }
}

/// The reservation table for placement: the offer that this node publishes to the cluster, and the
/// domains that it has refused.
pub(crate) trait Offers: Promises {
    /// Returns the offer that is published to the cluster; without refusals.
    fn offer(&self) -> Offer;
    /// Ticks when [`Offers::offer`] may say something else, or somebody was refused.
    fn changes(&self) -> watch::Receiver<u64>;
    /// Returns the state on which refusals are based now.
    fn ground(&self) -> Ground;
    /// Nothing is promised to this domain here any more.
    fn leave(&self, name: &str);
    /// The domains that are entered, as `(DC, DOMAIN)`.
    fn domains(&self) -> Vec<(String, String)>;
    /// Why one runs without its promise, if it does.
    fn without(&self, name: &str) -> Option<String>;
    /// Why one was refused that is strict, since this was asked last.
    fn take_refusal(&self, name: &str) -> Option<String>;
    /// Whether one was refused that nobody has taken note of.
    fn has_refused(&self, name: &str) -> bool;

    /// The domains that run here without their promise, as `(DC, DOMAIN)`.
    fn domains_without(&self) -> Vec<(String, String)> {
        let without = |(dc, domain): &(String, String)| self.without(&format!("{dc}/{domain}")).is_some();
        self.domains().into_iter().filter(without).collect()
    }
}

impl Promises for Book {
    fn beside(&self, dc: &str) -> Looking {
        Book::beside(self, dc)
    }

    fn begin(&self, dc: &str, topology: Option<&Topology>, cgroup: &str) -> Result<(), Problem> {
        Book::begin(self, dc, topology, cgroup)
    }

    fn settle(&self, dc: &str) {
        Book::settle(self, dc);
    }

    fn enter_one(&self, dc: &str, domain: &Domain, cgroup: &str) -> Result<(), String> {
        Book::enter_one(self, dc, domain, cgroup)
    }

    fn keep(&self, name: &str) -> Result<(), String> {
        Book::keep(self, name)
    }

    fn is_suspended(&self, name: &str) -> bool {
        Book::is_suspended(self, name)
    }

    fn leave_quota(&self, cgroup: &str) {
        Book::leave_quota(self, cgroup);
    }

    fn ended(&self, name: &str) {
        Book::ended(self, name);
    }

    fn settle_dispatchers(&self) {
        Book::settle_dispatchers(self);
    }
}

impl Offers for Book {
    fn offer(&self) -> Offer {
        Book::offer(self)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        Book::changes(self)
    }

    fn ground(&self) -> Ground {
        Book::ground(self)
    }

    fn leave(&self, name: &str) {
        Book::leave(self, name);
    }

    fn domains(&self) -> Vec<(String, String)> {
        Book::domains(self)
    }

    fn without(&self, name: &str) -> Option<String> {
        Book::without(self, name)
    }

    fn take_refusal(&self, name: &str) -> Option<String> {
        Book::take_refusal(self, name)
    }

    fn has_refused(&self, name: &str) -> bool {
        Book::has_refused(self, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reservations::tests::book;
    use registry::Memory;
    use std::path::Path;
    use std::sync::Arc;

    const CGROUP: &str = "tombolo-of-nobody";

    /// A file with one domain that is promised so much memory.
    fn shop(memory: &str, strict: bool) -> Topology {
        let text = format!(
            "name = \"shop\"\n[domain.robot]\nkind = \"container\"\ncommand = [\"true\"]\n\
             [domain.robot.reserve]\nmemory = \"{memory}\"\nstrict = {strict}\n"
        );
        topology::parse(&text, "shop.toml", Path::new("/")).expect("a topology")
    }

    /// More than any machine has.
    const TOO_MUCH: &str = "1000000GiB";

    #[test]
    fn a_file_that_is_begun_is_offered_and_one_that_is_refused_changes_nothing() {
        let (book, _folder) = book(Arc::new(Memory::default()));
        let book: Arc<dyn Offers> = Arc::new(book);
        let mut changes = book.changes();
        book.enter("shop", Some(&shop("8MiB", false)), CGROUP).expect("there is room");
        assert!(changes.has_changed().expect("the book is there"));
        changes.mark_unchanged();
        assert_eq!(book.domains(), [("shop".to_owned(), "robot".to_owned())]);
        let before = serde_json::to_value(book.offer()).expect("it is told as JSON");
        assert!(before.to_string().contains("shop/robot"), "{before}");
        book.begin("lab", Some(&shop(TOO_MUCH, false)), CGROUP).expect_err("nobody has so much");
        assert_eq!(serde_json::to_value(book.offer()).expect("as before"), before);
        book.enter("shop", None, CGROUP).expect("giving back is always possible");
        assert!(changes.has_changed().expect("the book is there") && book.domains().is_empty());
    }

    #[test]
    fn one_that_is_strict_is_refused_once_and_one_that_is_not_goes_without() {
        let (book, _folder) = book(Arc::new(Memory::default()));
        let book: Arc<dyn Offers> = Arc::new(book);
        let [strict, other] = [true, false].map(|strict| shop(TOO_MUCH, strict).domains.remove(0));
        let why = book.enter_one("shop", &strict, CGROUP).expect_err("nobody has so much");
        assert!(book.has_refused("shop/robot") && book.keep("shop/robot") == Err(why.clone()));
        assert_eq!(book.take_refusal("shop/robot"), Some(why));
        assert!(!book.has_refused("shop/robot") && book.domains().is_empty());
        book.enter_one("shop", &other, CGROUP).expect("it goes without");
        assert!(book.without("shop/robot").is_some_and(|why| why.contains("runs without its promise")));
        book.leave("shop/robot");
        assert!(book.domains().is_empty() && book.without("shop/robot").is_none());
    }
}
