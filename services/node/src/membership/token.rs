//! Tokens: what lets one machine into the cluster, once, for some time. `docs/spec/joining.md` has the format.

use super::{Cluster, authority, blocking, failed, get_json, to_json, unix_s};
use crate::admin::{Code, Problem, TokenRequest, TokenView};
use registry::{Expected, Registry, RegistryError};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use trust::Fingerprint;

/// Keys of tokens.
pub(super) const TOKENS: &str = "token/";
/// What a token begins with: the version of its format.
const PREFIX: &str = "tmb1";
/// Bytes of what names a token in the registry.
const ID_BYTES: usize = 8;
/// Bytes of what only its bearer knows: 128 bits can't be guessed.
const SECRET_BYTES: usize = 16;
/// How long a token is good for, where nobody says otherwise: an hour.
pub(crate) const DEFAULT_TTL_S: u64 = 3_600;
/// The longest: a week. What lies about longer is found by somebody.
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

/// What the registry holds of a token: not the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    hash: String,
    expires_unix_s: u64,
    /// Whether who joins may let others join.
    may_issue: bool,
    by: String,
}

/// What a token that was accepted allows.
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
    let etcd = cluster.etcd().clone();
    let authority = blocking(move || authority::settled(&etcd)).await?;
    if cluster.identity().issuer() != Some(authority) {
        let what = "the registry does not name the authority that issued this node's certificate";
        return Err(Problem::new(Code::Refused, what).help("`tombolo node authority` says what that may be"));
    }
    let token = Token { id: random(ID_BYTES)?, secret: random(SECRET_BYTES)?, authority };
    let expires_unix_s = unix_s() + ttl_s;
    let record = Record {
        hash: token.hash(),
        expires_unix_s,
        may_issue: request.may_issue,
        by: cluster.me().to_owned(),
    };
    let (etcd, key) = (cluster.etcd().clone(), format!("{TOKENS}{}", token.id));
    blocking(move || {
        drop_old(&etcd)?;
        enter(&etcd, &key, &record, authority)
    })
    .await?;
    let address = cluster.config().address.to_string();
    Ok(TokenView { token: token.to_string(), expires_unix_s, ttl_s, address })
}

/// Writes a token down that names this authority. It is looked at once more after that: who replaces the authority deletes all tokens before it is done, and
/// so deletes this one, or this sees it.
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
    id: &str,
    secret: &str,
    now: u64,
) -> Result<(Accepted, u64), Problem> {
    let refused =
        |why: &str| Problem::new(Code::Refused, why.to_owned()).help("make another: `tombolo node token`");
    let unknown = || {
        refused(
            "the token is not known here: it was used already, has expired, or was never one of this cluster",
        )
    };
    if id.len() != 2 * ID_BYTES || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(unknown());
    }
    let found = get_json::<Record>(registry, &format!("{TOKENS}{id}"))?;
    let (record, revision) = found.ok_or_else(unknown)?;
    // Hashes are compared, so how far they agree says nothing of the secret.
    if record.hash != hash(secret) {
        return Err(unknown());
    }
    if record.expires_unix_s < now {
        let over_s = now - record.expires_unix_s;
        return Err(refused(&format!(
            "the token expired {over_s} s ago by the clock of the node that was asked; if it is younger than that, the clocks of the nodes \
             differ: set them"
        )));
    }
    Ok((Accepted { may_issue: record.may_issue }, revision))
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
    use super::*;
    use registry::Memory;

    fn put(registry: &Memory, token: &Token, expires_unix_s: u64) {
        let record = Record { hash: token.hash(), expires_unix_s, may_issue: true, by: "a".into() };
        let key = format!("{TOKENS}{}", token.id);
        registry.put(&key, &to_json(&record).unwrap(), Expected::Absent).unwrap();
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
        let registry = Memory::default();
        let (token, other) = (token(), token());
        put(&registry, &token, 1_000);
        let wrong = look(&registry, &token.id, &other.secret, 900).unwrap_err();
        let unknown = look(&registry, &other.id, &other.secret, 900).unwrap_err();
        assert_eq!(wrong, unknown, "who guesses learns nothing");
        assert_eq!(look(&registry, "../x", "", 900).unwrap_err(), unknown);
        let late = look(&registry, &token.id, &token.secret, 1_010).unwrap_err();
        assert!(late.message.contains("expired 10 s ago"), "{late}");
        let (accepted, revision) = look(&registry, &token.id, &token.secret, 1_000).unwrap();
        assert!(accepted.may_issue);
        consume(&registry, &token.id, revision).unwrap();
        assert!(consume(&registry, &token.id, revision).is_err());
        let used = look(&registry, &token.id, &token.secret, 900).unwrap_err();
        assert!(used.message.contains("used already"), "{used}");
    }

    #[test]
    fn of_many_who_use_one_token_one_gets_in() {
        let registry = Memory::default();
        let token = token();
        put(&registry, &token, 1_000);
        let (_, revision) = look(&registry, &token.id, &token.secret, 1).unwrap();
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
        let token = Record { hash: String::new(), expires_unix_s: u64::MAX, may_issue: true, by: "a".into() };
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
        put(&registry, &old, unix_s() - 1);
        put(&registry, &new, unix_s() + 100);
        drop_old(&registry).unwrap();
        let left = registry.list(TOKENS).unwrap();
        assert_eq!(left.len(), 1);
        assert!(left[0].0.ends_with(&new.id));
    }
}
