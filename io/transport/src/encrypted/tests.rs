use super::*;
use crate::shake::client;
use rcgen::{CertificateParams, KeyPair};
use ring_crypto::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::version::TLS13;
use rustls::{AlertDescription, ClientConfig, ConnectionTrafficSecrets, RootCertStore, ServerConfig};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const TIMEOUT: Duration = Duration::from_secs(30);
/// In front of a record's body.
const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
/// Kinds of records.
const CHANGE_OF_CIPHERS: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// A message that another key follows, with or without the wish for as much.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

type Near = Encrypted<TcpStream, UnbufferedClientConnection>;

fn configurations() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(["peer.node.tombolo".to_owned()]).unwrap().self_signed(&key).unwrap();
    let (certificate, private) =
        (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let server =
        ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13]).unwrap();
    let server = server.with_no_client_auth().with_single_cert(vec![certificate], private).unwrap();
    let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    let mut server = server;
    server.enable_secret_extraction = true;
    server.send_tls13_tickets = 0;
    (Arc::new(server), Arc::new(client))
}

/// One of ours, and one of rustls' at the other end, whose buffers are its own.
async fn both() -> (Near, TlsStream<TcpStream>) {
    both_of(configurations()).await
}

async fn both_of((server, config): (Arc<ServerConfig>, Arc<ClientConfig>)) -> (Near, TlsStream<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    let (near, far) = tokio::join!(client(near, config, "peer"), TlsAcceptor::from(server).accept(far));
    (near.unwrap(), far.unwrap())
}

async fn say(near: &mut Near, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let taken = poll_fn(|cx| near.poll_send(cx, bytes)).await.unwrap();
        bytes = &bytes[taken..];
    }
    poll_fn(|cx| near.poll_flush(cx)).await.unwrap();
}

/// By way of places, with some that stay empty.
async fn put(near: &mut Near, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        for content in [&[][..], piece] {
            poll_fn(|cx| {
                let place = ready!(near.poll_place(cx)).unwrap().unwrap();
                place.extend_from_slice(content);
                near.placed(cx).unwrap();
                Poll::Ready(())
            })
            .await;
        }
    }
    poll_fn(|cx| near.poll_flush(cx)).await.unwrap();
}

async fn hear(near: &mut Near, bytes: usize) -> Vec<u8> {
    let mut heard = Vec::new();
    while heard.len() < bytes {
        let more =
            poll_fn(|cx| near.poll_hear(cx, &mut [], &mut |bytes| heard.extend_from_slice(bytes))).await;
        assert!(more.unwrap() > 0, "it ended");
    }
    heard
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8).collect()
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, test).await.expect("in time") });
}

#[test]
fn rustls_understands_us_and_we_understand_it() {
    run(async {
        let (mut near, mut far) = both().await;
        let sent = content(3 << 20);
        for piece in [1 << 14, 1000, 1] {
            let sent = &sent[..piece * 200 % sent.len()];
            let mut came = vec![0; sent.len()];
            let (_, read) = tokio::join!(put(&mut near, sent, piece), far.read_exact(&mut came));
            assert!(read.is_ok() && came == sent, "in pieces of {piece}");
        }
        let mut came = vec![0; sent.len()];
        let (_, read) = tokio::join!(say(&mut near, &sent), far.read_exact(&mut came));
        assert!(read.is_ok() && came == sent);
        let (heard, written) = tokio::join!(hear(&mut near, sent.len()), far.write_all(&sent));
        assert!(written.is_ok() && heard == sent);
        // In small pieces, by the call that copies.
        far.write_all(b"a few words").await.unwrap();
        far.flush().await.unwrap();
        let mut word = [0; 5];
        let mut heard = Vec::new();
        while heard.len() < 11 {
            let taken = poll_fn(|cx| near.poll_receive(cx, &mut word)).await.unwrap();
            heard.extend_from_slice(&word[..taken]);
        }
        assert_eq!(heard, b"a few words");
    });
}

#[test]
fn both_change_keys_and_nothing_is_lost() {
    run(async {
        let (mut near, mut far) = both().await;
        for round in 0..20 {
            let sent = content(20_000 + round);
            if round % 2 == 0 {
                // It asks us for another one in the same breath.
                far.get_mut().1.refresh_traffic_keys().unwrap();
            } else {
                let ConnectionState::WriteTraffic(traffic) =
                    near.session.process_tls_records(near.incoming.filled_mut()).state.unwrap()
                else {
                    panic!("there is something else to be done")
                };
                traffic.refresh_traffic_keys().unwrap();
            }
            far.write_all(&sent).await.unwrap();
            far.flush().await.unwrap();
            assert!(hear(&mut near, sent.len()).await == sent);
            put(&mut near, &sent, 9000).await;
            let mut came = vec![0; sent.len()];
            far.read_exact(&mut came).await.unwrap();
            assert!(came == sent);
        }
    });
}

