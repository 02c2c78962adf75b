//! The steps of a plan, in turns. Domains that start one after the other in a plan start together,
//! each as soon as those on which it stands are ready; domains that stop do so as soon as those
//! that stand on them have ended. Every other step is a turn by itself.

use super::change::{end, perform, start};
use super::{Change, Domains, Teller};
use admin::Progress;
use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use topology::{Domain, Step, Topology};

/// Domains that start at the same time on a machine with fewer processors.
const MIN_STARTS: usize = 2;

/// The steps of a plan in turns, each with the place of its first step in the plan.
pub(super) fn turns(steps: &[Step]) -> impl Iterator<Item = (usize, &[Step])> {
    let together = |one: &Step, other: &Step| {
        matches!(
            (one, other),
            (Step::Stop { .. }, Step::Stop { .. }) | (Step::Start { .. }, Step::Start { .. })
        )
    };
    steps.chunk_by(together).scan(0, |next, turn| {
        let first = *next;
        *next += turn.len();
        Some((first, turn))
    })
}

/// A turn of a plan, as it is told.
pub(super) struct Turn<'a> {
    /// The place of its first step in the plan.
    pub(super) first: usize,
    /// Steps of the plan.
    pub(super) of: usize,
    pub(super) teller: &'a Teller,
}

impl Turn<'_> {
    /// Does the steps of the turn together. Returns the steps that failed, and why.
    pub(super) async fn take(
        &self,
        node: &Arc<Domains>,
        dc: &str,
        steps: &[Step],
        change: Option<&Change>,
    ) -> Vec<String> {
        match steps {
            [step] => {
                let begun = self.begin(0, step).await;
                let done = perform(node, dc, step, change).await;
                self.end(0, step, begun, done).await.into_iter().collect()
            }
            [Step::Start { .. }, ..] => self.start(node, dc, steps, change).await,
            steps => self.stop(node, dc, steps).await,
        }
    }

    async fn begin(&self, index: usize, step: &Step) -> Instant {
        let (step_number, what) = (self.first + index + 1, step.to_string());
        self.teller.tell(Progress::Started { step: step_number, of: self.of, what }).await;
        Instant::now()
    }

    /// Tells that a step is done; returns the words for one that failed.
    async fn end(
        &self,
        index: usize,
        step: &Step,
        begun: Instant,
        done: Result<(), String>,
    ) -> Option<String> {
        let what = step.to_string();
        if let Err(why) = done {
            return Some(format!("could not {what}: {why}"));
        }
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let step = self.first + index + 1;
        self.teller.tell(Progress::Finished { step, of: self.of, what, took_ms }).await;
        None
    }

    /// Ends domains, each as soon as those that stand on it have ended. A domain that takes its
    /// time holds up only those on which it stands.
    async fn stop(&self, node: &Arc<Domains>, dc: &str, steps: &[Step]) -> Vec<String> {
        for (index, step) in steps.iter().enumerate() {
            self.begin(index, step).await;
        }
        let begun = Instant::now();
        let order = Order::of(node.topology(dc).as_deref(), steps.iter().map(of_step).collect());
        let works = steps.iter().cloned().map(|step| {
            let (node, dc) = (Arc::clone(node), dc.to_owned());
            async move {
                let Step::Stop { domain } = &step else { return Ok(()) };
                end(&node, &dc, domain.name.as_str()).await?;
                node.apply(&dc, &step);
                Ok(())
            }
        });
        let mut stops = each_after(works.collect(), |one, before| order.stands_on(before, one));
        let mut failures = Vec::new();
        while let Some(stopped) = stops.join_next().await {
            match stopped.map(|(index, done)| (index, steps.get(index), done)) {
                Ok((index, Some(step), done)) => failures.extend(self.end(index, step, begun, done).await),
                Ok((_, None, _)) => {}
                Err(error) => failures.push(error.to_string()),
            }
        }
        failures
    }

    /// Starts domains, each as soon as those on which it stands are ready. In a change the first
    /// that fails breaks all others off, and so does the end of the change; where something is
    /// restored, each is tried.
    async fn start(
        &self,
        node: &Arc<Domains>,
        dc: &str,
        steps: &[Step],
        change: Option<&Change>,
    ) -> Vec<String> {
        steps.iter().for_each(|step| node.apply(dc, step));
        let (broken, breaks) = (watch::Sender::new(false), change.is_some());
        let domains = steps.iter().filter_map(of_step).collect();
        let mut starts = start_each(node.topology(dc).as_deref(), domains, |index, domain| {
            let (node, dc, what) =
                (Arc::clone(node), dc.to_owned(), steps.get(index).map(ToString::to_string));
            let (broken, teller) = (broken.clone(), self.teller.clone());
            let (number, of) = (self.first + index + 1, self.of);
            async move {
                let is_over = *broken.borrow();
                if is_over {
                    return None;
                }
                teller.tell(Progress::Started { step: number, of, what: what.unwrap_or_default() }).await;
                let begun = Instant::now();
                let started = start(&node, &dc, &domain, broken_off(broken.subscribe())).await;
                if started.is_err() && breaks {
                    // Before those that stand on it have their turn.
                    broken.send_replace(true);
                }
                Some((begun, started))
            }
        });
        let mut failures = Vec::new();
        loop {
            let joined = tokio::select! {
                joined = starts.join_next() => joined,
                ending = ended(change), if failures.is_empty() => {
                    failures.push(ending.problem(dc).message);
                    broken.send_replace(true);
                    continue;
                }
            };
            let (index, started) = match joined {
                None => return failures,
                Some(Ok(started)) => started,
                Some(Err(error)) => {
                    failures.push(error.to_string());
                    continue;
                }
            };
            if let (Some(step), Some((begun, done))) = (steps.get(index), started) {
                let failure = self.end(index, step, begun, done).await;
                // After the first, the others were broken off.
                if failures.is_empty() || !breaks {
                    failures.extend(failure);
                }
            }
        }
    }
}

