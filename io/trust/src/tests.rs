//! One broken thing for each refusal, each with what a person reads.

use super::*;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const PROTOCOL: &[&[u8]] = &[b"test/1"];

fn authority() -> Authority {
    Authority::new("lab", SystemTime::now()).unwrap()
}

/// A handshake without a network: what the client says of it, and what the server says.
fn shake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    asked: &str,
) -> Result<(Option<Peer>, Peer), (String, String)> {
    let mut client = ClientConnection::new(client, server_name(asked).unwrap()).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    let (mut at_client, mut at_server) = (Ok(()), Ok(()));
    for _round in 0..8 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut bytes = wire.as_slice();
        while !bytes.is_empty() && at_server.is_ok() {
            server.read_tls(&mut bytes).unwrap();
            at_server = server.process_new_packets().map(drop);
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut bytes = wire.as_slice();
        while !bytes.is_empty() && at_client.is_ok() {
            client.read_tls(&mut bytes).unwrap();
            at_client = client.process_new_packets().map(drop);
        }
    }
    let said = |result: Result<(), rustls::Error>, who: &str| match result {
        Ok(()) => String::new(),
        Err(error) => explain(&io::Error::other(error), who),
    };
    if at_client.is_err() || at_server.is_err() {
        return Err((said(at_client, asked), said(at_server, "the caller")));
    }
    client.writer().write_all(b"hello").unwrap();
    let mut wire = Vec::new();
    client.write_tls(&mut wire).unwrap();
    server.read_tls(&mut wire.as_slice()).unwrap();
    server.process_new_packets().unwrap();
    let mut heard = [0; 5];
    server.reader().read_exact(&mut heard).unwrap();
    assert_eq!((&heard, client.alpn_protocol()), (b"hello", Some(PROTOCOL[0])));
    let at_server = server.peer_certificates().map(|chain| peer(chain).unwrap());
    Ok((at_server, peer(client.peer_certificates().unwrap()).unwrap()))
}

fn between(a: &Identity, b: &Identity, asked: &str) -> Result<(Option<Peer>, Peer), (String, String)> {
    shake(a.client(PROTOCOL).unwrap(), b.server(PROTOCOL).unwrap(), asked)
}

/// A clock that differs from this machine's.
#[derive(Debug)]
struct Off(i64);

impl TimeProvider for Off {
    fn current_time(&self) -> Option<UnixTime> {
        let now = i64::try_from(UnixTime::now().as_secs()).unwrap();
        Some(UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now + self.0).unwrap())))
    }
}

fn with_clock(authority: &Authority, node: &str, off_s: i64) -> Identity {
    let request = Request::new(node).unwrap();
    let chain = authority.sign(&request.pem().unwrap(), node, SystemTime::now()).unwrap();
    Identity::with_clock(&(request.key_pem() + &chain), &authority.certificate_pem(), Arc::new(Off(off_s)))
        .unwrap()
}

#[test]
fn two_nodes_of_a_cluster_know_each_other() {
    let authority = authority();
    let now = SystemTime::now();
    let (a, b) = (authority.identity("a", now).unwrap(), authority.identity("b", now).unwrap());
    let (at_b, at_a) = between(&a, &b, "b").unwrap();
    let at_b = at_b.unwrap();
    assert_eq!((at_b.node.as_str(), at_b.cluster.as_str(), &at_b.serial), ("a", "lab", &a.serial()));
    assert_eq!((at_a.node.as_str(), &at_a.serial), ("b", &b.serial()));
    assert_eq!(b.check(&a.current().certified.cert).unwrap(), at_b);
}

#[test]
fn another_clusters_node_is_refused_by_both_ends() {
    let now = SystemTime::now();
    let ours = authority().identity("a", now).unwrap();
    let theirs = Authority::new("other", now).unwrap().identity("b", now).unwrap();
    let (client, server) = between(&ours, &theirs, "b").unwrap_err();
    assert!(client.contains("another cluster") && client.contains("tombolo node join"), "{client}");
    assert!(server.contains("does not know the authority"), "{server}");
    // Also where both clusters have one name.
    let twin = authority().identity("b", now).unwrap();
    assert!(between(&ours, &twin, "b").unwrap_err().0.contains("another cluster"));
    assert!(matches!(ours.check(&twin.current().certified.cert), Err(TrustError::OtherCluster { .. })));
}