#[test]
fn each_ends_it_in_an_orderly_way() {
    run(async {
        let (mut near, mut far) = both().await;
        say(&mut near, b"the last").await;
        let mut all = Vec::new();
        let far_end = async {
            far.read_to_end(&mut all).await.expect("it was said that nothing follows");
            far.shutdown().await.unwrap();
        };
        let (closed, ()) = tokio::join!(poll_fn(|cx| near.poll_close(cx)), far_end);
        closed.unwrap();
        assert_eq!(all, b"the last");
        let (mut near, mut far) = both().await;
        far.write_all(b"its last").await.unwrap();
        far.shutdown().await.unwrap();
        assert_eq!(hear(&mut near, 8).await, b"its last");
        assert_eq!(poll_fn(|cx| near.poll_hear(cx, &mut [], &mut |_| {})).await.unwrap(), 0);
        assert_eq!(poll_fn(|cx| near.poll_receive(cx, &mut [0; 9])).await.unwrap(), 0);
    });
}

/// A key of one direction, and the number of its next record.
struct Key {
    key: LessSafeKey,
    mask: [u8; 12],
    number: u64,
}

impl Key {
    fn new((number, secrets): (u64, ConnectionTrafficSecrets)) -> Self {
        let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else { panic!("another cipher") };
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_ref()).unwrap());
        Self { key, mask: iv.as_ref().try_into().unwrap(), number }
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.mask;
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// A record with zeros behind its content.
    fn seal(&mut self, kind: u8, carried: &[u8], zeros: usize) -> Vec<u8> {
        let mut record = [&[0; HEADER_BYTES][..], carried, &[kind][..usize::from(kind != 0)]].concat();
        record.resize(record.len() + zeros, 0);
        let length = u16::try_from(record.len() - HEADER_BYTES + TAG_BYTES).unwrap().to_be_bytes();
        record[..HEADER_BYTES].copy_from_slice(&[DATA, 3, 3, length[0], length[1]]);
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let nonce = self.nonce();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), body).unwrap();
        record.extend_from_slice(tag.as_ref());
        record
    }

    /// The kind and the content of a record.
    fn open(&mut self, mut record: Vec<u8>) -> (u8, Vec<u8>) {
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let nonce = self.nonce();
        let plain = self.key.open_in_place(nonce, Aad::from(&*header), body).unwrap();
        let (kind, carried) = plain.split_last().unwrap();
        (*kind, carried.to_vec())
    }
}

/// Somebody at the other end who has the keys, and says what no TLS would say.
struct HostilePeer {
    socket: TcpStream,
    seals: Key,
    opens: Key,
}

impl HostilePeer {
    async fn with(configurations: &(Arc<ServerConfig>, Arc<ClientConfig>)) -> (Near, Self) {
        let (near, far) = both_of(configurations.clone()).await;
        let (socket, session) = far.into_inner();
        let secrets = session.dangerous_extract_secrets().unwrap();
        (near, Self { socket, seals: Key::new(secrets.tx), opens: Key::new(secrets.rx) })
    }

    /// The kind and the content of what it is told next.
    async fn told(&mut self) -> (u8, Vec<u8>) {
        let mut record = vec![0; HEADER_BYTES];
        self.socket.read_exact(&mut record).await.unwrap();
        let body = usize::from(u16::from_be_bytes([record[3], record[4]]));
        record.resize(HEADER_BYTES + body, 0);
        self.socket.read_exact(&mut record[HEADER_BYTES..]).await.unwrap();
        self.opens.open(record)
    }
}

/// The content that is heard until something else comes: the end, or an error.
async fn all(near: &mut Near) -> (Vec<u8>, io::Result<()>) {
    let mut heard = Vec::new();
    loop {
        match poll_fn(|cx| near.poll_hear(cx, &mut [], &mut |bytes| heard.extend_from_slice(bytes))).await {
            Ok(0) => return (heard, Ok(())),
            Ok(_) => {}
            Err(error) => return (heard, Err(error)),
        }
    }
}

