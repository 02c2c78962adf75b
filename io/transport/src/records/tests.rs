use super::*;
use rustls::crypto::cipher::{AeadKey, Iv};

const DATA: ContentType = ContentType::ApplicationData;

fn secrets(seed: u8) -> ConnectionTrafficSecrets {
    ConnectionTrafficSecrets::Aes256Gcm { key: AeadKey::from([seed; 32]), iv: Iv::from([seed; 12]) }
}

/// Keys that are counted up.
struct Counted([u8; 2]);

impl Secrets for Counted {
    fn next_outward(&mut self) -> Result<ConnectionTrafficSecrets, Error> {
        self.0[0] += 1;
        Ok(secrets(self.0[0]))
    }

    fn next_inward(&mut self) -> Result<ConnectionTrafficSecrets, Error> {
        self.0[1] += 1;
        Ok(secrets(self.0[1]))
    }
}

fn pair() -> (Sealer, Opener, Counted) {
    (Sealer::new(&secrets(1), 5).unwrap(), Opener::new(&secrets(1), 5).unwrap(), Counted([1, 1]))
}

fn sealed(sealer: &mut Sealer, kind: ContentType, carried: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    sealer.whole(kind, carried, &mut record).unwrap();
    record
}

#[test]
fn what_is_sealed_is_opened_in_order_and_by_nobody_else() {
    let (mut sealer, mut opener, mut following) = pair();
    for length in [0, 1, 63, 64, 1000, CARRIED_BYTES_MAX] {
        let carried: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let mut record = sealed(&mut sealer, DATA, &carried);
        assert_eq!(record.len(), length + EXTRA_BYTES);
        assert_eq!(Opener::length(&record), Ok(Some(record.len())));
        assert_eq!(Opener::length(&record[..record.len() - 1]), Ok(None));
        let again = record.clone();
        assert_eq!(opener.open(&mut record, &mut following), Ok(Opened::Data(&carried)));
        let mut strange = Opener::new(&secrets(2), opener.key.number - 1).unwrap();
        assert_eq!(strange.open(&mut again.clone(), &mut following), Err(Error::DecryptError), "another key");
        let number = opener.key.number;
        assert_eq!(opener.open(&mut again.clone(), &mut following), Err(Error::DecryptError), "replayed");
        opener.key.number = number;
    }
    let [first, second] = [b"first", b"other"].map(|carried| sealed(&mut sealer, DATA, carried));
    assert_eq!(opener.open(&mut second.clone(), &mut following), Err(Error::DecryptError), "overtaken");
    opener.key.number -= 1;
    for (at, bit) in (0..first.len()).flat_map(|at| [(at, 1), (at, 128)]) {
        let mut spoiled = first.clone();
        spoiled[at] ^= bit;
        let whole = Opener::length(&spoiled).is_ok_and(|length| length == Some(spoiled.len()));
        assert!(!whole || opener.open(&mut spoiled, &mut following).is_err(), "{at}");
        opener.key.number -= u64::from(whole);
    }
    assert_eq!(opener.open(&mut first.clone(), &mut following), Ok(Opened::Data(b"first")));
}

#[test]
fn a_record_is_put_together_behind_others_and_no_longer_than_one_may_be() {
    let (mut sealer, mut opener, mut following) = pair();
    let mut records = b"before".to_vec();
    sealer.whole(DATA, b"one", &mut records).unwrap();
    let start = records.len();
    Sealer::begin(&mut records);
    records.extend_from_slice(b"two");
    sealer.end(DATA, &mut records, start).unwrap();
    let (before, mut rest) = records.split_at_mut(6);
    assert_eq!(before, b"before");
    for carried in [b"one", b"two"] {
        let length = Opener::length(rest).unwrap().unwrap();
        let (record, behind) = rest.split_at_mut(length);
        assert_eq!(opener.open(record, &mut following), Ok(Opened::Data(carried)));
        rest = behind;
    }
    assert!(rest.is_empty());
    assert!(sealer.whole(DATA, &vec![0; CARRIED_BYTES_MAX + 1], &mut Vec::new()).is_err());
}

#[test]
fn what_is_no_record_is_refused_before_it_is_waited_for() {
    assert_eq!(Opener::length(&[23, 3, 3, 0]), Ok(None));
    for kind in [0, 20, 21, 22, 24, 255] {
        assert!(Opener::length(&[kind, 3, 3, 0, 20]).is_err(), "{kind} is not encrypted");
    }
    let longest = u16::try_from(BODY_BYTES_MAX).unwrap();
    let [high, low] = longest.to_be_bytes();
    assert_eq!(Opener::length(&[23, 3, 3, high, low]), Ok(None));
    let [high, low] = (longest + 1).to_be_bytes();
    assert_eq!(Opener::length(&[23, 3, 3, high, low]), Err(Error::PeerSentOversizedRecord));
    let (_, mut opener, mut following) = pair();
    for mut short in [vec![], vec![23, 3, 3], vec![23, 3, 3, 0, 0], vec![23, 3, 3, 0, 15, 1, 2, 3]] {
        assert!(opener.open(&mut short, &mut following).is_err());
    }
}