#[test]
fn an_expired_certificate_is_refused_with_both_times() {
    let authority = authority();
    let long_ago = SystemTime::now() - 100 * DAY;
    let a = authority.identity("a", SystemTime::now()).unwrap();
    let old = authority.identity("b", long_ago).unwrap();
    let (client, _) = between(&a, &old, "b").unwrap_err();
    assert!(
        client.contains("was valid until 20") && client.contains("this node's clock says 20"),
        "{client}"
    );
    assert!(client.contains("tombolo node rotate"), "{client}");
    let (_, server) = between(&old, &a, "a").unwrap_err();
    assert!(server.contains("was valid until"), "{server}");
}

#[test]
fn who_is_refused_hears_why() {
    let authority = authority();
    let now = SystemTime::now();
    let (a, b) = (authority.identity("a", now).unwrap(), authority.identity("b", now).unwrap());
    b.hear_revoked([(a.serial(), None)]);
    // In TLS 1.3 the client has finished when the server looks at its certificate.
    let (client, server) = between(&a, &b, "b").unwrap_err();
    assert!(server.contains("is revoked"), "{server}");
    assert!(
        client.contains("this node was removed from the cluster") && client.contains("token"),
        "{client}"
    );
    let (client, _) = between(&b, &a, "a").unwrap_err();
    assert!(client.contains("is revoked"), "{client}");
    assert!(matches!(b.check(&a.current().certified.cert), Err(TrustError::Revoked { .. })));
    b.hear_revoked([]);
    between(&a, &b, "b").unwrap();
}

#[test]
fn clocks_that_are_hours_apart_are_no_hindrance_and_days_are_said() {
    let authority = authority();
    let hours = 20 * i64::try_from(HOUR.as_secs()).unwrap();
    let now = SystemTime::now();
    let a = authority.identity("a", now).unwrap();
    for off in [-hours, hours] {
        let b = with_clock(&authority, "b", off);
        between(&a, &b, "b").unwrap();
        between(&b, &a, "a").unwrap();
    }
    let early = with_clock(&authority, "b", -3 * 86_400);
    let (client, _) = between(&early, &a, "a").unwrap_err();
    assert!(
        client.contains("is valid from") && client.contains("one of the two clocks is wrong"),
        "{client}"
    );
    let late = with_clock(&authority, "b", 100 * 86_400);
    let (client, server) = between(&late, &a, "a").unwrap_err();
    assert!(client.contains("this node's clock says"), "{client}");
    assert!(server.contains("refuses this node's certificate as expired"), "{server}");
}

#[test]
fn a_node_other_than_expected_is_refused_by_name() {
    let authority = authority();
    let now = SystemTime::now();
    let (a, b) = (authority.identity("a", now).unwrap(), authority.identity("b", now).unwrap());
    let (client, _) = between(&a, &b, "c").unwrap_err();
    assert!(client.contains("node b answers where node c should be"), "{client}");
}

#[test]
fn who_shows_nothing_is_refused_unless_it_joins() {
    let authority = authority();
    let b = authority.identity("b", SystemTime::now()).unwrap();
    let nobody = || joiner(authority.fingerprint(), PROTOCOL).unwrap();
    let (client, server) = shake(nobody(), b.server(PROTOCOL).unwrap(), "b").unwrap_err();
    assert!(server.contains("shows no certificate"), "{server}");
    assert!(client.contains("wants a certificate"), "{client}");
    let (who, at_joiner) = shake(nobody(), b.server_for_joiners(PROTOCOL).unwrap(), "whatever").unwrap();
    assert!(who.is_none());
    assert_eq!(at_joiner.node, "b");
}

#[test]
fn a_joiner_tells_nothing_to_who_has_not_the_tokens_authority() {
    let now = SystemTime::now();
    let impostor = authority().identity("b", now).unwrap();
    let config = joiner(authority().fingerprint(), PROTOCOL).unwrap();
    let (client, _) = shake(config, impostor.server_for_joiners(PROTOCOL).unwrap(), "b").unwrap_err();
    assert!(client.contains("another cluster"), "{client}");
    // Nor to who shows the right authority beside a certificate that it did not issue.
    let real = authority();
    let chain = impostor.current().certified.cert[0].clone();
    let forged = files::pem_of(&chain) + &real.certificate_pem();
    let key = impostor_key(&impostor);
    let forger = Identity::from_pem(&(key + &forged), &real.certificate_pem()).unwrap();
    let config = joiner(real.fingerprint(), PROTOCOL).unwrap();
    shake(config, forger.server_for_joiners(PROTOCOL).unwrap(), "b").unwrap_err();
}

