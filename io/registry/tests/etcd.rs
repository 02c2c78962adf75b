//! The effects of etcd's faults on the programs that rely on it, each with the message that a
//! person reads.

#![allow(clippy::unwrap_used)]

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use registry::{
    Bound, Counted, Etcd, EtcdSettings, EtcdTls, Expected, Registry, RegistryError, Renewal, Suspected,
    Trouble, Watched,
};
use std::time::{Duration, Instant};
use testing::etcd::{EtcdServers, etcd_program, own_address};

const TIMEOUT: Duration = Duration::from_secs(20);
/// The longest duration of a call, on a machine that has other things to do.
const CALL: Duration = Duration::from_secs(12);

fn servers(count: usize, extra: &[&str]) -> Option<EtcdServers> {
    if etcd_program().is_none() {
        println!("skipped: there is no etcd; run `make deps`");
        return None;
    }
    Some(EtcdServers::start(count, extra).unwrap())
}

fn registry(servers: &EtcdServers) -> Etcd {
    let etcd = Etcd::new(EtcdSettings::new(&servers.endpoints())).unwrap();
    let begun = Instant::now();
    // Members that have just started choose a leader first.
    while let Err(error) = etcd.put("first", b"1", Expected::Anything) {
        assert!(begun.elapsed() < TIMEOUT, "{error}");
    }
    etcd
}

