//! Tokens: what lets one machine into the cluster, once, for some time. `docs/spec/joining.md` has
//! the format.
//!
//! The registry's record of a token is signed by the cluster's authority: whoever can write into
//! the registry can remove a token, and make none
//! (`docs/adr/0071-what-the-registry-says-is-signed.md`).

use super::clock::APART_S;
use super::{Cluster, NODES, NodeRecord, authority, blocking, failed, get_json, to_json, unix_s};
use admin::{Code, Problem, TokenRequest, TokenView};
use registry::{Expected, Registry, RegistryError};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use trust::{About, Authority, Fingerprint};

/// Keys of tokens.
pub(super) const TOKENS: &str = "token/";
/// The beginning of a token: the version of its format.
const PREFIX: &str = "tmb1";
/// Bytes of what names a token in the registry.
const ID_BYTES: usize = 8;
/// Bytes of what only its bearer knows: 128 bits can't be guessed.
const SECRET_BYTES: usize = 16;
/// How long a token is good for, where nobody says otherwise: an hour.
pub(crate) const DEFAULT_TTL_S: u64 = 3_600;
/// The longest: a week. A token that lies about longer is found by somebody.
const MAX_TTL_S: u64 = 7 * 86_400;
/// Tokens that may be unused at a time.
const MAX_TOKENS: usize = 1_024;

/// A token as it is passed on.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) authority: Fingerprint,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}.{}.{}.{}", self.id, self.secret, self.authority)
    }
}

impl Token {
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        let bad = |why: &str| {
            Problem::new(Code::BadRequest, format!("this is no token: {why}"))
                .help("copy the whole line that `tombolo node token` printed")
        };
        let mut parts = text.trim().split('.');
        if parts.next() != Some(PREFIX) {
            return Err(bad(&format!("it does not begin with {PREFIX}.")));
        }
        let (Some(id), Some(secret), Some(authority), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad("it has not four parts"));
        };
        let is = |text: &str, bytes: usize| {
            text.len() == 2 * bytes && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        if !is(id, ID_BYTES) || !is(secret, SECRET_BYTES) || !is(authority, 32) {
            return Err(bad("a part of it was cut or changed"));
        }
        let mut fingerprint = [0; 32];
        for (byte, digits) in fingerprint.iter_mut().zip(authority.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad("a part of it was changed"))?;
        }
        Ok(Self { id: id.into(), secret: secret.into(), authority: Fingerprint(fingerprint) })
    }

    fn hash(&self) -> String {
        hash(&self.secret)
    }
}

fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random(bytes: usize) -> Result<String, Problem> {
    let mut buffer = vec![0; bytes];
    match getrandom(&mut buffer, GetRandomFlags::empty()) {
        Ok(length) if length == bytes => Ok(hex(&buffer)),
        Ok(_) => Err(failed("there is not enough randomness")),
        Err(errno) => Err(failed(format!("there is no randomness: {errno}"))),
    }
}

/// The registry's record of a token, without the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    hash: String,
    #[serde(default)]
    issued_unix_s: u64,
    expires_unix_s: u64,
    /// Whether who joins may let others join.
    may_issue: bool,
    /// The node that made it: the token ends with it.
    by: String,
    /// The node's number: a later node of that name is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    /// The authority's signature. Empty: a release wrote it that signed none.
    #[serde(default)]
    signature: String,
}

impl Record {
    /// Returns the words that the authority signs: all of the record, and the token's id.
    fn words(&self, id: &str) -> String {
        let Self { hash, issued_unix_s, expires_unix_s, may_issue, by, number, signature: _ } = self;
        let number = number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        format!("{id}\n{hash}\n{issued_unix_s}\n{expires_unix_s}\n{may_issue}\n{by}\n{number}")
    }

    fn signed(self, id: &str, authority: &Authority) -> Result<Self, Problem> {
        let signature = authority.say(About::Token, &self.words(id)).map_err(failed)?;
        Ok(Self { signature, ..self })
    }
}

/// The permissions of a token that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) may_issue: bool,
}