fn impostor_key(identity: &Identity) -> String {
    let folder = tempfile::tempdir().unwrap();
    identity.store(folder.path()).unwrap();
    let text = std::fs::read_to_string(folder.path().join(files::IDENTITY_FILE)).unwrap();
    let end = text.find("-----BEGIN CERTIFICATE").unwrap();
    text[..end].to_owned()
}

#[test]
fn no_common_protocol_is_said_as_releases_too_far_apart() {
    let authority = authority();
    let now = SystemTime::now();
    let (a, b) = (authority.identity("a", now).unwrap(), authority.identity("b", now).unwrap());
    let old = a.client(&[b"test/0"]).unwrap();
    let (client, _) = shake(old, b.server(PROTOCOL).unwrap(), "b").unwrap_err();
    assert!(client.contains("their releases are too far apart"), "{client}");
}

#[test]
fn a_renewed_certificate_holds_for_configurations_that_are_in_use() {
    let authority = authority();
    let now = SystemTime::now();
    let a = authority.identity("a", now - 70 * DAY).unwrap();
    let b = authority.identity("b", now).unwrap();
    assert!(a.is_due(now) && !b.is_due(now));
    let config = a.client(PROTOCOL).unwrap();
    let before = a.serial();
    let request = Request::new("a").unwrap();
    a.renew(&request, &authority.sign(&request.pem().unwrap(), "a", now).unwrap()).unwrap();
    assert!(a.serial() != before && !a.is_due(now));
    let (at_b, _) = shake(config, b.server(PROTOCOL).unwrap(), "b").unwrap();
    assert_eq!(at_b.unwrap().serial, a.serial());
    // What is another's, or not for this key, is refused, and what was in use stays.
    let serial = a.serial();
    let other = authority.sign(&request.pem().unwrap(), "c", now).unwrap();
    assert!(matches!(a.renew(&request, &other), Err(TrustError::WrongNode { .. })));
    let mine = authority.sign(&Request::new("a").unwrap().pem().unwrap(), "a", now).unwrap();
    assert!(a.renew(&request, &mine).unwrap_err().to_string().contains("its key is another's"));
    assert_eq!(a.serial(), serial);
}

#[test]
fn a_successor_of_the_authority_is_believed_beside_it() {
    let now = SystemTime::now();
    let (first, second) = (authority(), authority());
    let (a, b) = (first.identity("a", now).unwrap(), second.identity("b", now).unwrap());
    assert!(between(&a, &b, "b").is_err());
    let both = first.certificate_pem() + &second.certificate_pem();
    a.trust(&both).unwrap();
    b.trust(&both).unwrap();
    between(&a, &b, "b").unwrap();
    assert_eq!(a.fingerprints(), [first.fingerprint(), second.fingerprint()]);
}

#[test]
fn what_was_shown_is_believed_until_it_is_revoked_or_its_authority_replaced_and_not_until_it_ends() {
    let now = SystemTime::now();
    let (first, second) = (authority(), authority());
    let old = now - (u32::from(u16::try_from(NODE_DAYS).unwrap()) - 1) * DAY;
    let (a, b) = (first.identity("a", now).unwrap(), first.identity("b", old).unwrap());
    let chain = |identity: &Identity| identity.current().certified.cert.clone();
    let shown = a.shown(&chain(&b)).unwrap();
    assert_eq!(shown.peer().node, "b");
    assert!(a.is_by(&shown, first.fingerprint()) && !a.is_by(&shown, second.fingerprint()));
    a.still(&shown).unwrap();
    a.hear_revoked([(b.serial(), None)]);
    assert!(matches!(a.still(&shown), Err(TrustError::Revoked { .. })));
    a.hear_revoked([]);
    // The successor is believed, a shows a certificate of it, and what b showed counts on.
    let both = first.certificate_pem() + &second.certificate_pem();
    a.trust(&both).unwrap();
    a.still(&shown).unwrap();
    assert!(!a.is_by(&shown, second.fingerprint()));
    assert!(
        matches!(a.trust(&second.certificate_pem()), Err(TrustError::Stranger)),
        "it would be believed by nobody"
    );
    assert_eq!(a.fingerprints().len(), 2, "what is in use stays");
    let request = Request::new("a").unwrap();
    a.renew(&request, &second.sign(&request.pem().unwrap(), "a", now).unwrap()).unwrap();
    assert_eq!(a.issuer(), Some(second.fingerprint()));
    a.trust(&second.certificate_pem()).unwrap();
    assert!(matches!(a.still(&shown), Err(TrustError::OtherCluster { .. })));
    assert!(matches!(a.shown(&chain(&b)), Err(TrustError::OtherCluster { .. })));
    // What ends by itself was good when it was shown.
    let request = Request::new("c").unwrap();
    let own = request.key_pem() + &first.sign(&request.pem().unwrap(), "c", now).unwrap();
    let c = Identity::with_clock(&own, &both, Arc::new(Off(10 * 86_400))).unwrap();
    assert!(matches!(c.shown(&chain(&b)), Err(TrustError::Expired { .. })));
    c.still(&shown).unwrap();
}