/// It refuses these records, and tells the other side so; no byte of what comes behind them is
/// heard.
async fn refuses(
    configurations: &(Arc<ServerConfig>, Arc<ClientConfig>),
    make: impl FnOnce(&mut Key) -> Vec<u8>,
    what: &str,
) {
    let (mut near, mut hostile) = HostilePeer::with(configurations).await;
    let mut records = make(&mut hostile.seals);
    records.extend(hostile.seals.seal(DATA, b"behind", 0));
    hostile.socket.write_all(&records).await.unwrap();
    let (heard, end) = all(&mut near).await;
    assert!(heard.is_empty(), "{what}: it hears {heard:?}");
    let error = end.expect_err(what);
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what}");
    let again = poll_fn(|cx| near.poll_hear(cx, &mut [], &mut |_| panic!("{what}: it goes on"))).await;
    assert!(again.is_ok_and(|heard| heard == 0), "{what}");
    assert!(poll_fn(|cx| near.poll_send(cx, b"more")).await.is_err(), "{what}: it goes on");
    drop(near);
    let mut told = Vec::new();
    hostile.socket.read_to_end(&mut told).await.unwrap();
    if told.is_empty() {
        // rustls has no alert for a record without a kind. The end is no orderly one all the same.
        assert!(
            error.to_string().contains("InnerPlaintext"),
            "{what}: {error}, and the other side is not told"
        );
        return;
    }
    let (kind, alert) = hostile.opens.open(told);
    assert!(kind == ALERT && alert[0] == 2 && alert[1] != 0, "{what}: {alert:?}");
}

#[test]
fn a_record_that_was_spoiled_or_repeated_or_overtaken_ends_it() {
    run(async {
        let configurations = configurations();
        let length = HEADER_BYTES + 5 + 1 + TAG_BYTES;
        for (at, bit) in (0..length).flat_map(|at| [(at, 1), (at, 128)]) {
            // Nobody looks at the outer kind and the minor version (what is sealed is whole), and
            // what is spoiled of the length is waited for.
            if (at, bit) == (0, 1) || (2..HEADER_BYTES).contains(&at) {
                continue;
            }
            let spoil = |key: &mut Key| {
                let mut record = key.seal(DATA, b"first", 0);
                record[at] ^= bit;
                record
            };
            refuses(&configurations, spoil, &format!("bit {bit} of byte {at}")).await;
        }
        let (mut near, mut hostile) = HostilePeer::with(&configurations).await;
        let record = hostile.seals.seal(DATA, b"first", 0);
        hostile.socket.write_all(&[&record[..], &record].concat()).await.unwrap();
        let (heard, end) = all(&mut near).await;
        assert!(heard == b"first" && end.is_err(), "it was repeated: {heard:?}");
        let overtaken = |key: &mut Key| {
            let first = key.seal(DATA, b"first", 0);
            [key.seal(DATA, b"other", 0), first].concat()
        };
        refuses(&configurations, overtaken, "it was overtaken").await;
        let other = |key: &mut Key| {
            let secrets = ConnectionTrafficSecrets::Aes256Gcm { key: [7; 32].into(), iv: key.mask.into() };
            Key::new((key.number, secrets)).seal(DATA, b"first", 0)
        };
        refuses(&configurations, other, "another key").await;
    });
}

#[test]
fn what_is_no_record_is_refused_before_it_is_waited_for() {
    run(async {
        let configurations = configurations();
        for header in [[0, 3, 3, 0, 20], [DATA, 3, 3, 0xff, 0xff], [DATA, 3, 3, 0x48, 1], [DATA, 2, 0, 0, 20]]
        {
            refuses(&configurations, |_| header.to_vec(), &format!("{header:?}")).await;
        }
        // As in a handshake: nothing of that is encrypted.
        for record in [&[ALERT, 3, 3, 0, 2, 1, 0][..], &[HANDSHAKE, 3, 3, 0, 5, 24, 0, 0, 1, 0]] {
            refuses(&configurations, |_| record.to_vec(), &format!("{record:?}")).await;
        }
        let change = [CHANGE_OF_CIPHERS, 3, 3, 0, 1, 1];
        refuses(&configurations, |_| change.to_vec(), "a change of ciphers").await;
    });
}