/// Makes a token.
pub(crate) async fn make(cluster: &Cluster, request: TokenRequest) -> Result<TokenView, Problem> {
    let ttl_s = request.ttl_s.unwrap_or(DEFAULT_TTL_S);
    if !(1..=MAX_TTL_S).contains(&ttl_s) {
        return Err(Problem::new(
            Code::BadRequest,
            format!("a token is good for 1 s to {} days", MAX_TTL_S / 86_400),
        ));
    }
    let here = cluster.clone();
    let (token, expires_unix_s) = blocking(move || {
        let (etcd, me) = (here.etcd(), here.me());
        let authority = authority::own(etcd, here.trust_folder())?.ok_or_else(|| {
            let what = format!("node {me} may not let others join, and so makes no tokens");
            Problem::new(Code::Refused, what)
                .help("say it at a node that has the authority: `tombolo node show` says so of each")
        })?;
        if here.identity().issuer() != Some(authority.fingerprint()) {
            let what = "the registry does not name the authority that issued this node's certificate";
            return Err(
                Problem::new(Code::Refused, what).help("`tombolo node authority` says what that may be")
            );
        }
        super::clock::check(&here)?;
        let node = get_json::<NodeRecord>(etcd, &format!("{NODES}{me}"))?;
        let (node, _) =
            node.ok_or_else(|| Problem::new(Code::Refused, "this node was removed from the cluster"))?;
        let authority_is = authority.fingerprint();
        let token = Token { id: random(ID_BYTES)?, secret: random(SECRET_BYTES)?, authority: authority_is };
        let issued_unix_s = unix_s();
        let record = Record {
            hash: token.hash(),
            issued_unix_s,
            expires_unix_s: issued_unix_s.saturating_add(ttl_s),
            may_issue: request.may_issue,
            by: me.to_owned(),
            number: node.number,
            signature: String::new(),
        };
        let record = record.signed(&token.id, &authority)?;
        drop_old(etcd)?;
        enter(etcd, &format!("{TOKENS}{}", token.id), &record, authority_is)?;
        Ok((token, record.expires_unix_s))
    })
    .await?;
    let address = cluster.config().address.to_string();
    Ok(TokenView { token: token.to_string(), expires_unix_s, ttl_s, address })
}

/// Writes a token down that names this authority. It is looked at once more after that: who
/// replaces the authority deletes all tokens before it is done, and so deletes this one, or this
/// sees it.
fn enter(registry: &dyn Registry, key: &str, record: &Record, authority: Fingerprint) -> Result<(), Problem> {
    registry.put(key, &to_json(record)?, Expected::Absent).map_err(failed)?;
    let settled = authority::settled(registry);
    if settled.as_ref().is_ok_and(|settled| *settled == authority) {
        return Ok(());
    }
    registry.delete(key, Expected::Anything).map_err(failed)?;
    Err(settled.err().unwrap_or_else(|| {
        Problem::new(Code::Taken, "the cluster's authority was replaced just now").help("make another token")
    }))
}

/// Forgets tokens that nobody used in time; refuses when there are too many others.
fn drop_old(registry: &dyn Registry) -> Result<(), Problem> {
    let mut kept = 0;
    for (key, entry) in registry.list(TOKENS).map_err(failed)? {
        let over =
            serde_json::from_slice::<Record>(&entry.value).map_or(true, |r| r.expires_unix_s < unix_s());
        if !over {
            kept += 1;
        } else if let Err(error) = registry.delete(&key, Expected::Revision(entry.revision))
            && !matches!(error, RegistryError::Conflict { .. })
        {
            return Err(failed(error));
        }
    }
    if kept < MAX_TOKENS {
        return Ok(());
    }
    Err(Problem::new(Code::Failed, format!("{kept} tokens are unused already"))
        .help("wait until some expire"))
}