#[test]
fn what_is_issued_is_looked_at_before_it_is_shown() {
    let (first, second) = (authority(), authority());
    let now = SystemTime::now();
    let a = first.identity("a", now).unwrap();
    a.trust(&(first.certificate_pem() + &second.certificate_pem())).unwrap();
    let (serial, request) = (a.serial(), Request::new("a").unwrap());
    let chain = |by: &Authority, at| by.sign(&request.pem().unwrap(), "a", at).unwrap();
    let renew = |chain: &str| a.renew_by(&request, chain, second.fingerprint());
    assert!(matches!(renew(&chain(&second, now + 2 * DAY)), Err(TrustError::NotYet { .. })));
    assert!(matches!(renew(&chain(&second, now - 100 * DAY)), Err(TrustError::Expired { .. })));
    assert!(matches!(renew(&chain(&first, now)), Err(TrustError::OtherCluster { .. })), "by the other");
    // Which certificate stands behind it says nothing.
    let both = chain(&first, now) + &second.certificate_pem();
    assert!(matches!(renew(&both), Err(TrustError::OtherCluster { .. })));
    renew("hello").unwrap_err();
    assert_eq!((a.serial(), a.issuer()), (serial, Some(first.fingerprint())));
    renew(&chain(&second, now)).unwrap();
    assert_eq!(a.issuer(), Some(second.fingerprint()));
}

#[test]
fn what_could_not_be_written_down_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let authority = authority();
    let a = authority.identity("a", SystemTime::now()).unwrap();
    assert!(!a.is_stored(folder.path()).unwrap());
    a.store(folder.path()).unwrap();
    assert!(a.is_stored(folder.path()).unwrap());
    let request = Request::new("a").unwrap();
    a.renew(&request, &authority.sign(&request.pem().unwrap(), "a", SystemTime::now()).unwrap()).unwrap();
    assert!(!a.is_stored(folder.path()).unwrap());
    a.store(folder.path()).unwrap();
    std::fs::remove_file(folder.path().join("trusted.pem")).unwrap();
    assert!(!a.is_stored(folder.path()).unwrap());
}

#[test]
fn who_has_the_authority_can_prove_it_for_itself_alone() {
    let (one, other) = (authority(), authority());
    let serial = |digits: &str| Serial::parse(digits).unwrap();
    let who =
        |node: &str, digits: &str| Peer { node: node.into(), cluster: "lab".into(), serial: serial(digits) };
    let proof = one.proof("b", &serial("4001")).unwrap();
    let b = who("b", "4001");
    assert!(has_authority(&proof, &b, &one.certificate_pem()).unwrap());
    for passed_on in [who("c", "4001"), who("b", "4002")] {
        assert!(!has_authority(&proof, &passed_on, &one.certificate_pem()).unwrap(), "{passed_on:?}");
    }
    assert!(!has_authority(&proof, &b, &other.certificate_pem()).unwrap());
    let asked = Request::new("b").unwrap().pem().unwrap();
    assert!(!has_authority(&asked, &b, &one.certificate_pem()).unwrap(), "a node's own key");
    for bad in ["", "hello", &one.certificate_pem()] {
        let refusal = has_authority(bad, &b, &one.certificate_pem()).unwrap_err().to_string();
        assert!(refusal.contains("the proof"), "{refusal}");
    }
}