#[test]
fn every_word_of_who_has_the_keys_is_understood_or_refused() {
    run(async {
        let configurations = configurations();
        for (kind, carried, zeros, heard) in [
            (DATA, &b"data"[..], 0, &b"databehind"[..]),
            (DATA, b"data", 200, b"databehind"),
            (DATA, b"", 0, b"behind"),
            (ALERT, &[1, 0], 0, b""),
            (ALERT, &[1, 90], 0, b"behind"),
        ] {
            let (mut near, mut hostile) = HostilePeer::with(&configurations).await;
            let records = [hostile.seals.seal(kind, carried, zeros), hostile.seals.seal(DATA, b"behind", 0)];
            hostile.socket.write_all(&records.concat()).await.unwrap();
            hostile.socket.shutdown().await.unwrap();
            assert_eq!(all(&mut near).await.0, heard, "{kind} {carried:?}");
        }
        let nonsense: [(u8, &[u8], usize, &str); 13] = [
            (0, b"", 1, "no kind"),
            (0, b"", 64, "zeros"),
            (DATA, &[1; CARRIED_BYTES_MAX + 1], 0, "a byte more than a record carries"),
            (CHANGE_OF_CIPHERS, &[1], 0, "a change of ciphers"),
            (24, b"heartbeat", 0, "a heartbeat"),
            (ALERT, &[], 0, "an empty alert"),
            (ALERT, &[1], 0, "half an alert"),
            (ALERT, &[1, 0, 0], 0, "an alert and more"),
            (ALERT, &[9, 0xff], 0, "an alert of no level"),
            (HANDSHAKE, &[24, 0, 0, 1, 2], 0, "a change of keys of no kind"),
            (HANDSHAKE, &[24, 0, 0, 2, 1, 0], 0, "a long change of keys"),
            (HANDSHAKE, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], 0, "two changes of keys in one record"),
            (HANDSHAKE, &[1, 0, 0, 0], 0, "another handshake"),
        ];
        for (kind, carried, zeros, what) in nonsense {
            refuses(&configurations, |key| key.seal(kind, carried, zeros), what).await;
        }
        // It is told why it ends, and answers nothing.
        let (mut near, mut hostile) = HostilePeer::with(&configurations).await;
        let revoked = [2, u8::from(AlertDescription::CertificateRevoked)];
        let record = hostile.seals.seal(ALERT, &revoked, 0);
        hostile.socket.write_all(&record).await.unwrap();
        let error = all(&mut near).await.1.unwrap_err();
        assert!(error.to_string().contains("CertificateRevoked"), "{error}");
        drop(near);
        assert_eq!(hostile.socket.read(&mut [0; 9]).await.unwrap(), 0);
    });
}

/// A session remembers where in what came a message is that is not whole yet. It would panic where
/// that is not in view when something is sealed.
#[test]
fn who_begins_a_message_and_does_not_end_it_is_answered_meanwhile() {
    run(async {
        let (mut near, mut hostile) = HostilePeer::with(&configurations()).await;
        let half =
            [hostile.seals.seal(DATA, b"before", 0), hostile.seals.seal(HANDSHAKE, &KEY_UPDATE[..4], 0)];
        hostile.socket.write_all(&half.concat()).await.unwrap();
        assert_eq!(hear(&mut near, 6).await, b"before");
        // The half of the message came with that.
        say(&mut near, b"meanwhile").await;
        put(&mut near, b"and this", 9).await;
        assert_eq!(hostile.told().await, (DATA, b"meanwhile".to_vec()));
        assert_eq!(hostile.told().await, (DATA, b"and this".to_vec()));
        hostile.socket.write_all(&hostile.seals.seal(DATA, b"out of place", 0)).await.unwrap();
        let (heard, end) = all(&mut near).await;
        assert!(heard.is_empty() && end.is_err());
    });
}

#[test]
fn who_says_nothing_again_and_again_is_refused() {
    run(async {
        let configurations = configurations();
        let (mut near, mut hostile) = HostilePeer::with(&configurations).await;
        let empty: Vec<u8> = (0..64).flat_map(|_| hostile.seals.seal(DATA, b"", 0)).collect();
        hostile.socket.write_all(&empty).await.unwrap();
        assert!(all(&mut near).await.1.is_err(), "records of nothing");
        let (mut near, mut hostile) = HostilePeer::with(&configurations).await;
        let cancelled: Vec<u8> = (0..64).flat_map(|_| hostile.seals.seal(ALERT, &[1, 90], 0)).collect();
        hostile.socket.write_all(&cancelled).await.unwrap();
        assert!(all(&mut near).await.1.is_err(), "alerts that say nothing");
        // Changes of keys: rustls makes them for us, and each key is used for nothing.
        let (mut near, mut far) = both_of(configurations).await;
        for _ in 0..64 {
            far.get_mut().1.refresh_traffic_keys().unwrap();
        }
        far.flush().await.unwrap();
        assert!(all(&mut near).await.1.is_err(), "changes of keys for nothing");
    });
}

#[test]
fn who_does_not_read_makes_nobody_hold_more_than_a_batch() {
    run(async {
        let (mut near, far) = both().await;
        let piece = content(CARRIED_BYTES_MAX);
        let mut put = 0;
        let full = poll_fn(|cx| {
            for _ in 0..10_000 {
                match near.poll_place(cx) {
                    Poll::Pending => return Poll::Ready(true),
                    Poll::Ready(place) => place.unwrap().unwrap().extend_from_slice(&piece),
                }
                near.placed(cx).unwrap();
                put += 1;
            }
            Poll::Ready(false)
        });
        assert!(full.await, "after {put} the socket takes more");
        assert!(near.outgoing.filled().len() <= OUTGOING_BYTES + CARRIED_BYTES_MAX + EXTRA_BYTES);
        drop(far);
    });
}