fn trouble<T: std::fmt::Debug>(outcome: Result<T, RegistryError>) -> (Trouble, String) {
    match outcome {
        Err(RegistryError::Etcd(error)) => (error.trouble, error.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_that_is_gone_or_says_nothing_is_told_from_one_that_lost_its_memory() {
    let Some(mut servers) = servers(1, &[]) else { return };
    let etcd = registry(&servers);
    assert!(etcd.check().unwrap().starts_with("3."));
    for n in 0..5_u8 {
        etcd.put("a", &[n], Expected::Anything).unwrap();
    }
    servers.stop(0).unwrap();
    let begun = Instant::now();
    let (kind, said) = trouble(etcd.get("a"));
    assert!(begun.elapsed() < CALL, "{:?}", begun.elapsed());
    assert_eq!(kind, Trouble::Slow, "{said}");
    assert!(said.contains("does not answer in time") && said.contains(&own_address().to_string()), "{said}");
    servers.go_on(0).unwrap();
    assert_eq!(etcd.get("a").unwrap().unwrap().value, [4]);

    servers.kill(0).unwrap();
    let begun = Instant::now();
    let (kind, said) = trouble(etcd.put("a", b"lost", Expected::Anything));
    assert!(begun.elapsed() < CALL);
    assert_eq!(kind, Trouble::Gone, "{said}");
    assert!(said.contains("can't be reached") && said.contains("etcdctl endpoint health"), "{said}");
    servers.restart(0).unwrap();
    assert_eq!(etcd.get("a").unwrap().unwrap().value, [4], "it goes on by itself");

    servers.restart_empty(0).unwrap();
    let (kind, said) = trouble(etcd.put("a", b"5", Expected::Anything));
    assert_eq!(kind, Trouble::WentBack, "{said}");
    assert!(said.contains("restored from a backup") && said.contains("restart the daemon"), "{said}");
    // Others have looked, and go on: who has not, does not, also when what was lost is passed
    // again.
    let other = registry(&servers);
    for n in 0..20_u8 {
        other.put("a", &[n], Expected::Anything).unwrap();
    }
    let (kind, said) = trouble(etcd.get("a"));
    assert_eq!(kind, Trouble::WentBack, "{said}");
}

#[test]
fn one_that_is_full_says_so_and_what_to_do() {
    let Some(servers) = servers(1, &["--quota-backend-bytes", "2000000"]) else { return };
    let etcd = registry(&servers);
    let refused = (0..100).find_map(|n| etcd.put(&format!("k{n}"), &[7; 200_000], Expected::Anything).err());
    let (kind, said) = trouble(Err::<(), _>(refused.unwrap()));
    assert_eq!(kind, Trouble::Full, "{said}");
    assert!(said.contains("is full") && said.contains("etcdctl alarm disarm"), "{said}");
    assert!(etcd.get("k0").unwrap().is_some(), "reading goes on");
    let (kind, said) = trouble(etcd.put("large", &[0; 3 << 20], Expected::Anything));
    assert!(kind == Trouble::TooLarge || kind == Trouble::Full, "{said}");
}

#[test]
fn of_three_members_one_may_go_and_two_are_missed() {
    let Some(mut servers) = servers(3, &[]) else { return };
    let etcd = registry(&servers);
    let watch = etcd.watch("w/").unwrap();
    for member in 0..3 {
        servers.kill(member).unwrap();
        let begun = Instant::now();
        while let Err(error) = etcd.put("w/x", &[member as u8], Expected::Anything) {
            assert!(begun.elapsed() < TIMEOUT, "{error}");
        }
        assert_eq!(etcd.get("w/x").unwrap().unwrap().value, [member as u8]);
        servers.restart(member).unwrap();
    }
    for member in 0..3_u8 {
        // A write whose answer was lost may have been made twice.
        let change = loop {
            let change = watch.next(TIMEOUT).unwrap().expect("a watch goes on over the loss of its member");
            if change.value != Some(vec![member.wrapping_sub(1)]) {
                break change;
            }
        };
        assert_eq!(change.value.unwrap(), [member]);
    }
    servers.kill(0).unwrap();
    servers.kill(1).unwrap();
    let (kind, said) = trouble(etcd.put("w/x", b"", Expected::Anything));
    assert!(matches!(kind, Trouble::NoLeader | Trouble::Slow), "{said}");
    assert!(said.contains(&own_address().to_string()), "{said}");
}

/// Returns the entry of the one that is called `a`.
fn alive(etcd: &Etcd) -> Bound {
    etcd.list_bound("alive/a").unwrap().into_iter().next().unwrap().1
}

#[test]
fn a_renewal_counts_while_no_suspicion_stands_and_who_leaves_one_stand_is_ended_with_all_that_is_bound() {
    let Some(servers) = servers(3, &[]) else { return };
    let (holder, other) = (registry(&servers), registry(&servers));
    let within = Duration::from_secs(3);
    let lease = holder.grant(Duration::from_secs(60)).unwrap();
    let life = holder.put_leased("alive/a", b"1", Expected::Absent, &lease).unwrap();
    holder.put_leased("claim/x", b"a", Expected::Absent, &lease).unwrap();
    let watched = Watched { alive: "alive/a", life, suspicion: "doubt/a" };
    let renew = || holder.renew_unsuspected(&lease, watched, within).unwrap();
    let of = alive(&other);
    assert_eq!((of.entry.revision, renew()), (life, Counted::Lasts));

    let Suspected::Stands(first) = other.suspect(watched, &of, b"first", within).unwrap() else { panic!() };
    // Who asks twice, because an answer was lost, has written one; who comes second finds it.
    assert_eq!(other.suspect(watched, &of, b"first", within).unwrap(), Suspected::Stands(first));
    let before = other.suspect(watched, &of, b"second", within).unwrap();
    assert!(matches!(&before, Suspected::Before(there) if there.revision == first), "{before:?}");
    assert!(matches!(renew(), Counted::Suspected(there) if there.value == b"first"));
    // It is taken away once, by who is in the life that is suspected.
    assert!(!holder.answer(Watched { life: life + 1, ..watched }, first, within).unwrap());
    assert!(holder.answer(watched, first, within).unwrap());
    assert!(!holder.answer(watched, first, within).unwrap());
    assert_eq!(renew(), Counted::Lasts);
    assert!(!other.end_suspected(watched, &of, first, b"over").unwrap(), "it was answered");

    let Suspected::Stands(second) = other.suspect(watched, &of, b"first", within).unwrap() else { panic!() };
    assert!(second > first);
    assert!(!other.end_suspected(watched, &of, first, b"over").unwrap(), "that one was answered");
    assert!(other.end_suspected(watched, &of, second, b"over").unwrap());
    assert!(!holder.answer(watched, second, within).unwrap(), "it is too late");
    assert!(matches!(renew(), Counted::Suspected(there) if there.value == b"over"));
    other.revoke_bound(&of).unwrap();
    other.revoke_bound(&of).unwrap();
    for key in ["alive/a", "doubt/a", "claim/x"] {
        assert_eq!(other.get(key).unwrap(), None, "{key}");
    }
    assert_eq!(renew(), Counted::Gone);
    assert_eq!(other.suspect(watched, &of, b"third", within).unwrap(), Suspected::Over);
}

/// That no suspicion stands is not enough: it goes with the life that was ended by it.
#[test]
fn a_renewal_does_not_count_for_another_life_although_nobody_suspects() {
    let Some(servers) = servers(1, &[]) else { return };
    let (etcd, within) = (registry(&servers), Duration::from_secs(3));
    let (one, two) =
        (etcd.grant(Duration::from_secs(60)).unwrap(), etcd.grant(Duration::from_secs(60)).unwrap());
    let life = etcd.put_leased("alive/a", b"1", Expected::Absent, &one).unwrap();
    let of = alive(&etcd);
    let watched = Watched { alive: "alive/a", life, suspicion: "doubt/a" };
    etcd.put_leased("alive/a", b"2", Expected::Anything, &two).unwrap();
    assert_eq!(etcd.renew_unsuspected(&one, watched, within).unwrap(), Counted::Gone);
    assert_eq!(etcd.suspect(watched, &of, b"late", within).unwrap(), Suspected::Over);
    etcd.delete("alive/a", Expected::Anything).unwrap();
    assert_eq!(etcd.renew_unsuspected(&two, watched, within).unwrap(), Counted::Gone);
}

#[test]
fn a_suspicion_is_written_as_soon_as_there_is_a_leader_again() {
    let Some(mut servers) = servers(3, &[]) else { return };
    let etcd = registry(&servers);
    let lease = etcd.grant(Duration::from_secs(60)).unwrap();
    let life = etcd.put_leased("alive/a", b"1", Expected::Absent, &lease).unwrap();
    let (of, watched) = (alive(&etcd), Watched { alive: "alive/a", life, suspicion: "doubt/a" });
    servers.kill(1).unwrap();
    servers.kill(2).unwrap();
    let refused = etcd.suspect(watched, &of, b"one", Duration::from_millis(300));
    assert!(matches!(refused, Err(RegistryError::Etcd(_))), "{refused:?}");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| etcd.suspect(watched, &of, b"one", TIMEOUT));
        servers.restart(1).unwrap();
        let said = waits.join().unwrap();
        assert!(matches!(said, Ok(Suspected::Stands(_))), "{said:?}");
    });
    assert_eq!(etcd.get("doubt/a").unwrap().unwrap().value, b"one");
}

