//! A stranger's input, before it is known who that is: certificates in a handshake, requests for
//! certificates, proofs, and what stands in a node's files and in the registry. What must hold: no
//! panic; nobody is believed whom the authority issued nothing; what is signed is for the name that
//! the authority gives, whatever the request says; and nobody has the authority's key who has not.
#![cfg_attr(feature = "fuzzing", no_main)]

use std::sync::LazyLock;
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use trust::{Authority, Fingerprint, Identity, Request};

/// A cluster with one node.
struct Cluster {
    authority: Authority,
    identity: Identity,
    /// The chain that the node shows: its certificate, and the authority's.
    chain: Vec<CertificateDer<'static>>,
}

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let now = SystemTime::now();
    let authority = Authority::new("lab", now).expect("an authority");
    let request = Request::new("a").expect("a request");
    let chain = authority.sign(&request.pem().expect("its text"), "a", now).expect("a certificate");
    let own = request.key_pem() + &chain;
    let identity = Identity::from_pem(&own, &authority.certificate_pem()).expect("an identity");
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(|one| one.expect("a certificate"));
    Cluster { chain: chain.collect(), authority, identity }
});

fuzz::target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 3 {
        0 => shown(bytes),
        1 => asked(&pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", bytes))),
        _ => read(&String::from_utf8_lossy(bytes)),
    }
});

/// In a handshake: alone, with the authority's beside it, and behind the node's own.
fn shown(bytes: &[u8]) {
    let Cluster { identity, chain, .. } = &*CLUSTER;
    let (own, authority) = (&chain[0], &chain[1]);
    let strange = CertificateDer::from(bytes);
    let _alleged = trust::peer(std::slice::from_ref(&strange));
    for chain in [vec![strange.clone()], vec![strange.clone(), authority.clone()]] {
        if let Ok(shown) = identity.shown(&chain) {
            assert_eq!(strange, *own, "believed: {:?}", shown.peer());
        }
    }
    if let Ok(shown) = identity.shown(&[own.clone(), strange]) {
        assert_eq!(shown.peer().node, "a");
        identity.still(&shown).expect("what is believed is believed again");
    }
}

/// By a machine that joins, or a node.
fn asked(text: &str) {
    let Cluster { authority, .. } = &*CLUSTER;
    if let Ok(chain) = authority.sign(text, "b", SystemTime::now()) {
        let peer = trust::peer_of_pem(&chain).expect("who is issued something is somebody");
        assert_eq!((peer.node.as_str(), peer.cluster.as_str()), ("b", "lab"));
    }
    let who = trust::peer(&CLUSTER.chain).expect("the node");
    let proven = trust::has_authority(text, &who, &authority.certificate_pem());
    assert!(!proven.unwrap_or(false), "nobody else has the key");
}

/// In files and in the registry.
fn read(text: &str) {
    asked(text);
    let _alleged = trust::peer_of_pem(text);
    let _until = trust::authority_until_unix_s(text);
    if let Ok(authorities) = Fingerprint::all_of_pem(text) {
        assert!((1..=4).contains(&authorities.len()), "{authorities:?}");
    }
    let _authority = Authority::from_pem(text);
    let _identity = Identity::from_pem(text, text);
    CLUSTER.identity.trust(text).expect_err("none of these issued its certificate");
}