/// Opens a record of somebody who has the keys, with zeros behind its content.
fn said(kind: u8, carried: &[u8], zeros: usize) -> Result<Opened<'static>, Error> {
    let (mut sealer, mut opener, mut following) = pair();
    let mut record = vec![0; HEADER_BYTES];
    record.extend_from_slice(carried);
    if kind != 0 {
        record.push(kind);
    }
    record.resize(record.len() + zeros, 0);
    let length = u16::try_from(record.len() - HEADER_BYTES + TAG_BYTES).unwrap().to_be_bytes();
    record[..HEADER_BYTES].copy_from_slice(&[23, 3, 3, length[0], length[1]]);
    let (nonce, (header, body)) = (sealer.0.nonce(), record.split_at_mut(HEADER_BYTES));
    let tag = sealer.0.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), body).unwrap();
    record.extend_from_slice(tag.as_ref());
    match opener.open(&mut record, &mut following)? {
        Opened::Data(bytes) => {
            assert_eq!(bytes, carried);
            Ok(Opened::Data(b""))
        }
        Opened::Rekeyed(wants) => Ok(Opened::Rekeyed(wants)),
        Opened::Ended => Ok(Opened::Ended),
        Opened::Nothing => Ok(Opened::Nothing),
    }
}

#[test]
fn every_word_of_who_has_the_keys_is_understood_or_refused() {
    assert_eq!(said(23, b"data", 0), Ok(Opened::Data(b"")));
    assert_eq!(said(23, b"data", 200), Ok(Opened::Data(b"")), "padded");
    assert_eq!(said(21, &[1, 0], 0), Ok(Opened::Ended));
    assert_eq!(said(21, &[1, 90], 0), Ok(Opened::Nothing));
    let revoked = AlertDescription::CertificateRevoked;
    assert_eq!(said(21, &[2, u8::from(revoked)], 0), Err(Error::AlertReceived(revoked)));
    assert_eq!(said(22, &[24, 0, 0, 1, 0], 0), Ok(Opened::Rekeyed(false)));
    assert_eq!(said(22, &[24, 0, 0, 1, 1], 0), Ok(Opened::Rekeyed(true)));
    assert_eq!(said(22, &[4, 0, 0, 2, 9, 9], 0), Ok(Opened::Nothing), "a ticket");
    let nonsense: [(u8, &[u8], usize); 14] = [
        (0, b"", 0),
        (0, b"", 64),
        (23, &[1; CARRIED_BYTES_MAX + 1], 0),
        (20, &[1], 0),
        (24, b"heartbeat", 0),
        (21, &[], 0),
        (21, &[1], 0),
        (21, &[1, 0, 0], 0),
        (22, &[], 0),
        (22, &[24, 0, 0], 0),
        (22, &[24, 0, 0, 1, 2], 0),
        (22, &[24, 0, 1, 1, 0], 0),
        (22, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], 0),
        (22, &[1, 0, 0, 0], 0),
    ];
    for (kind, carried, zeros) in nonsense {
        let error = said(kind, carried, zeros).expect_err("nonsense");
        let [level, what] = alert_of(&error).expect("it is told");
        assert!(level == 2 && what != 0, "{error}");
    }
    assert_eq!(alert_of(&Error::AlertReceived(revoked)), None, "nobody answers an alert");
}

#[test]
fn keys_follow_each_other_and_not_for_nothing() {
    let (mut sealer, mut opener, mut near) = pair();
    let mut far = Counted([1, 1]);
    for _ in 0..=REKEYS_MAX {
        for number in 0..REKEY_RECORDS_MIN {
            let mut record = sealed(&mut sealer, DATA, &number.to_le_bytes());
            assert_eq!(opener.open(&mut record, &mut far), Ok(Opened::Data(&number.to_le_bytes())));
        }
        let mut record = Vec::new();
        sealer.rekey(&mut near, &mut record).unwrap();
        assert_eq!(opener.open(&mut record, &mut far), Ok(Opened::Rekeyed(false)));
    }
    assert_eq!(near.0[0], far.0[1]);
    let mut refused = None;
    for _ in 0..=REKEYS_MAX {
        let mut record = Vec::new();
        sealer.rekey(&mut near, &mut record).unwrap();
        refused = opener.open(&mut record, &mut far).err();
    }
    assert!(refused.is_some_and(|error| error.to_string().contains("for nothing")));
    assert!(!sealer.is_worn());
    sealer.0.number = KEY_RECORDS_MAX;
    assert!(sealer.is_worn());
}