/// Looks at a token, and says what it allows. Nothing is used up.
pub(crate) fn look(
    registry: &dyn Registry,
    authority: &Authority,
    (id, secret): (&str, &str),
    now: u64,
) -> Result<(Accepted, u64), Problem> {
    check_form(id, secret)?;
    let found = get_json::<Record>(registry, &format!("{TOKENS}{id}"))?;
    let (record, revision) = found.ok_or_else(unknown)?;
    // Hashes are compared, so how far they agree says nothing of the secret.
    if record.hash != hash(secret) {
        return Err(unknown());
    }
    let said =
        trust::has_said(&authority.certificate_pem(), About::Token, &record.words(id), &record.signature);
    if !said.map_err(failed)? {
        return Err(refused(
            "what the registry holds of the token is not signed by the cluster's authority: an older release wrote it, or somebody who can write \
             into etcd",
        ));
    }
    check_time(&record, now)?;
    let maker = get_json::<NodeRecord>(registry, &format!("{NODES}{}", record.by))?;
    if maker.is_none_or(|(maker, _)| maker.number != record.number) {
        return Err(refused(&format!(
            "node {}, which made the token, was removed from the cluster",
            record.by
        )));
    }
    Ok((Accepted { may_issue: record.may_issue }, revision))
}

/// Refuses what no token can be, before anybody is asked.
pub(crate) fn check_form(id: &str, secret: &str) -> Result<(), Problem> {
    let is =
        |text: &str, bytes: usize| text.len() == 2 * bytes && text.bytes().all(|b| b.is_ascii_alphanumeric());
    if is(id, ID_BYTES) && is(secret, SECRET_BYTES) { Ok(()) } else { Err(unknown()) }
}

fn check_time(record: &Record, now: u64) -> Result<(), Problem> {
    let Record { issued_unix_s: issued, expires_unix_s: expires, .. } = *record;
    if expires < now {
        return Err(refused(&format!(
            "the token expired {} s ago by the clock of the node that was asked; if it is younger than that, the clocks of the nodes \
             differ: set them",
            now - expires
        )));
    }
    if issued > now.saturating_add(APART_S) {
        return Err(refused(&format!(
            "node {} made the token {} h after now, by the clock of the node that was asked: one of the two clocks is wrong; set it",
            record.by,
            (issued - now) / 3_600
        )));
    }
    if expires.saturating_sub(issued) > MAX_TTL_S {
        return Err(refused(&format!("the token is good for longer than {} days", MAX_TTL_S / 86_400)));
    }
    Ok(())
}

fn refused(why: &str) -> Problem {
    Problem::new(Code::Refused, why.to_owned()).help("make another: `tombolo node token`")
}

fn unknown() -> Problem {
    refused("the token is not known here: it was used already, has expired, or was never one of this cluster")
}

/// The tokens that a node made end with it. One that it is writing down at this moment is refused
/// when it is used.
pub(super) fn end_those_of(registry: &dyn Registry, node: &str) -> Result<(), Problem> {
    for (key, entry) in registry.list(TOKENS).map_err(failed)? {
        if serde_json::from_slice::<Record>(&entry.value).map_or(true, |record| record.by == node) {
            registry.delete(&key, Expected::Anything).map_err(failed)?;
        }
    }
    Ok(())
}