#[test]
fn what_is_bound_to_a_lease_goes_with_it() {
    let Some(servers) = servers(1, &[]) else { return };
    let etcd = registry(&servers);
    let lease = etcd.grant(Duration::from_secs(2)).unwrap();
    etcd.put_leased("alive/a", b"1", Expected::Absent, &lease).unwrap();
    let watch = etcd.watch("alive/").unwrap();
    let begun = Instant::now();
    let (mut renewals, mut last) = (0, Instant::now());
    while begun.elapsed() < lease.ttl() + Duration::from_secs(1) {
        let sent = Instant::now();
        if etcd.renew(&lease, Duration::from_secs(1)).is_ok_and(|renewal| renewal != Renewal::Gone) {
            (renewals, last) = (renewals + 1, sent);
        }
        assert_eq!(watch.next(Duration::from_millis(200)).unwrap(), None, "it was renewed");
    }
    assert!(renewals > 3);
    let change = watch.next(TIMEOUT).unwrap().expect("nobody renews it");
    assert_eq!((change.key.as_str(), change.value), ("alive/a", None));
    assert!(last.elapsed() >= lease.ttl(), "it ended before its time: {:?}", last.elapsed());
    assert_eq!(etcd.renew(&lease, Duration::from_secs(3)).unwrap(), Renewal::Gone);
    let (kind, said) = trouble(etcd.put_leased("alive/a", b"1", Expected::Absent, &lease));
    assert_eq!(kind, Trouble::Lease, "{said}");
    let lease = etcd.grant(Duration::from_secs(60)).unwrap();
    etcd.put_leased("alive/a", b"2", Expected::Absent, &lease).unwrap();
    etcd.revoke(&lease).unwrap();
    etcd.revoke(&lease).unwrap();
    assert_eq!(etcd.get("alive/a").unwrap(), None);
}

