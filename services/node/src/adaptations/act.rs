//! From what an adaptation wants to what is promised.

use super::Running;
use crate::reservations::{Book, Held};
use adaptation::{Amounts, Giver, Granted, arbitrate, give_back};
use admin::adaptation::amounts_text;
use admin::reserve::{AdaptRequest, Change};
use topology::{Adaptation, Reserve};

/// The outcome of a wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// This is so now: in words, with what it wanted and may not have, if that is more.
    Changed { to: Amounts, what: String, lacks: Option<String> },
    /// It would be so, were this no dry run.
    Would { what: String, lacks: Option<String> },
    /// Nothing is changed, and why.
    Refused(String),
}

/// Returns a domain's amounts of the resources that its adaptation moves.
pub(super) fn amounts(adaptation: &Adaptation, reserve: &Reserve, level: u32) -> Amounts {
    let settings = &adaptation.settings;
    Amounts {
        cpu_ns: settings.cpu.and(reserve.cpu.map(|cpu| cpu.budget_ns)),
        network_bits: settings.network.and(reserve.network.map(|share| share.rate_bits)),
        level,
    }
}

/// Returns the promise with these amounts.
pub(super) fn with(reserve: &Reserve, amounts: &Amounts) -> Reserve {
    let mut reserve = reserve.clone();
    if let (Some(cpu), Some(ns)) = (&mut reserve.cpu, amounts.cpu_ns) {
        cpu.budget_ns = ns;
    }
    if let (Some(network), Some(bits)) = (&mut reserve.network, amounts.network_bits) {
        network.rate_bits = bits;
        network.ceiling_bits = network.ceiling_bits.map(|ceiling| ceiling.max(bits));
    }
    reserve
}

impl Running {
    /// Gets as much of what is wanted as there is: from the node, or from those who give.
    pub(super) fn get(&self, book: &Book, held: &Held, has: Amounts, wanted: Amounts, why: &str) -> Outcome {
        let levels = self.adaptation.settings.levels;
        let text = |amounts: &Amounts| amounts_text(amounts, levels);
        if wanted == has {
            return Outcome::Refused(format!("it has all that its file allows: {}", text(&has)));
        }
        let givers = self.givers(book);
        let listed: Vec<Giver> = givers.iter().map(|(giver, _)| giver.clone()).collect();
        let vtm = self.vtm();
        let changes = |own: &Amounts, others: &[(String, Amounts)]| {
            let given = others.iter().filter_map(|(name, left)| {
                let (_, held) = givers.iter().find(|(giver, _)| giver.name == *name)?;
                Some(Change { name: name.clone(), reserve: with(&held.now, left) })
            });
            let own = Change { name: vtm.clone(), reserve: with(&held.now, own) };
            given.chain([own]).collect::<Vec<Change>>()
        };
        let period_ns = held.now.cpu.map_or(1, |cpu| cpu.period_ns);
        let fits = |own: Amounts, others: &[(String, Amounts)]| {
            // Not to ask the node where only the level is another.
            (own.cpu_ns, own.network_bits) == (has.cpu_ns, has.network_bits) && others.is_empty()
                || book.fits(&changes(&own, others)).is_ok()
        };
        let granted = arbitrate(&self.adaptation.settings, period_ns, has, wanted, &listed, fits);
        let lacks = granted.lacks.map(|wanted| {
            let why = book
                .fits(&changes(&wanted, &[]))
                .err()
                .map_or_else(String::new, |p| format!(": {}", p.message));
            let fitting = Amounts { level: has.level, ..granted.own };
            let fits = if fitting == has {
                "no more fits".to_owned()
            } else {
                format!("{} is what fits", text(&fitting))
            };
            format!("it wants {}, and {fits}{why}", text(&wanted))
        });
        if granted.own == has {
            return Outcome::Refused(lacks.unwrap_or_default());
        }
        self.make(book, held, has, &granted, changes(&granted.own, &granted.others), &givers, (lacks, why))
    }

