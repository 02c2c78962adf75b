//! The cluster's authority as the registry has it, and a node's part in its replacement.
//! `docs/spec/joining.md` has the steps, and `docs/adr/0054-*` says why they are these.

use super::issued::Purpose;
use super::token::TOKENS;
use super::{AUTHORITY, NODES, NodeRecord, REVOKED, failed, get_json, rotate, to_json, unix_s};
use admin::{AuthorityView, Code, Problem, ReplacementView, WaitsFor};
use registry::{Expected, Registry, RegistryError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;
use trust::{About, Authority, Fingerprint, Identity, Request, TrustError};

/// Keys of what nodes ask of the next authority, and are given.
pub(super) const RENEWALS: &str = "renewal/";
/// Authorities that are believed at a time: one, and those that were begun to take its place. Nodes
/// believe no more than that.
const MAX_BELIEVED: usize = 4;

/// The registry's record of the authority, at `cluster/ca`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) cluster: String,
    pub(super) certificate_pem: String,
    /// The authorities that were begun to take its place; the last one does. Empty but while it is
    /// replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) successors: Vec<Successor>,
}

/// An authority that is to take the place of the one that there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Successor {
    certificate_pem: String,
    /// The node that made it.
    by: String,
    since_unix_s: u64,
    /// By the authority whose place it is to take. Empty: a release wrote it that signed none.
    #[serde(default)]
    signature: String,
}

impl Successor {
    /// Returns the words that the authority signs whose place it takes.
    fn words(&self, cluster: &str) -> Result<String, Problem> {
        let next = fingerprint(&self.certificate_pem)?;
        Ok(format!("{cluster}\n{next}\n{}\n{}", self.by, self.since_unix_s))
    }
}

/// A node's request to the next authority, at `renewal/NODE`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Renewal {
    /// The fingerprint of the authority, which the node that asks believes.
    authority: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    request_pem: String,
    /// The certificate that the node shows, and its signature of the request: otherwise whoever can
    /// write into the registry would be given any node's certificate.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    shown_pem: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    signature: String,
    /// The certificate that it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chain_pem: Option<String>,
    /// The node shows that, and has the authority's key if it had the one before.
    #[serde(default)]
    shown: bool,
}

impl Record {
    /// Returns all authorities that are believed, as PEM.
    fn believed_pem(&self) -> String {
        let next = self.successors.iter().map(|next| next.certificate_pem.as_str());
        std::iter::once(self.certificate_pem.as_str()).chain(next).collect()
    }
}

fn fingerprint(pem: &str) -> Result<Fingerprint, Problem> {
    let all = Fingerprint::all_of_pem(pem).map_err(failed)?;
    all.first().copied().ok_or_else(|| failed("the registry has no certificate of the authority"))
}

/// The record, and its revision.
fn read(registry: &dyn Registry) -> Result<(Record, u64), Problem> {
    get_json(registry, AUTHORITY)?
        .ok_or_else(|| failed("the registry says nothing of the cluster's authority"))
}

/// Returns the authority's fingerprint, where it is not about to be replaced: a node issues or
/// shows anything by it only then.
pub(super) fn settled(registry: &dyn Registry) -> Result<Fingerprint, Problem> {
    let (record, _) = read(registry)?;
    if record.successors.is_empty() {
        return fingerprint(&record.certificate_pem);
    }
    Err(Problem::new(Code::Taken, "the cluster's authority is being replaced")
        .help("`tombolo node authority` says what that waits for; try again when it is done"))
}

/// The authority with its key, if this node has it, and it is the one that the cluster has.
pub(super) fn own(registry: &dyn Registry, folder: &Path) -> Result<Option<Authority>, Problem> {
    let settled = settled(registry)?;
    let authority = Authority::load(folder).map_err(failed)?;
    Ok(authority.filter(|authority| authority.fingerprint() == settled))
}

/// The request of this daemon with its words: no two signatures are the same.
#[derive(Debug)]
pub(super) struct Pending {
    request: Request,
    asked: Renewal,
}

