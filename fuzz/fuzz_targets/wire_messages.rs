//! Messages and packets of other parties. What must hold: no panic, and what is understood says the
//! same when it is said again.
#![cfg_attr(feature = "fuzzing", no_main)]

use fuzz::script::Script;
use wire::directory::{AddressQuery, Addresses, Names};
use wire::guest::{Decoder, Message};
use wire::meeting::Greeting;
use wire::service::{Header, Phase};
use wire::xen::Offer;
use wire::{control, proxy, service};

fuzz::target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 15 {
        0 => message(bytes),
        1 => {
            if let Ok(query) = AddressQuery::decode(bytes) {
                assert_eq!(again(|payload| query.encode(payload)), bytes);
            }
        }
        2 => {
            if let Ok(addresses) = Addresses::decode(bytes) {
                assert_eq!(again(|payload| addresses.encode(payload)), bytes);
                let _name = addresses.as_asked("a name.");
            }
        }
        3 => {
            if let Ok(names) = Names::decode(bytes) {
                assert_eq!(again(|payload| names.encode(payload)), bytes);
            }
        }
        4 => {
            if let Ok(greeting) = Greeting::decode(bytes) {
                assert_eq!(greeting.encode(), bytes);
            }
        }
        5 => json::<control::Request>(bytes),
        6 => json::<control::Reply>(bytes),
        7 => json::<service::Export>(bytes),
        8 => port(bytes),
        9 => json::<service::OpenInfo>(bytes),
        11 => json::<proxy::Order>(bytes),
        12 => json::<proxy::Report>(bytes),
        13 => json::<proxy::Open>(bytes),
        14 => json::<proxy::News>(bytes),
        _ => {
            if let Ok(offer) = Offer::parse(bytes) {
                assert_eq!(Offer::parse(offer.to_string().as_bytes()), Ok(offer));
            }
        }
    }
});

fn again(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

fn message(bytes: &[u8]) {
    let Ok((header, payload)) = Header::decode(bytes) else { return };
    assert_eq!(header.encode(), bytes[..service::HEADER_BYTES]);
    assert_eq!(payload.len(), header.length as usize);
    let trailer = u32::from(Script::new(payload).byte());
    if let Ok((answer, phases)) = Phase::split(payload, trailer) {
        assert_eq!(answer.len() + phases.len() * service::PHASE_BYTES, payload.len());
    }
}

/// Bytes that a guest may write into its port.
fn port(mut bytes: &[u8]) {
    let mut decoder = Decoder::default();
    while let Ok(Some(frame)) = decoder.next(&mut bytes) {
        let Ok(message) = Message::read(frame) else { return };
        let again = again(|payload| message.encode(payload));
        let frame = Decoder::default().next(&mut &again[..]).expect("what was read can be written");
        assert_eq!(frame.map(Message::read), Some(Ok(message)));
    }
}

/// Reads a packet, says it again, and reads that.
fn json<T>(bytes: &[u8])
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let Ok(said) = serde_json::from_slice::<T>(bytes) else { return };
    let again = serde_json::to_vec(&said).expect("what was read can be written");
    assert_eq!(serde_json::from_slice::<T>(&again).expect("what was written can be read"), said);
}