#[test]
fn a_successor_lies_beside_the_authority_until_it_takes_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second, third) = (authority(), authority(), authority());
    first.store(folder.path()).unwrap();
    assert!(Authority::load_next(folder.path()).unwrap().is_none());
    for next in [&third, &second] {
        next.store_next(folder.path()).unwrap();
    }
    let there = |found: Option<Authority>| found.map(|authority| authority.fingerprint());
    assert_eq!(there(Authority::load_next(folder.path()).unwrap()), Some(second.fingerprint()));
    assert_eq!(there(Authority::load(folder.path()).unwrap()), Some(first.fingerprint()));
    Authority::settle_next(folder.path(), true).unwrap();
    assert!(Authority::load_next(folder.path()).unwrap().is_none());
    assert_eq!(there(Authority::load(folder.path()).unwrap()), Some(second.fingerprint()));
    third.store_next(folder.path()).unwrap();
    Authority::settle_next(folder.path(), false).unwrap();
    assert_eq!(there(Authority::load(folder.path()).unwrap()), Some(second.fingerprint()));
    third.store_next(folder.path()).unwrap();
    Identity::forget(folder.path()).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no key is left");
}

#[test]
fn a_request_gets_the_name_that_the_authority_gives_and_no_other() {
    let authority = authority();
    let now = SystemTime::now();
    let request = Request::new("root").unwrap();
    let chain = authority.sign(&request.pem().unwrap(), "b", now).unwrap();
    let identity = Identity::from_pem(&(request.key_pem() + &chain), &authority.certificate_pem()).unwrap();
    assert_eq!(identity.node(), "b");
    for bad in ["", "hello", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"]
    {
        let refusal = authority.sign(bad, "b", now).unwrap_err().to_string();
        assert!(refusal.contains("the request for a certificate"), "{refusal}");
    }
    // A request whose signature is not its key's.
    let pem = request.pem().unwrap();
    let at = pem.len() / 2;
    let flipped: String =
        pem.char_indices().map(|(n, c)| if n == at { if c == 'A' { 'B' } else { 'A' } } else { c }).collect();
    authority.sign(&flipped, "b", now).unwrap_err();
}

#[test]
fn names_are_checked_everywhere() {
    for bad in ["", "-a", "a-", "A", "a.b", "a_b", "ä", "a b", "../x", &"a".repeat(64)] {
        assert!(check_name(bad).unwrap_err().to_string().contains("1 to 63"), "{bad}");
        Request::new(bad).unwrap_err();
        authority().identity(bad, SystemTime::now()).unwrap_err();
        server_name(bad).unwrap_err();
    }
    check_name(&"a".repeat(63)).unwrap();
    check_name("rack-3").unwrap();
}

#[test]
fn a_folder_keeps_it_all_and_shows_no_key_to_others() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Identity::find(folder.path()).unwrap().is_none());
    assert!(Authority::load(folder.path()).unwrap().is_none());
    let authority = authority();
    let a = authority.identity("a", SystemTime::now()).unwrap();
    let gone = authority.identity("gone", SystemTime::now()).unwrap().serial();
    a.hear_revoked([(gone.clone(), None)]);
    a.store(folder.path()).unwrap();
    authority.store(folder.path()).unwrap();
    let read = Identity::load(folder.path()).unwrap();
    assert_eq!((read.node(), read.serial()), ("a", a.serial()));
    assert!(read.revoked().contains(&gone));
    let again = Authority::load(folder.path()).unwrap().unwrap();
    assert_eq!((again.cluster(), again.fingerprint()), ("lab", authority.fingerprint()));
    between(&again.identity("b", SystemTime::now()).unwrap(), &read, "a").unwrap();

    let renewed = authority.identity("a", SystemTime::now()).unwrap();
    renewed.store(folder.path()).unwrap();
    read.reload(folder.path()).unwrap();
    assert_eq!(read.serial(), renewed.serial());

    for name in [files::IDENTITY_FILE, files::AUTHORITY_FILE] {
        let path = folder.path().join(name);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let refusal = Identity::find(folder.path()).unwrap_err().to_string();
    assert!(refusal.contains("chmod 600") && refusal.contains("identity.pem"), "{refusal}");
    Authority::load(folder.path()).unwrap_err();
    Identity::forget(folder.path()).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn files_that_are_garbage_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let authority = authority();
    let good = authority.identity("a", SystemTime::now()).unwrap();
    good.store(folder.path()).unwrap();
    let path = folder.path().join(files::IDENTITY_FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    let other = authority.identity("b", SystemTime::now()).unwrap();
    let stranger = impostor_key(&other) + &text[text.find("-----BEGIN CERTIFICATE").unwrap()..];
    let without_key = text[text.find("-----BEGIN CERTIFICATE").unwrap()..].to_owned();
    let many = text.clone() + &authority.certificate_pem().repeat(20);
    let long = "x".repeat(300 << 10);
    let cut = text[..text.len() / 2].to_owned();
    let not_a_node = impostor_key(&good) + &authority.certificate_pem();
    for (bad, why) in [
        (String::new(), "this node's certificate"),
        ("hello".into(), "this node's certificate"),
        (cut, "this node's certificate"),
        (stranger, "its key is another's"),
        (without_key, "this node's certificate"),
        (many, "more than"),
        (long, "far too long"),
        (not_a_node, "names no node"),
    ] {
        files::write_secret(&path, &bad).unwrap();
        let refusal = Identity::find(folder.path()).unwrap_err().to_string();
        assert!(refusal.contains(why), "{why}: {refusal}");
    }
    files::write_secret(&path, &text).unwrap();
    for (name, bad) in [
        (files::TRUSTED_FILE, "hello"),
        (files::TRUSTED_FILE, ""),
        (files::REVOKED_FILE, "../x"),
        (files::REVOKED_FILE, "41 1"),
        (files::REVOKED_FILE, "authority 41"),
    ] {
        good.store(folder.path()).unwrap();
        files::write_secret(&folder.path().join(name), bad).unwrap();
        Identity::find(folder.path()).unwrap_err();
    }
    for bad in ["", "hello", good.trusted_pem().as_str()] {
        Authority::from_pem(bad).unwrap_err();
    }
}

#[test]
fn what_an_authority_says_is_known_by_its_certificate_and_is_said_of_one_thing_alone() {
    let (authority, other) = (authority(), authority());
    let said = authority.say(About::Token, "a\n1").unwrap();
    let is = |by: &Authority, about, text, signature: &str| {
        has_said(&by.certificate_pem(), about, text, signature).unwrap()
    };
    assert!(is(&authority, About::Token, "a\n1", &said));
    assert!(!is(&authority, About::Token, "a\n2", &said), "of something else");
    assert!(!is(&authority, About::Successor, "a\n1", &said), "of another kind");
    assert!(!is(&other, About::Token, "a\n1", &said), "by another");
    let (cut, long) = (&said[2..], "00".repeat(1_000));
    for bad in ["", "0", "zz", "+1+1", "\u{e9}\u{e9}", cut, &long] {
        assert!(!is(&authority, About::Token, "a\n1", bad), "{bad}");
    }
    has_said("hello", About::Token, "a\n1", &said).unwrap_err();
}

/// A certificate of an authority, and its number.
fn revocation(authority: &Authority, days_ago: u32) -> (Serial, Option<String>) {
    let request = Request::new("gone").unwrap().pem().unwrap();
    let chain = authority.sign(&request, "gone", SystemTime::now() - DAY * days_ago).unwrap();
    let certificate = chain.split_inclusive("-----END CERTIFICATE-----").next().unwrap().to_owned();
    (peer_of_pem(&chain).unwrap().serial, Some(certificate))
}

fn invented(number: usize) -> (Serial, Option<String>) {
    (Serial::parse(&format!("{number:08x}")).unwrap(), None)
}

/// The set was cut at 4096 serials in the order of their digits, and a node could fill it with
/// invented ones before it was removed.
#[test]
fn invented_serials_take_no_room_from_those_that_were_issued() {
    let authority = authority();
    let a = authority.identity("a", SystemTime::now()).unwrap();
    let invented = || (0..2 * MAX_REVOKED).map(invented);
    let heard = a.hear_revoked(invented());
    assert_eq!(heard, Heard { changed: true, left_out: MAX_REVOKED });
    // Nor do the certificates of another authority, or those of others under a number that they
    // have not.
    let (other, _) = revocation(&authority, 0);
    let borrowed = (other.clone(), revocation(&authority, 0).1);
    let foreign = revocation(&Authority::new("lab", SystemTime::now()).unwrap(), 0);
    assert_eq!(a.hear_revoked(invented().chain([borrowed, foreign.clone()])).left_out, MAX_REVOKED + 2);
    assert!(!a.revoked().contains(&other) && !a.revoked().contains(&foreign.0));
    let b = authority.identity("b", SystemTime::now()).unwrap();
    let of_b = std::fs::read_to_string(stored(&b).path().join(files::IDENTITY_FILE)).unwrap();
    let certificate =
        of_b[of_b.find("-----BEGIN CERT").unwrap()..].split_inclusive("-----END CERTIFICATE-----");
    let certificate = certificate.take(1).collect();
    a.hear_revoked(invented().chain([(b.serial(), Some(certificate))]));
    assert!(matches!(a.check(&b.current().certified.cert), Err(TrustError::Revoked { .. })));
    assert_eq!(a.revoked().closed().count(), 0);
    // Whoever takes it out of the registry again has not taken it out of here, nor does a restart.
    assert!(a.hear_revoked([]).changed, "the invented ones are gone");
    assert!(a.revoked().contains(&b.serial()));
    assert_eq!(*Identity::load(stored(&a).path()).unwrap().revoked(), *a.revoked());
    // One that has ended by itself needs no place.
    let ended = revocation(&authority, NODE_DAYS + 2);
    a.hear_revoked([ended.clone()]);
    assert!(!a.revoked().contains(&ended.0));
}

fn stored(identity: &Identity) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    identity.store(folder.path()).unwrap();
    folder
}