/// Uses a token up: of those who try at a time, one does.
pub(crate) fn consume(registry: &dyn Registry, id: &str, revision: u64) -> Result<(), Problem> {
    match registry.delete(&format!("{TOKENS}{id}"), Expected::Revision(revision)) {
        Ok(true) => Ok(()),
        Ok(false) | Err(RegistryError::Conflict { .. }) => {
            Err(Problem::new(Code::Refused, "the token was used by somebody else just now")
                .help("make another for each machine: `tombolo node token`"))
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;
    use registry::Memory;

    /// A registry with the nodes that made tokens, and their authority.
    fn cluster() -> (Memory, Authority) {
        let registry = Memory::default();
        super::super::join::enter(&registry, &record("a", "10.0.0.1:7420")).unwrap();
        (registry, Authority::new("lab", std::time::SystemTime::now()).unwrap())
    }

    fn made(token: &Token, issued_unix_s: u64, ttl_s: u64) -> Record {
        Record {
            hash: token.hash(),
            issued_unix_s,
            expires_unix_s: issued_unix_s + ttl_s,
            may_issue: true,
            by: "a".into(),
            number: Some(1),
            signature: String::new(),
        }
    }

    fn put(registry: &Memory, token: &Token, record: &Record) {
        let key = format!("{TOKENS}{}", token.id);
        registry.put(&key, &to_json(record).unwrap(), Expected::Anything).unwrap();
    }

    fn token() -> Token {
        let (id, secret) = (random(ID_BYTES).unwrap(), random(SECRET_BYTES).unwrap());
        Token { id, secret, authority: Fingerprint([7; 32]) }
    }

    #[test]
    fn a_token_is_what_was_printed_and_nothing_less() {
        let token = token();
        let text = token.to_string();
        assert_eq!(Token::parse(&format!(" {text}\n")).unwrap(), token);
        let cut = &text[..text.len() - 1];
        let more = format!("{text}.x");
        let other = text.replacen("tmb1", "tmb2", 1);
        let capital = text.to_uppercase();
        for bad in ["", "hello", "tmb1", "tmb1...", cut, &more, &other, &capital] {
            let refusal = Token::parse(bad).unwrap_err();
            assert!(refusal.message.contains("no token") && refusal.help.is_some(), "{bad}: {refusal}");
        }
        assert!(!format!("{token:?}").contains(&token.secret));
    }

    #[test]
    fn a_token_is_used_once_by_who_knows_it_in_time() {
        let (registry, authority) = cluster();
        let (token, other) = (token(), token());
        put(&registry, &token, &made(&token, 0, 1_000).signed(&token.id, &authority).unwrap());
        let look = |id: &str, secret: &str, now| look(&registry, &authority, (id, secret), now);
        let wrong = look(&token.id, &other.secret, 900).unwrap_err();
        let unknown = look(&other.id, &other.secret, 900).unwrap_err();
        assert_eq!(wrong, unknown, "who guesses learns nothing");
        assert_eq!(look("../x", "", 900).unwrap_err(), unknown);
        let late = look(&token.id, &token.secret, 1_010).unwrap_err();
        assert!(late.message.contains("expired 10 s ago"), "{late}");
        let (accepted, revision) = look(&token.id, &token.secret, 1_000).unwrap();
        assert!(accepted.may_issue);
        consume(&registry, &token.id, revision).unwrap();
        assert!(consume(&registry, &token.id, revision).is_err());
        let used = look(&token.id, &token.secret, 900).unwrap_err();
        assert!(used.message.contains("used already"), "{used}");
    }

    /// Somebody who can write into etcd put a token there of its own, with the right to let others
    /// join, and was handed the authority's key.
    #[test]
    fn what_the_registry_says_of_a_token_is_nothing_without_the_authoritys_signature() {
        let (registry, authority) = cluster();
        let token = token();
        let now = unix_s();
        let good = made(&token, now, 600);
        let signed = |record: Record| record.signed(&token.id, &authority).unwrap();
        let with = |record: &Record| {
            put(&registry, &token, record);
            look(&registry, &authority, (&token.id, &token.secret), now)
        };
        let lesser = signed(Record { may_issue: false, ..good.clone() });
        assert!(!with(&lesser).unwrap().0.may_issue);
        let other = Authority::new("lab", std::time::SystemTime::now()).unwrap();
        for forged in [
            good.clone(),
            good.clone().signed(&token.id, &other).unwrap(),
            good.clone().signed("00", &authority).unwrap(),
            Record { may_issue: true, ..lesser.clone() },
            Record { expires_unix_s: now + 700, ..lesser.clone() },
            Record { issued_unix_s: now - 1, ..lesser.clone() },
            Record { by: "b".into(), ..lesser.clone() },
            Record { number: None, ..lesser },
        ] {
            let refusal = with(&forged).unwrap_err();
            assert!(refusal.message.contains("not signed by the cluster's authority"), "{refusal}");
        }
        // What a release wrote that signed nothing.
        let older = serde_json::json!({ "hash": token.hash(), "expires_unix_s": now + 9, "may_issue": true, "by": "a" });
        registry
            .put(&format!("{TOKENS}{}", token.id), &to_json(&older).unwrap(), Expected::Anything)
            .unwrap();
        let refusal = look(&registry, &authority, (&token.id, &token.secret), now).unwrap_err();
        assert!(refusal.message.contains("older release") && refusal.help.is_some(), "{refusal}");
        // Times that no node writes.
        for (odd, why) in [
            (made(&token, now, MAX_TTL_S + 1), "longer than 7 days"),
            (made(&token, now + APART_S + 3_700, 600), "one of the two clocks is wrong"),
        ] {
            let refusal = with(&signed(odd)).unwrap_err();
            assert!(refusal.message.contains(why), "{refusal}");
        }
        assert!(with(&signed(good)).unwrap().0.may_issue);
    }

    /// A node that was removed came in again by a token that it had made before.
    #[test]
    fn a_token_ends_with_the_node_that_made_it() {
        let (registry, authority) = cluster();
        super::super::join::enter(&registry, &record("b", "10.0.0.2:7420")).unwrap();
        let (of_a, of_b, now) = (token(), token(), unix_s());
        put(&registry, &of_a, &made(&of_a, now, 600).signed(&of_a.id, &authority).unwrap());
        let made_by_b = Record { by: "b".into(), ..made(&of_b, now, 600) };
        let made_by_b = made_by_b.signed(&of_b.id, &authority).unwrap();
        put(&registry, &of_b, &made_by_b);
        let look = |token: &Token| look(&registry, &authority, (&token.id, &token.secret), now);
        look(&of_b).unwrap();
        super::super::join::leave(&registry, "b").unwrap();
        assert!(registry.get(&format!("{TOKENS}{}", of_b.id)).unwrap().is_none());
        look(&of_a).unwrap();
        // It knows what lets it into etcd, and puts it back; another machine may have its name by
        // now.
        put(&registry, &of_b, &made_by_b);
        assert!(look(&of_b).unwrap_err().message.contains("node b, which made the token, was removed"));
        let again = NodeRecord { number: Some(2), ..record("b", "10.0.0.2:7420") };
        super::super::join::enter(&registry, &again).unwrap();
        assert!(look(&of_b).unwrap_err().message.contains("was removed"));
    }

    #[test]
    fn of_many_who_use_one_token_one_gets_in() {
        let (registry, authority) = cluster();
        let token = token();
        put(&registry, &token, &made(&token, 0, 1_000).signed(&token.id, &authority).unwrap());
        let (_, revision) = look(&registry, &authority, (&token.id, &token.secret), 1).unwrap();
        let won = std::thread::scope(|scope| {
            let tries: Vec<_> =
                (0..8).map(|_| scope.spawn(|| consume(&registry, &token.id, revision).is_ok())).collect();
            tries.into_iter().map(|one| one.join().unwrap()).filter(|won| *won).count()
        });
        assert_eq!(won, 1);
    }

    #[test]
    fn a_token_that_names_an_authority_of_before_is_not_left_lying_about() {
        let registry = Memory::default();
        let now = trust::Authority::new("lab", std::time::SystemTime::now()).unwrap();
        let record = authority::Record {
            cluster: "lab".into(),
            certificate_pem: now.certificate_pem(),
            successors: Vec::new(),
        };
        registry.put(super::super::AUTHORITY, &to_json(&record).unwrap(), Expected::Absent).unwrap();
        let token = made(&token(), 0, 1);
        enter(&registry, "token/1", &token, now.fingerprint()).unwrap();
        let refusal = enter(&registry, "token/2", &token, Fingerprint([7; 32])).unwrap_err();
        assert!(refusal.message.contains("replaced just now"), "{refusal}");
        let left: Vec<_> = registry.list(TOKENS).unwrap().into_iter().map(|(key, _)| key).collect();
        assert_eq!(left, ["token/1"]);
    }

    #[test]
    fn old_tokens_make_room() {
        let registry = Memory::default();
        let (old, new) = (token(), token());
        put(&registry, &old, &made(&old, unix_s() - 11, 10));
        put(&registry, &new, &made(&new, unix_s(), 100));
        drop_old(&registry).unwrap();
        let left = registry.list(TOKENS).unwrap();
        assert_eq!(left.len(), 1);
        assert!(left[0].0.ends_with(&new.id));
    }
}