async fn ended(change: Option<&Change>) -> super::Ending {
    match change {
        Some(change) => change.ended().await,
        None => std::future::pending().await,
    }
}

async fn broken_off(mut broken: watch::Receiver<bool>) -> String {
    let is_broken = broken.wait_for(|broken| *broken).await.is_ok();
    if !is_broken {
        // The turn is over, and with it whoever would break it off.
        return std::future::pending().await;
    }
    "another domain did not start".into()
}

/// The domains of a turn's steps, and which of them stand on which others.
struct Order {
    domains: Vec<Option<Domain>>,
    stands_on: Vec<BTreeSet<String>>,
}

impl Order {
    fn of(topology: Option<&Topology>, domains: Vec<Option<Domain>>) -> Self {
        let stands_on = |domain: &Option<Domain>| {
            let (Some(topology), Some(domain)) = (topology, domain) else { return BTreeSet::new() };
            topology.stands_on(domain).into_iter().map(str::to_owned).collect()
        };
        let stands_on = domains.iter().map(stands_on).collect();
        Self { domains, stands_on }
    }

    /// Whether the domain of step `one` needs the one of step `other`.
    fn stands_on(&self, one: usize, other: usize) -> bool {
        let at = |index: usize| self.domains.get(index).and_then(Option::as_ref);
        let (Some(domain), Some(other)) = (at(one), at(other)) else { return false };
        let needed = self.stands_on.get(one);
        domain.after.contains(&other.name)
            || needed.is_some_and(|needed| needed.contains(other.name.as_str()))
    }
}

fn of_step(step: &Step) -> Option<Domain> {
    match step {
        Step::Stop { domain } | Step::Start { domain } => Some((**domain).clone()),
        _ => None,
    }
}

/// Does `start` for domains of a topology, given in the order of their start, each as soon as it is
/// over for those on which the domain stands; for as many at a time as there are processors.
pub(super) fn start_each<T, F>(
    topology: Option<&Topology>,
    domains: Vec<Domain>,
    start: impl Fn(usize, Domain) -> F,
) -> JoinSet<(usize, T)>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let processors = std::thread::available_parallelism().map_or(MIN_STARTS, NonZero::get);
    let room = Arc::new(Semaphore::new(processors.max(MIN_STARTS)));
    let order = Order::of(topology, domains.iter().cloned().map(Some).collect());
    let works = domains.into_iter().enumerate().map(|(index, domain)| {
        let (room, work) = (Arc::clone(&room), start(index, domain));
        async move {
            let _room = room.acquire().await;
            work.await
        }
    });
    each_after(works.collect(), |one, before| order.stands_on(one, before))
}

/// Does each work as soon as those of the earlier indices for which it waits are over.
fn each_after<T, F>(works: Vec<F>, waits_for: impl Fn(usize, usize) -> bool) -> JoinSet<(usize, T)>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let over: Vec<watch::Sender<bool>> = works.iter().map(|_| watch::Sender::new(false)).collect();
    let mut all = JoinSet::new();
    for (index, (own, work)) in over.iter().zip(works).enumerate() {
        let earlier = over.iter().enumerate().take(index).filter(|(before, _)| waits_for(index, *before));
        let mut waits: Vec<watch::Receiver<bool>> = earlier.map(|(_, over)| over.subscribe()).collect();
        let own = own.clone();
        all.spawn(async move {
            for before in &mut waits {
                // One whose task is gone is waited for no more.
                let _over = before.wait_for(|over| *over).await;
            }
            let done = work.await;
            own.send_replace(true);
            (index, done)
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test]
    async fn each_waits_for_those_that_it_stands_on_and_for_nobody_else() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let gate = Arc::new(Semaphore::new(0));
        // 1 stands on 0, which waits for 2, which stands on nobody.
        let waits_for = |one: usize, before: usize| (one, before) == (1, 0);
        let works = (0..3).map(|index| {
            let (order, gate) = (Arc::clone(&order), Arc::clone(&gate));
            async move {
                if index == 0 {
                    let _passed = gate.acquire().await;
                }
                order.lock().expect("nobody panics").push(index);
                gate.add_permits(1);
            }
        });
        let mut all = each_after(works.collect(), waits_for);
        while let Some(done) = all.join_next().await {
            done.expect("it ends");
        }
        assert_eq!(*order.lock().expect("nobody panics"), [2, 0, 1]);
    }
}
