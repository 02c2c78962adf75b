use super::*;
use crate::shake::client;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const PATIENCE: Duration = Duration::from_secs(30);

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
    let mut client = client.with_root_certificates(roots).with_no_client_auth();
    client.enable_secret_extraction = true;
    (Arc::new(server), Arc::new(client))
}

/// One of ours, and one of rustls' at the other end.
async fn both() -> (Encrypted<TcpStream>, TlsStream<TcpStream>) {
    let (server, config) = configurations();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    let (near, far) = tokio::join!(client(near, config, "peer"), TlsAcceptor::from(server).accept(far));
    (near.unwrap(), far.unwrap())
}

async fn say(near: &mut Encrypted<TcpStream>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let taken = poll_fn(|cx| near.poll_send(cx, bytes)).await.unwrap();
        bytes = &bytes[taken..];
    }
    poll_fn(|cx| near.poll_flush(cx)).await.unwrap();
}

/// By way of places, with some that stay empty.
async fn put(near: &mut Encrypted<TcpStream>, bytes: &[u8], piece: usize) {
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

async fn hear(near: &mut Encrypted<TcpStream>, bytes: usize) -> Vec<u8> {
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
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("in time") });
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
                // rustls asks us for another one in the same breath.
                far.get_mut().1.refresh_traffic_keys().unwrap();
            } else {
                near.owes_key = true;
            }
            far.write_all(&sent).await.unwrap();
            far.flush().await.unwrap();
            assert!(hear(&mut near, sent.len()).await == sent);
            assert!(round % 2 == 1 || near.owes_key, "it was asked for");
            put(&mut near, &sent, 9000).await;
            assert!(!near.owes_key);
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

#[test]
fn what_is_no_record_ends_it_and_the_other_side_is_told() {
    for nonsense in [
        &[0; 64][..],
        &[23, 3, 3, 0xff, 0xff],
        &[23, 3, 3, 0, 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
    ] {
        run(async {
            let (mut near, far) = both().await;
            let (mut socket, mut session) = far.into_inner();
            socket.write_all(nonsense).await.unwrap();
            let error = poll_fn(|cx| near.poll_hear(cx, &mut [], &mut |_| {})).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            let mut alert = [0; 64];
            let length = socket.read(&mut alert).await.unwrap();
            session.read_tls(&mut &alert[..length]).unwrap();
            let told = session.process_new_packets().unwrap_err();
            assert!(matches!(told, Error::AlertReceived(_)), "{told}");
        });
    }
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
        assert!(near.outgoing.capacity() <= OUTGOING_BYTES + 3 * (CARRIED_BYTES_MAX + EXTRA_BYTES));
        drop(far);
    });
}
