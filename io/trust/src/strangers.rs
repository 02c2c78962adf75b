//! Connections of whom nobody knows yet who it is: a bounded number, fewer from one address, and
//! the oldest goes where another comes. So whoever holds connections open without saying anything
//! keeps nobody out: an honest peer is done in some milliseconds, and the one that gives way is a
//! connection that has waited longest.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Those who are there.
#[derive(Debug, Clone)]
pub struct Strangers {
    most: usize,
    of_one: usize,
    there: Arc<Mutex<There>>,
}

#[derive(Debug, Default)]
struct There {
    next: u64,
    /// By the order in which they came.
    all: BTreeMap<u64, One>,
}

#[derive(Debug)]
struct One {
    from: IpAddr,
    /// It is not sent away meanwhile.
    kept: bool,
    send_away: oneshot::Sender<()>,
}

/// The place of one of them, until this is dropped.
#[derive(Debug)]
pub struct Place {
    number: u64,
    there: Arc<Mutex<There>>,
}

/// Tells one of them to go.
#[derive(Debug)]
pub struct SentAway(oneshot::Receiver<()>);

impl Strangers {
    /// At most so many, and of these so many from one address.
    #[must_use]
    pub fn new(most: usize, of_one: usize) -> Self {
        Self { most, of_one, there: Arc::default() }
    }

    /// Another one comes, and perhaps an earlier one is sent away for it. `None`: all whom it could
    /// be are kept.
    #[must_use]
    pub fn enter(&self, from: IpAddr) -> Option<(Place, SentAway)> {
        let from = machine(from);
        let mut there = lock(&self.there);
        let of_it = there.all.values().filter(|one| one.from == from).count();
        if of_it >= self.of_one {
            there.send_away(from)?;
        } else if there.all.len() >= self.most {
            let greediest = there.greediest()?;
            there.send_away(greediest)?;
        }
        let number = there.next;
        there.next += 1;
        let (send_away, sent_away) = oneshot::channel();
        there.all.insert(number, One { from, kept: false, send_away });
        Some((Place { number, there: Arc::clone(&self.there) }, SentAway(sent_away)))
    }
}

impl There {
    /// The address that has most of those who may be sent away; of several the one that came first.
    fn greediest(&self) -> Option<IpAddr> {
        let mut counts: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (number, one) in self.all.iter().filter(|(_, one)| !one.kept) {
            counts.entry(one.from).or_insert((0, *number)).0 += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, (count, first))| (*count, std::cmp::Reverse(*first)));
        most.map(|(from, _)| from)
    }

    /// Sends the oldest of an address away.
    fn send_away(&mut self, of: IpAddr) -> Option<()> {
        let mut could = self.all.iter().filter(|(_, one)| !one.kept && one.from == of);
        let oldest = *could.next()?.0;
        let one = self.all.remove(&oldest)?;
        // It may have ended by itself this moment.
        let _gone = one.send_away.send(());
        Some(())
    }
}

impl Place {
    /// From now on it is not sent away, or may be again.
    pub fn keep(&self, kept: bool) {
        if let Some(one) = lock(&self.there).all.get_mut(&self.number) {
            one.kept = kept;
        }
    }

    /// Whether it is not sent away.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        lock(&self.there).all.get(&self.number).is_some_and(|one| one.kept)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.there).all.remove(&self.number);
    }
}

impl SentAway {
    /// Comes back when it has to go; never, if its place was given back.
    pub async fn told(self) {
        if self.0.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn lock(there: &Mutex<There>) -> MutexGuard<'_, There> {
    there.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the part of an address that counts: of IPv6 the first 64 bits, since whoever has one of
/// them has all.
fn machine(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(six) => {
            let network = six.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn is_told(sent_away: &mut SentAway) -> bool {
        sent_away.0.try_recv().is_ok()
    }

    #[test]
    fn who_comes_gets_in_and_the_oldest_of_the_greediest_goes() {
        let strangers = Strangers::new(4, 3);
        let enter = |last| strangers.enter(ip(last)).unwrap();
        let (_a, mut a) = enter(1);
        let (_b, mut b) = enter(2);
        let (_c, mut c) = enter(2);
        let (_d, mut d) = enter(2);
        assert!(![&mut a, &mut b, &mut c, &mut d].into_iter().any(is_told));
        // One address has its number.
        let (e_place, mut e) = enter(2);
        assert!(is_told(&mut b) && !is_told(&mut a) && !is_told(&mut c));
        // All places are taken, most of them by that one.
        let (_f, _) = enter(3);
        assert!(is_told(&mut c) && !is_told(&mut a));
        // Whoever is done leaves room.
        drop(e_place);
        let (_g, _) = enter(4);
        assert!(!is_told(&mut a) && !is_told(&mut d) && !is_told(&mut e));
    }

    #[test]
    fn who_is_kept_is_not_sent_away_until_it_is_kept_no_more() {
        let strangers = Strangers::new(2, 1);
        let (one, mut told) = strangers.enter(ip(1)).unwrap();
        one.keep(true);
        assert!(one.is_kept() && strangers.enter(ip(1)).is_none() && !is_told(&mut told));
        let (two, _) = strangers.enter(ip(2)).unwrap();
        two.keep(true);
        assert!(strangers.enter(ip(3)).is_none());
        one.keep(false);
        assert!(strangers.enter(ip(3)).is_some() && is_told(&mut told));
    }

    #[test]
    fn who_has_one_address_of_a_network_of_ipv6_has_all_of_them() {
        let strangers = Strangers::new(8, 1);
        let (_one, mut one) = strangers.enter("fd00::1:2:3:4".parse().unwrap()).unwrap();
        let _two = strangers.enter("fd00::5:6:7:8".parse().unwrap()).unwrap();
        assert!(is_told(&mut one));
        let (_four, mut four) = strangers.enter("::ffff:10.0.0.1".parse().unwrap()).unwrap();
        let _other = strangers.enter(ip(2)).unwrap();
        assert!(!is_told(&mut four));
        let _same = strangers.enter(ip(1)).unwrap();
        assert!(is_told(&mut four));
    }
}
