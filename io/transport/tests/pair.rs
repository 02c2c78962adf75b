//! Two nodes of this process: they know each other by certificates, exchange messages over each
//! transport, and exchange the transport.
#![allow(clippy::unwrap_used, reason = "a test may")]

use link::{Config, Event, Over, Sent, Timing};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring, version::TLS13};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::*;
use wire::link::{Hello, VERSION, VERSION_OLDEST};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A cluster, and the names of those whom it has certified.
struct Cluster {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    names: Arc<Mutex<Vec<(CertificateDer<'static>, String)>>>,
}

impl Cluster {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), root, names: Arc::default() }
    }

    fn tls(&self, node: &str) -> Tls {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([format!("{node}.node.tombolo")]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        self.names.lock().unwrap().push((certificate.clone(), node.to_owned()));
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let private = || PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.unwrap())
            .with_single_cert(vec![certificate.clone()], private())
            .unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], private())
            .unwrap();
        let names = self.names.clone();
        Tls::new(&server, &client, move |chain| {
            let names = names.lock().unwrap();
            let found = names.iter().find(|(known, _)| chain.first() == Some(known));
            found.map(|(_, name)| name.clone()).ok_or_else(|| "nobody knows it".to_owned())
        })
    }
}

fn config(side: u8) -> Config {
    let hello = Hello {
        oldest: VERSION_OLDEST,
        newest: VERSION,
        side,
        compressions: COMPRESSIONS,
        pairs: 8,
        window_bytes: 1 << 20,
        message_bytes: 500_000,
        silence_ms: 10_000,
    };
    Config { epoch: 1, hello, queue_bytes: 1 << 20, timing: Timing::default() }
}

fn anywhere(kind: Kind) -> Locator {
    Locator { kind, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into() }
}

async fn next(events: &mut Events) -> Event {
    tokio::time::timeout(TIMEOUT, events.next()).await.expect("it comes").expect("the driver runs")
}

#[tokio::test]
async fn messages_go_both_ways_over_each_transport_which_are_exchanged_meanwhile() {
    let cluster = Cluster::new();
    let settings = |peer: &str, side, dial| Settings {
        peer: peer.to_owned(),
        link: config(side),
        compression: Compression::Auto,
        dial,
        spin: Duration::from_micros(20),
    };
    let (far, mut far_events, driver) = start(settings("near", 1, None)).unwrap();
    let far_driver = tokio::spawn(driver.run());
    let mut locators = Vec::new();
    for kind in [Kind::Tcp, Kind::Quic] {
        let mut listener = Listener::bind(anywhere(kind), cluster.tls("far")).await.unwrap();
        locators.push(listener.locator());
        let far = far.clone();
        tokio::spawn(async move {
            while let Ok(connection) = listener.accept().await {
                far.adopt(connection).unwrap();
            }
        });
    }
    let dial = Dial { locators: vec![locators[0]], tls: cluster.tls("near") };
    let (near, mut events, driver) = start(settings("far", 0, Some(dial))).unwrap();
    let near_driver = tokio::spawn(driver.run());
    let answers = tokio::spawn(async move {
        loop {
            match next(&mut far_events).await {
                Event::Messages { pair, messages } => {
                    far.consumed_all(pair, messages.count(), messages.bytes());
                    assert_eq!(far.send_all(pair, &messages), Ok(messages.count()));
                }
                Event::Over(over) => return over,
                _ => {}
            }
        }
    });
    assert!(matches!(next(&mut events).await, Event::Up { resumed: false, .. }));
    let pair = near.open(b"who").unwrap();
    for (round, locator) in [locators[1], locators[0], locators[1]].into_iter().enumerate() {
        for index in 0..40_usize {
            let message = vec![u8::try_from(index + round).unwrap(); 1 + index * 10_000];
            assert_eq!(near.send(pair, &message), Ok(Sent::Queued));
            if index == 20 {
                near.switch(locator).await.unwrap();
                assert_eq!(near.status().kind, Some(locator.kind));
            }
            loop {
                match next(&mut events).await {
                    Event::Messages { messages, .. } => {
                        assert!(messages.iter().eq([&message[..]]), "another message came");
                        near.consumed(pair, messages.bytes());
                        break;
                    }
                    Event::Up { resumed, .. } => assert!(resumed),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    // Several at once, and taken at once.
    assert_eq!(near.send_all(pair, [&b"one"[..], b"two"]), Ok(2));
    let mut found = Vec::new();
    while found.len() < 2 {
        match next(&mut events).await {
            Event::Messages { messages, .. } => found.extend(messages.iter().map(<[u8]>::to_vec)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(found, [b"one", b"two"]);
    near.consumed_all(pair, 2, 6);
    let traffic = near.status().traffic;
    assert_eq!((traffic.messages_in, traffic.messages_out, traffic.connections), (122, 122, 4));
    near.goodbye(7);
    assert_eq!(tokio::time::timeout(TIMEOUT, near_driver).await.unwrap().unwrap(), Over::Ended);
    assert_eq!(answers.await.unwrap(), Over::Goodbye { reason: 7 });
    far_driver.await.unwrap();
}

/// Messages that were sent one by one waited one by one for a user that took none: some hundred
/// bytes for each byte of the window.
#[tokio::test]
async fn while_a_user_takes_no_events_no_more_is_received_than_a_bounded_number() {
    const SENT: usize = 30_000;
    let cluster = Cluster::new();
    let settings = |peer: &str, side, dial| Settings {
        peer: peer.to_owned(),
        link: config(side),
        compression: Compression::None,
        dial,
        spin: Duration::ZERO,
    };
    let (far, mut far_events, driver) = start(settings("near", 1, None)).unwrap();
    tokio::spawn(driver.run());
    let mut listener = Listener::bind(anywhere(Kind::Tcp), cluster.tls("far")).await.unwrap();
    let dial = Dial { locators: vec![listener.locator()], tls: cluster.tls("near") };
    let (near, mut events, driver) = start(settings("far", 0, Some(dial))).unwrap();
    tokio::spawn(driver.run());
    far.adopt(listener.accept().await.unwrap()).unwrap();
    for events in [&mut events, &mut far_events] {
        assert!(matches!(next(events).await, Event::Up { .. }));
    }
    let pair = far.open(b"who").unwrap();
    for _ in 0..SENT {
        assert_eq!(far.send(pair, &[7]), Ok(Sent::Queued));
        // Each goes by itself.
        tokio::task::yield_now().await;
    }
    let mut quiet = 0;
    let mut known = 0;
    while quiet < 1000 {
        tokio::task::yield_now().await;
        let now = near.status().traffic.messages_in;
        quiet = if now == known { quiet + 1 } else { 0 };
        known = now;
    }
    assert!((1000..10_000).contains(&known), "{known} messages wait");
    let mut came = 0;
    while came < SENT {
        if let Event::Messages { messages, .. } = next(&mut events).await {
            came += messages.count();
        }
    }
}