/// A node's part.
pub(super) struct Part<'c> {
    pub(super) registry: &'c dyn Registry,
    pub(super) identity: &'c Identity,
    pub(super) folder: &'c Path,
    /// Said when this node shows or believes something else, and has written it down.
    pub(super) changed: &'c dyn Fn(),
    /// Asks the nodes for the key of this authority, with the proof that this node has the key of
    /// the one before.
    pub(super) fetch: &'c dyn Fn(&str, Fingerprint) -> Result<Authority, Problem>,
}

impl Part<'_> {
    /// Begins. Says what is so then. `restored`: the registry was put back to before the authority
    /// was replaced, and is to name this node's again.
    pub(super) fn replace(&self, restored: bool) -> Result<String, Problem> {
        let me = self.identity.node();
        if !self.is_member()? {
            return Err(Problem::new(Code::Refused, "this node was removed from the cluster"));
        }
        let (mut record, revision) = read(self.registry)?;
        let current = fingerprint(&record.certificate_pem)?;
        self.promote(&record)?;
        if restored {
            return self.name_again(&record, revision);
        }
        let own = Authority::load(self.folder).map_err(failed)?;
        let own = own.filter(|own| own.fingerprint() == current).ok_or_else(|| {
            Problem::new(Code::Refused, format!("node {me} has not the cluster's authority"))
                .help("say it at a node that has: `tombolo node authority` says so of each")
        })?;
        if let Some(under_way) = record.successors.last() {
            if self.has(fingerprint(&under_way.certificate_pem)?)?.is_some() {
                return Ok("the authority is being replaced already".into());
            }
            let lives_on = self.registry.get(&format!("{NODES}{}", under_way.by)).map_err(failed)?.is_some();
            if under_way.by != me && lives_on {
                return Err(Problem::new(
                    Code::Taken,
                    format!("node {} began to replace the authority, and has the next one's key", under_way.by),
                )
                .help(format!(
                    "`tombolo node authority` says what it waits for; if that machine is gone for good, `tombolo node remove {}`, and say it again",
                    under_way.by
                )));
            }
            if record.successors.len() + 1 >= MAX_BELIEVED {
                return Err(failed(format!(
                    "{} attempts to replace the authority were given up already, and no more are believed at a time",
                    record.successors.len()
                ))
                .help("begin the cluster anew: `tombolo node remove` each node, and `tombolo node init`"));
            }
        }
        let next = Authority::new(&record.cluster, SystemTime::now()).map_err(failed)?;
        next.store_next(self.folder).map_err(failed)?;
        let mut successor = Successor {
            certificate_pem: next.certificate_pem(),
            by: me.to_owned(),
            since_unix_s: unix_s(),
            signature: String::new(),
        };
        successor.signature =
            own.say(About::Successor, &successor.words(&record.cluster)?).map_err(failed)?;
        record.successors.push(successor);
        // It may have been written though nobody says so, and then its key is needed: what is not
        // is dropped by the next step, or the next daemon.
        self.registry.put(AUTHORITY, &to_json(&record)?, Expected::Revision(revision)).map_err(failed)?;
        Ok(format!("{} is to take the place of the authority {current}", next.fingerprint()))
    }

    /// Has the registry name the authority again that this node has, and shows a certificate of.
    fn name_again(&self, record: &Record, revision: u64) -> Result<String, Problem> {
        let shown = self.identity.issuer().map(|issuer| self.has(issuer)).transpose()?;
        let own = shown.flatten().ok_or_else(|| {
            Problem::new(
                Code::Refused,
                "this node has not the key of the authority that issued its certificate",
            )
            .help("say it at a node that has")
        })?;
        if fingerprint(&record.certificate_pem)? == own.fingerprint() {
            return Err(Problem::new(Code::Refused, "the registry names this node's authority as it is"));
        }
        let until = |pem: &str| trust::authority_until_unix_s(pem).map_err(failed);
        if until(&own.certificate_pem())? < until(&record.certificate_pem)? {
            let what = "the registry's authority is younger than this node's: this machine was put back, or away, and not etcd";
            return Err(Problem::new(Code::Refused, what).help(
                "`tombolo node remove` it at another node, and `tombolo node join` it with a new token",
            ));
        }
        self.delete_tokens()?;
        let again = Record {
            cluster: record.cluster.clone(),
            certificate_pem: own.certificate_pem(),
            successors: Vec::new(),
        };
        self.registry.put(AUTHORITY, &to_json(&again)?, Expected::Revision(revision)).map_err(failed)?;
        Ok(format!("the registry names authority {} again", own.fingerprint()))
    }

    /// Whether the registry knows this node, by the certificate that it shows: another machine may
    /// have its name since it was removed.
    fn is_member(&self) -> Result<bool, Problem> {
        let node = self.registry.get(&format!("{NODES}{}", self.identity.node())).map_err(failed)?;
        let revoked = self.registry.get(&format!("{REVOKED}{}", self.identity.serial())).map_err(failed)?;
        Ok(node.is_some() && revoked.is_none())
    }

    /// Does what there is to do for this node now. Returns whether the authority is being replaced.
    /// `pending`: what was asked.
    pub(super) fn step(&self, pending: &mut Option<Pending>) -> Result<bool, Problem> {
        if !self.is_member()? {
            return Ok(false);
        }
        let (record, revision) = read(self.registry)?;
        self.believe(&record)?;
        self.promote(&record)?;
        let Some(next) = record.successors.last() else {
            *pending = None;
            self.settle()?;
            self.enter()?;
            return Ok(false);
        };
        let fingerprint = fingerprint(&next.certificate_pem)?;
        self.renew(fingerprint, pending)?;
        if let Some(authority) = self.has(fingerprint)? {
            self.issue(&authority, &record, revision)?;
        }
        Ok(true)
    }

    fn believe(&self, record: &Record) -> Result<(), Problem> {
        let believed = record.believed_pem();
        let last = record.successors.last().map(|next| fingerprint(&next.certificate_pem)).transpose()?;
        if last.is_some_and(|last| self.identity.fingerprints() == [last]) {
            // This node has seen the end already, of what a registry that was put back has not:
            // nobody believes the former again.
            return self.write_down();
        }
        if Fingerprint::all_of_pem(&believed).map_err(failed)? != self.identity.fingerprints() {
            self.check_signed(record)?;
            self.identity.trust(&believed).map_err(failed)?;
            tracing::info!(authorities = ?self.identity.fingerprints(), "this node believes others than before");
        }
        self.write_down()
    }

    /// Checks that nobody who can write into the registry makes a node believe another authority:
    /// the first is one that this node believes, and the others are signed by it.
    fn check_signed(&self, record: &Record) -> Result<(), Problem> {
        let before = self.identity.fingerprints();
        let all = Fingerprint::all_of_pem(&record.believed_pem()).map_err(failed)?;
        if !self.identity.issuer().is_some_and(|issuer| all.contains(&issuer)) {
            return Err(failed(TrustError::Stranger));
        }
        let current = fingerprint(&record.certificate_pem)?;
        if !before.contains(&current) {
            let what = format!(
                "the registry names the authority {current}, which this node has no reason to believe"
            );
            return Err(failed(what)
                .help("somebody else has written into etcd, or it was put back: `tombolo node authority`"));
        }
        for next in &record.successors {
            let its = fingerprint(&next.certificate_pem)?;
            let words = next.words(&record.cluster)?;
            let said = trust::has_said(&record.certificate_pem, About::Successor, &words, &next.signature);
            if !before.contains(&its) && !said.map_err(failed)? {
                let what = format!(
                    "the registry names {its} as the next authority, and the present one has not signed that: an older release wrote it, or somebody \
                     who can write into etcd"
                );
                return Err(failed(what)
                    .help("bring all nodes up to date, and say `tombolo node authority replace` again"));
            }
        }
        Ok(())
    }

    /// Writes the certificates that this node shows and believes into its files, and tells its
    /// proxies, before it tells others.
    fn write_down(&self) -> Result<(), Problem> {
        if !self.identity.is_stored(self.folder).map_err(failed)? {
            self.identity.store(self.folder).map_err(failed)?;
            (self.changed)();
        }
        Ok(())
    }

    /// The next one's key is the authority's, if it is that by now: also where another replacement
    /// has begun meanwhile.
    fn promote(&self, record: &Record) -> Result<(), Problem> {
        match self.next_here()? {
            Some(next) if next.fingerprint() == fingerprint(&record.certificate_pem)? => {
                Authority::settle_next(self.folder, true).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    fn next_here(&self) -> Result<Option<Authority>, Problem> {
        Authority::load_next(self.folder).map_err(failed)
    }

    /// The next authority's key, if it is here.
    fn has(&self, next: Fingerprint) -> Result<Option<Authority>, Problem> {
        // In a registry that was put back to before it was done, what is done is not.
        let found = [self.next_here()?, Authority::load(self.folder).map_err(failed)?];
        Ok(found.into_iter().flatten().find(|authority| authority.fingerprint() == next))
    }

    /// Nothing is being replaced: what is left of it is cleared away.
    fn settle(&self) -> Result<(), Problem> {
        if self.next_here()?.is_some() {
            Authority::settle_next(self.folder, false).map_err(failed)?;
        }
        let key = self.key();
        if self.registry.get(&key).map_err(failed)?.is_some() {
            self.registry.delete(&key, Expected::Anything).map_err(failed)?;
        }
        Ok(())
    }

    /// The registry knows which certificate this node shows, so that it is revoked with the node:
    /// also one that was put back.
    fn enter(&self) -> Result<(), Problem> {
        let (node, serial) = (self.identity.node(), self.identity.serial().to_string());
        let entered = get_json::<NodeRecord>(self.registry, &format!("{NODES}{node}"))?;
        if entered.is_none_or(|(entered, _)| entered.serial == serial) {
            return Ok(());
        }
        rotate::note(self.registry, node, &self.identity.chain_pem(), Purpose::Succession)?;
        rotate::enter_serial(self.registry, self.identity).map(drop)
    }

    fn key(&self) -> String {
        format!("{RENEWALS}{}", self.identity.node())
    }

    /// Asks for a certificate, takes it up, and says so.
    fn renew(&self, next: Fingerprint, pending: &mut Option<Pending>) -> Result<(), Problem> {
        let there = self.registry.get(&self.key()).map_err(failed)?;
        let there = there.and_then(|entry| serde_json::from_slice::<Renewal>(&entry.value).ok());
        let there = there.filter(|renewal| renewal.authority == next.to_string());
        if self.identity.issuer() != Some(next) {
            let asked = pending.as_ref().zip(there.as_ref());
            // What somebody else has changed is asked anew.
            let is_asked = |renewal: &Renewal| Renewal { chain_pem: None, ..renewal.clone() };
            let asked = asked.filter(|(pending, renewal)| pending.asked == is_asked(renewal));
            match asked {
                Some((pending, Renewal { chain_pem: Some(chain), .. })) => {
                    self.take_up(&pending.request, chain, next)?;
                }
                Some(_) => return Ok(()),
                // An earlier daemon's request went with it.
                None => {
                    let request = Request::new(self.identity.node()).map_err(failed)?;
                    let pem = request.pem().map_err(failed)?;
                    let words = renewal_words(self.identity.cluster(), &next.to_string(), &pem);
                    let renewal = Renewal {
                        request_pem: pem.clone(),
                        shown_pem: self.identity.chain_pem(),
                        signature: self.identity.say(About::Renewal, &words).map_err(failed)?,
                        ..Renewal::of(next)
                    };
                    self.say(&renewal)?;
                    *pending = Some(Pending { request, asked: renewal });
                    return Ok(());
                }
            }
        }
        if there.is_some_and(|renewal| renewal.shown) {
            return Ok(());
        }
        if let Some(authority) = Authority::load(self.folder).map_err(failed)?
            && self.has(next)?.is_none()
        {
            let proof = authority.proof(self.identity.node(), &self.identity.serial()).map_err(failed)?;
            (self.fetch)(&proof, next)?.store_next(self.folder).map_err(failed)?;
        }
        self.write_down()?;
        rotate::enter_serial(self.registry, self.identity)?;
        self.say(&Renewal { shown: true, ..Renewal::of(next) })
    }

    fn say(&self, renewal: &Renewal) -> Result<(), Problem> {
        self.registry.put(&self.key(), &to_json(renewal)?, Expected::Anything).map(drop).map_err(failed)
    }

    fn take_up(&self, request: &Request, chain: &str, next: Fingerprint) -> Result<(), Problem> {
        self.identity.renew_by(request, chain, next).map_err(|error| {
            failed(format!("{error}; a daemon that is started anew is given another certificate"))
        })?;
        tracing::info!(certificate = %self.identity.serial(), "this node shows a certificate of the next authority");
        self.write_down()
    }

    /// Returns the requests of the cluster's nodes so far.
    fn renewals(&self) -> Result<BTreeMap<String, Option<(Renewal, u64)>>, Problem> {
        let nodes = self.registry.list(NODES).map_err(failed)?;
        let asked = self.registry.list(RENEWALS).map_err(failed)?;
        let mut asked: BTreeMap<_, _> = asked
            .into_iter()
            // What is not understood asks for nothing.
            .filter_map(|(key, entry)| {
                let renewal = serde_json::from_slice::<Renewal>(&entry.value).ok()?;
                Some((key.strip_prefix(RENEWALS)?.to_owned(), (renewal, entry.revision)))
            })
            .collect();
        let names = nodes.iter().filter_map(|(key, _)| key.strip_prefix(NODES));
        Ok(names.map(|name| (name.to_owned(), asked.remove(name))).collect())
    }

    /// Acts for a node that has the next authority's key: it issues certificates as soon as
    /// everybody believes it, and it takes the place of the other when everybody shows one.
    fn issue(&self, next: &Authority, record: &Record, revision: u64) -> Result<(), Problem> {
        let of = next.fingerprint().to_string();
        let renewals = self.renewals()?;
        let asked: Option<Vec<_>> = renewals
            .iter()
            .map(|(node, there)| {
                let (renewal, revision) = there.as_ref().filter(|(renewal, _)| renewal.authority == of)?;
                Some((node, renewal, *revision))
            })
            .collect();
        let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(()) };
        // Each is tried; what failed is tried again.
        let mut issued = Ok(());
        for (node, renewal, at) in &asked {
            if renewal.shown || renewal.chain_pem.is_some() {
                continue;
            }
            if let Err(problem) = self.issue_one(next, node, renewal, *at) {
                let why =
                    format!("node {node} gets no certificate of the next authority: {}", problem.message);
                issued = Err(failed(why));
            }
        }
        if asked.iter().all(|(_, renewal, _)| renewal.shown) {
            self.finish(next, record, revision)?;
        }
        issued
    }

    fn issue_one(&self, next: &Authority, node: &str, asked: &Renewal, at: u64) -> Result<(), Problem> {
        let words = renewal_words(self.identity.cluster(), &asked.authority, &asked.request_pem);
        let by = self.identity.who_said(&asked.shown_pem, About::Renewal, &words, &asked.signature);
        if by.map_err(failed)?.is_none_or(|by| by.node != node) {
            return Err(failed(
                "it has not signed the request: its release is older, or somebody else has written into etcd",
            ));
        }
        let chain = next.sign(&asked.request_pem, node, SystemTime::now()).map_err(failed)?;
        rotate::note(self.registry, node, &chain, Purpose::Succession)?;
        let given = Renewal { chain_pem: Some(chain), ..asked.clone() };
        // Who asks anew meanwhile is given another.
        unless_changed(self.registry.put(
            &format!("{RENEWALS}{node}"),
            &to_json(&given)?,
            Expected::Revision(at),
        ))
    }

    fn finish(&self, next: &Authority, record: &Record, revision: u64) -> Result<(), Problem> {
        self.delete_tokens()?;
        let record = Record {
            cluster: record.cluster.clone(),
            certificate_pem: next.certificate_pem(),
            successors: Vec::new(),
        };
        unless_changed(self.registry.put(AUTHORITY, &to_json(&record)?, Expected::Revision(revision)))
    }

    /// They name the authority of before: whoever had its key could play the cluster to who joins
    /// with one.
    fn delete_tokens(&self) -> Result<(), Problem> {
        for (key, _) in self.registry.list(TOKENS).map_err(failed)? {
            self.registry.delete(&key, Expected::Anything).map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the view of `node authority`. `alive`: whether a node lives.
    pub(super) fn view(&self, alive: &dyn Fn(&str) -> bool) -> Result<AuthorityView, Problem> {
        let (record, _) = read(self.registry)?;
        let current = fingerprint(&record.certificate_pem)?;
        let own = Authority::load(self.folder).map_err(failed)?;
        let replacement = record.successors.last().map(|next| self.replacement(next, alive)).transpose()?;
        Ok(AuthorityView {
            cluster: record.cluster.clone(),
            fingerprint: current.to_string(),
            valid_until_unix_s: trust::authority_until_unix_s(&record.certificate_pem).map_err(failed)?,
            here: own.is_some_and(|own| own.fingerprint() == current),
            stranger: {
                let believed = Fingerprint::all_of_pem(&record.believed_pem()).map_err(failed)?;
                self.identity.issuer().is_none_or(|issuer| !believed.contains(&issuer))
            },
            replacement,
        })
    }

    fn replacement(
        &self,
        next: &Successor,
        alive: &dyn Fn(&str) -> bool,
    ) -> Result<ReplacementView, Problem> {
        let of = fingerprint(&next.certificate_pem)?.to_string();
        let renewals = self.renewals()?;
        let all_ask =
            renewals.values().all(|there| there.as_ref().is_some_and(|(renewal, _)| renewal.authority == of));
        let begun_by = (!renewals.contains_key(&next.by)).then(|| WaitsFor {
            node: next.by.clone(),
            alive: false,
            why: "it began this, and was removed: if it goes no further, `tombolo node authority replace` at another node begins anew".into(),
        });
        let waits = renewals.iter().filter_map(|(node, there)| {
            let renewal =
                there.as_ref().map(|(renewal, _)| renewal).filter(|renewal| renewal.authority == of);
            let why = match renewal {
                None => "it does not believe the next authority yet",
                Some(renewal) if renewal.shown => return None,
                Some(_) if !all_ask => return None,
                Some(Renewal { chain_pem: None, .. }) => "it is not given a certificate yet",
                Some(_) => "it does not show its next certificate yet",
            };
            let (alive, mut why) = (alive(node), why.to_owned());
            if !alive {
                why += &format!(": start it, or `tombolo node remove {node}`");
            }
            Some(WaitsFor { node: node.clone(), alive, why })
        });
        Ok(ReplacementView {
            fingerprint: of.clone(),
            by: next.by.clone(),
            since_unix_s: next.since_unix_s,
            waits_for: begun_by.into_iter().chain(waits).collect(),
        })
    }
}

/// Returns the words that a node signs that asks for a certificate of the next authority.
fn renewal_words(cluster: &str, authority: &str, request_pem: &str) -> String {
    format!("{cluster}\n{authority}\n{request_pem}")
}

impl Renewal {
    fn of(authority: Fingerprint) -> Self {
        Self { authority: authority.to_string(), ..Self::default() }
    }
}

/// Somebody else was first, and the next step sees it.
fn unless_changed(put: Result<u64, RegistryError>) -> Result<(), Problem> {
    match put {
        Ok(_) | Err(RegistryError::Conflict { .. }) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Hands the next authority's key to a node that has that of the one before. `shown`: by what the
/// node was believed.
pub(super) fn hand_over(part: &Part<'_>, shown: &trust::Shown, proof: &str) -> Result<String, Problem> {
    let me = part.identity.node();
    let refused = |why: String| Problem::new(Code::Refused, why);
    let (record, _) = read(part.registry)?;
    let next = record.successors.last().map(|next| fingerprint(&next.certificate_pem)).transpose()?;
    let next = next.ok_or_else(|| refused("the authority is not being replaced".into()))?;
    let authority =
        part.has(next)?.ok_or_else(|| refused(format!("node {me} has not the next authority's key")))?;
    // The one before may be in wrong hands: that is why it is replaced.
    part.identity.still(shown).map_err(|error| refused(error.to_string()))?;
    if !part.identity.is_by(shown, next) {
        return Err(refused("the caller's certificate is not of the next authority".into()));
    }
    let caller = shown.peer();
    let bad = |error: TrustError| Problem::new(Code::BadRequest, error.to_string());
    if !trust::has_authority(proof, caller, &record.certificate_pem).map_err(bad)? {
        return Err(refused(format!("node {} has not shown that it has the authority's key", caller.node)));
    }
    tracing::info!(
        node = caller.node,
        "it is given the next authority's key, for it has that of the one before"
    );
    Ok(authority.to_pem())
}

#[cfg(test)]
mod tests;