#[test]
fn where_more_are_revoked_than_are_kept_nobody_of_that_authority_is_believed() {
    let (before, next) = (authority(), authority());
    let a = before.identity("a", SystemTime::now()).unwrap();
    a.trust(&(before.certificate_pem() + &next.certificate_pem())).unwrap();
    let all: Vec<_> = (0..=MAX_REVOKED).map(|_| revocation(&before, 0)).collect();
    let b = before.identity("b", SystemTime::now()).unwrap();
    let shown = a.shown(&b.current().certified.cert).unwrap();
    a.hear_revoked(all[1..].iter().cloned());
    a.check(&b.current().certified.cert).unwrap();
    a.hear_revoked(all.iter().cloned());
    let refusal = a.check(&b.current().certified.cert).unwrap_err();
    assert!(matches!(refusal, TrustError::TooManyRevoked { .. }), "{refusal}");
    assert!(refusal.to_string().contains("authority replace"), "{refusal}");
    assert!(a.still(&shown).is_err(), "what was shown before neither");
    let (_, server) = between(&b, &a, "a").unwrap_err();
    assert!(server.contains("more than 4096"), "{server}");
    // That is so after a restart, and for a proxy, and goes with the authority.
    let read = Identity::load(stored(&a).path()).unwrap();
    assert!(matches!(read.check(&b.current().certified.cert), Err(TrustError::TooManyRevoked { .. })));
    let c = next.identity("c", SystemTime::now()).unwrap();
    a.check(&c.current().certified.cert).unwrap();
}

#[test]
fn what_a_node_says_is_known_by_its_certificate_as_long_as_that_is_believed() {
    let authority = authority();
    let now = SystemTime::now();
    let (a, b) = (authority.identity("a", now).unwrap(), authority.identity("b", now).unwrap());
    let said = b.say(About::Renewal, "hello").unwrap();
    let who = |chain: &str, text: &str| a.who_said(chain, About::Renewal, text, &said);
    assert_eq!(who(&b.chain_pem(), "hello").unwrap().unwrap().node, "b");
    assert_eq!(who(&b.chain_pem(), "hullo").unwrap(), None);
    assert_eq!(who(&a.chain_pem(), "hello").unwrap(), None, "another node's certificate");
    let stranger = Authority::new("lab", now).unwrap().identity("b", now).unwrap();
    who(&stranger.chain_pem(), "hello").unwrap_err();
    who("", "hello").unwrap_err();
    a.hear_revoked([(b.serial(), None)]);
    assert!(matches!(who(&b.chain_pem(), "hello"), Err(TrustError::Revoked { .. })));
}