    /// Gives back, or returns to what its file says.
    pub(super) fn give(&self, book: &Book, held: &Held, has: Amounts, to: Amounts, why: &str) -> Outcome {
        let givers = self.givers(book);
        let listed: Vec<Giver> = givers.iter().map(|(giver, _)| giver.clone()).collect();
        let period_ns = held.now.cpu.map_or(1, |cpu| cpu.period_ns);
        let back = give_back(period_ns, has, to, &listed);
        let own = Change { name: self.vtm(), reserve: with(&held.now, &to) };
        let returned = back.iter().filter_map(|(name, after)| {
            let (_, held) = givers.iter().find(|(giver, _)| giver.name == *name)?;
            Some(Change { name: name.clone(), reserve: with(&held.now, after) })
        });
        let all: Vec<Change> = [own.clone()].into_iter().chain(returned).collect();
        // Somebody else may have taken what was free; then that is all.
        let (others, changes) = if book.fits(&all).is_ok() { (back, all) } else { (Vec::new(), vec![own]) };
        self.make(book, held, has, &Granted { own: to, others, lacks: None }, changes, &givers, (None, why))
    }

    #[allow(clippy::too_many_arguments, reason = "what was decided, of whom, and from what")]
    fn make(
        &self,
        book: &Book,
        held: &Held,
        has: Amounts,
        granted: &Granted,
        changes: Vec<Change>,
        givers: &[(Giver, Held)],
        (lacks, why): (Option<String>, &str),
    ) -> Outcome {
        let levels = self.adaptation.settings.levels;
        let mut what = format!("{} to {}", amounts_text(&has, levels), amounts_text(&granted.own, levels));
        for (name, left) in &granted.others {
            let before = givers.iter().find(|(giver, _)| giver.name == *name).map(|(giver, _)| giver.has);
            let before = before.map_or_else(String::new, |before| amounts_text(&before, 1));
            what += &format!(", {name}: {before} to {}", amounts_text(left, 1));
        }
        if self.adaptation.dry_run {
            return Outcome::Would { what, lacks };
        }
        let is_of_book = changes.iter().any(|change| {
            let before = if change.name == self.vtm() { Some(&held.now) } else { None };
            before != Some(&change.reserve)
        });
        if is_of_book {
            let mut expected = vec![(self.vtm(), held.now.clone())];
            let others =
                givers.iter().filter(|(giver, _)| changes.iter().any(|change| change.name == giver.name));
            expected.extend(others.map(|(giver, held)| (giver.name.clone(), held.now.clone())));
            if let Err(problem) = book.adapt_from(
                &expected,
                &AdaptRequest { changes },
                &format!("{}: {why}", self.adaptation.name),
            ) {
                return Outcome::Refused(problem.message);
            }
        }
        Outcome::Changed { to: granted.own, what, lacks }
    }

    /// Returns the givers, as far as they are here.
    fn givers(&self, book: &Book) -> Vec<(Giver, Held)> {
        let found = self.adaptation.from.iter().filter_map(|giving| {
            let name = format!("{}/{}", self.dc, giving.domain);
            let held = book.held(&name)?;
            let has = Amounts {
                cpu_ns: giving.least_cpu_ns.and(held.now.cpu.map(|cpu| cpu.budget_ns)),
                network_bits: giving.least_network_bits.and(held.now.network.map(|share| share.rate_bits)),
                level: 0,
            };
            // One that is adapted itself asks for what it needs.
            let is_adapted = self.adapted.contains(giving.domain.as_str());
            let home = Amounts {
                cpu_ns: has.cpu_ns.and(held.file.cpu).filter(|_| !is_adapted).map(|cpu| cpu.budget_ns),
                network_bits: has
                    .network_bits
                    .and(held.file.network)
                    .filter(|_| !is_adapted)
                    .map(|share| share.rate_bits),
                level: 0,
            };
            let giver = Giver {
                name,
                has,
                home,
                period_ns: held.now.cpu.map_or(1, |cpu| cpu.period_ns),
                least_cpu_ns: giving.least_cpu_ns,
                least_network_bits: giving.least_network_bits,
            };
            Some((giver, held))
        });
        found.collect()
    }
}