#[test]
fn a_watch_goes_on_where_it_was_and_ends_where_etcd_has_forgotten() {
    let Some(mut servers) = servers(1, &[]) else { return };
    let etcd = registry(&servers);
    let watch = etcd.watch("w/").unwrap();
    etcd.put("w/1", b"1", Expected::Anything).unwrap();
    assert_eq!(watch.next(TIMEOUT).unwrap().unwrap().key, "w/1");
    servers.restart(0).unwrap();
    etcd.put("w/2", b"2", Expected::Anything).unwrap();
    assert_eq!(watch.next(TIMEOUT).unwrap().unwrap().key, "w/2");
    // While the watcher can't hear, what it misses is forgotten.
    servers.kill(0).unwrap();
    servers.restart(0).unwrap();
    let endpoint = servers.endpoints();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let compacted = runtime.block_on(async {
        let mut client = etcd_client::Client::connect(endpoint, None).await.unwrap();
        for n in 0..20_u8 {
            client.put("/tombolo/w/3", vec![n], None).await.unwrap();
        }
        let at = client.put("/tombolo/w/3", "last", None).await.unwrap();
        client.compact(at.header().unwrap().revision(), None).await.is_ok()
    });
    assert!(compacted);
    // Either it was back in time and heard all of it, or it is told that it was not: nothing is
    // missing unsaid.
    let mut heard = Vec::new();
    let told = loop {
        match watch.next(TIMEOUT) {
            Ok(Some(change)) if change.value.as_deref() == Some(b"last") => break true,
            Ok(Some(change)) => heard.push(change.value.unwrap()[0]),
            Ok(None) => break false,
            Err(_lagged) => break true,
        }
    };
    assert!(told);
    assert!(heard.iter().copied().eq(0..heard.len() as u8), "{heard:?}");
}

#[test]
fn settings_that_can_t_be_are_refused() {
    for (endpoints, why) in [
        (vec![], "1 to 16 endpoints"),
        (vec!["http://h:1".to_owned(); 17], "1 to 16 endpoints"),
        (vec!["h:2379".into()], "no URL"),
        (vec!["https://h:2379".into()], "belong together"),
    ] {
        let refusal = Etcd::new(EtcdSettings::new(&endpoints)).unwrap_err().to_string();
        assert!(refusal.contains(why), "{refusal}");
    }
}

#[test]
fn tls_is_mutual_and_who_is_not_trusted_gets_nothing() {
    if etcd_program().is_none() {
        println!("skipped: there is no etcd; run `make deps`");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (authority_key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_pem = params.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(params, &authority_key);
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let (server, ours) = (issue(&own_address().to_string()), issue("client"));
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    let extra = [
        format!("--cert-file={}", file("s.pem", &server.0)),
        format!("--key-file={}", file("s.key", &server.1)),
        format!("--trusted-ca-file={}", file("ca.pem", &authority_pem)),
        "--client-cert-auth".into(),
    ];
    let servers = EtcdServers::start(1, &extra.each_ref().map(String::as_str)).unwrap();
    let with = |authority_pem: &str, own_pem| {
        let tls = Some(EtcdTls { authority_pem: authority_pem.to_owned(), own_pem });
        Etcd::new(EtcdSettings { tls, ..EtcdSettings::new(&servers.endpoints()) }).unwrap()
    };
    with(&authority_pem, Some(ours.clone())).put("a", b"1", Expected::Absent).unwrap();
    let other_key = KeyPair::generate().unwrap();
    let other = CertificateParams::default().self_signed(&other_key).unwrap().pem();
    let (kind, said) = trouble(with(&other, Some(ours.clone())).get("a"));
    assert_eq!(kind, Trouble::Tls, "{said}");
    assert!(said.contains("we do not believe its certificate"), "{said}");
    // TLS 1.3 refuses a missing certificate after its handshake, when the client believes that all
    // is well.
    let begun = Instant::now();
    let (kind, said) = trouble(with(&authority_pem, None).get("a"));
    assert_eq!(kind, Trouble::Tls, "{said}");
    assert!(said.contains("wants a certificate of its clients") && said.contains("--etcd-cert"), "{said}");
    assert!(begun.elapsed() < CALL, "{:?}", begun.elapsed());
    let stranger =
        (CertificateParams::default().self_signed(&other_key).unwrap().pem(), other_key.serialize_pem());
    let (kind, said) = trouble(with(&authority_pem, Some(stranger)).put("a", b"2", Expected::Anything));
    assert_eq!(kind, Trouble::Tls, "{said}");
    assert!(said.contains("it refuses our certificate"), "{said}");
    let (kind, said) = trouble(with(&authority_pem, Some((ours.0, "no key".into()))).get("a"));
    assert_eq!(kind, Trouble::Tls, "{said}");
    assert!(said.contains("can't be read"), "{said}");
}
