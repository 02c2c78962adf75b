//! The authority is followed, and replaced when somebody says so, as long as the daemon lives.

use super::authority::{self, Part, Pending, RENEWALS};
use super::keep::{LOOK_AROUND, RELIST_PAUSE};
use super::serve::Caller;
use super::{AUTHORITY, Cluster, blocking, failed};
use crate::admin::{AuthorityView, Problem, Said};
use hyper::Method;
use registry::{Registry, Watch};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use trust::{Authority, Fingerprint};

/// Where a node asks for the next authority's key.
pub(crate) const PATH: &str = "/v1/authority";

/// The longest pause after something failed again.
const MAX_PAUSE: Duration = Duration::from_secs(8);

/// The request of a node that has the key of the authority that is replaced.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ask {
    proof_pem: String,
}

/// The answer to it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Handed {
    authority_pem: String,
}

impl Cluster {
    /// With this node's part in a replacement. It may take seconds: not for the event loop.
    fn part<T>(
        &self,
        fetch: &dyn Fn(&str, Fingerprint) -> Result<Authority, Problem>,
        with: impl FnOnce(&Part<'_>) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let changed = || self.trust_changed();
        with(&Part {
            registry: self.etcd(),
            identity: self.identity(),
            folder: self.trust_folder(),
            changed: &changed,
            fetch,
        })
    }

    /// Follows the authority, and does this node's part when it is replaced.
    pub(super) fn keep_authority(&self, runtime: &Handle, over: &AtomicBool) {
        let (mut pending, mut said, mut pause) = (None, String::new(), RELIST_PAUSE);
        while !over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let Err(problem) = self.keep_authority_once(runtime, &mut pending, over) else { continue };
            if problem.message != said {
                tracing::warn!(
                    error = problem.message,
                    "this node can't do its part about the cluster's authority for now"
                );
                said = problem.message;
            }
            // What went on for longer than that has been well in between.
            pause = if begun.elapsed() > MAX_PAUSE { RELIST_PAUSE } else { (pause * 2).min(MAX_PAUSE) };
            let until = Instant::now() + pause;
            while !over.load(Ordering::Relaxed) && Instant::now() < until {
                // tidy(sleep): nobody tells when a registry, or another node, is back.
                std::thread::sleep(LOOK_AROUND);
            }
        }
    }

    /// Until the daemon ends, or something fails.
    fn keep_authority_once(
        &self,
        runtime: &Handle,
        pending: &mut Option<Pending>,
        over: &AtomicBool,
    ) -> Result<(), Problem> {
        // What changes after this is heard.
        let watch = |prefix: &str| self.etcd().watch(prefix).map_err(failed);
        let (record, renewals) = (watch(AUTHORITY)?, watch(RENEWALS)?);
        let fetch = |proof: &str, next| runtime.block_on(self.fetch_authority(proof, next));
        while !over.load(Ordering::Relaxed) {
            let names = self.names();
            let under_way = {
                let _changing = self.inner.certificate.blocking_lock();
                // Who this machine is going to be is written by who joins.
                !self.is_over() && self.part(&fetch, |part| part.step(pending))?
            };
            let mut changed = false;
            while !changed && !over.load(Ordering::Relaxed) {
                changed = heard(&record, LOOK_AROUND)?;
                let asked = heard(&renewals, Duration::ZERO)?;
                // Who has left is not waited for any more.
                changed |= under_way && (asked || names != self.names());
            }
        }
        Ok(())
    }

    async fn fetch_authority(&self, proof: &str, next: Fingerprint) -> Result<Authority, Problem> {
        let ask = Ask { proof_pem: proof.to_owned() };
        let mut why = Vec::new();
        for member in self.nodes().into_iter().filter(|member| member.alive && member.name != self.me()) {
            let handed = self.call::<Handed>(&member.name, Method::POST, PATH, &ask).await;
            // Whoever answers in its place, with the authority of before, is not the last who is
            // asked.
            let handed = handed.and_then(|handed| Authority::from_pem(&handed.authority_pem).map_err(failed));
            match handed {
                Ok(authority) if authority.fingerprint() == next => return Ok(authority),
                Ok(_) => why.push(format!("{}: it is not the next authority's key", member.name)),
                Err(problem) => why.push(format!("{}: {}", member.name, problem.message)),
            }
        }
        Err(failed(format!("no node hands over the next authority's key ({})", why.join("; "))))
    }
}

/// Whether something has changed; all that has is heard.
fn heard(watch: &Watch, patience: Duration) -> Result<bool, Problem> {
    let mut any = false;
    let mut patience = patience;
    while watch.next(patience).map_err(failed)?.is_some() {
        (any, patience) = (true, Duration::ZERO);
    }
    Ok(any)
}

fn nobody(_proof: &str, _next: Fingerprint) -> Result<Authority, Problem> {
    Err(failed("nothing is fetched here"))
}

/// Begins to replace the authority; or has the registry name it again, where that was `restored`.
pub(crate) async fn replace(cluster: &Cluster, restored: bool) -> Result<Said, Problem> {
    let cluster = cluster.clone();
    blocking(move || {
        let _changing = cluster.inner.certificate.blocking_lock();
        cluster.part(&nobody, |part| part.replace(restored)).map(|said| Said { said })
    })
    .await
}

/// Returns the view of `node authority`.
pub(crate) async fn view(cluster: &Cluster) -> Result<AuthorityView, Problem> {
    let cluster = cluster.clone();
    blocking(move || {
        let alive = |node: &str| cluster.member(node).is_some_and(|member| member.alive);
        cluster.part(&nobody, |part| part.view(&alive))
    })
    .await
}

/// Hands the next authority's key over, to who has that of the one before.
pub(crate) async fn hand_over(cluster: &Cluster, caller: Caller, ask: Ask) -> Result<Handed, Problem> {
    let cluster = cluster.clone();
    blocking(move || {
        let authority_pem =
            cluster.part(&nobody, |part| authority::hand_over(part, &caller.shown, &ask.proof_pem))?;
        Ok(Handed { authority_pem })
    })
    .await
}
