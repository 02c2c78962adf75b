//! Nodes of a cluster in one process, on a registry in memory, each with a folder of its own.

use super::super::NodeRecord;
use super::super::tests::record;
use super::*;
use registry::Memory;
use tempfile::TempDir;
use trust::Shown;

struct Node {
    folder: TempDir,
    identity: Identity,
    pending: Option<Pending>,
}

struct Cluster {
    registry: Memory,
    nodes: BTreeMap<String, Node>,
}

impl Cluster {
    /// The first of these has the authority, and so has who is named in capitals.
    fn of(names: &[&str]) -> Self {
        let registry = Memory::default();
        let authority = Authority::new("lab", SystemTime::now()).unwrap();
        let record = Record {
            cluster: "lab".into(),
            certificate_pem: authority.certificate_pem(),
            successors: Vec::new(),
        };
        registry.put(AUTHORITY, &to_json(&record).unwrap(), Expected::Absent).unwrap();
        let mut cluster = Self { registry, nodes: BTreeMap::new() };
        for (n, name) in names.iter().enumerate() {
            let holds = n == 0 || *name != name.to_lowercase();
            cluster.enter(&authority, &name.to_lowercase(), holds);
        }
        cluster
    }

    fn enter(&mut self, authority: &Authority, name: &str, holds: bool) {
        let folder = tempfile::tempdir().unwrap();
        let identity = authority.identity(name, SystemTime::now()).unwrap();
        identity.store(folder.path()).unwrap();
        if holds {
            authority.store(folder.path()).unwrap();
        }
        let serial = identity.serial().to_string();
        let record = NodeRecord { serial, ..record(name, "10.0.0.1:7420") };
        self.registry.put(&format!("{NODES}{name}"), &to_json(&record).unwrap(), Expected::Absent).unwrap();
        self.nodes.insert(name.to_owned(), Node { folder, identity, pending: None });
    }

    fn part<T>(&self, name: &str, with: impl FnOnce(&Part<'_>) -> T) -> T {
        let node = &self.nodes[name];
        let fetch = |proof: &str, next| {
            let others = self.nodes.keys().filter(|other| *other != name);
            let given = others.filter_map(|other| self.handed(other, name, proof).ok());
            let mut given = given.filter_map(|pem| Authority::from_pem(&pem).ok());
            given.find(|given| given.fingerprint() == next).ok_or_else(|| failed("nobody has it"))
        };
        with(&Part {
            registry: &self.registry,
            identity: &node.identity,
            folder: node.folder.path(),
            changed: &|| {},
            fetch: &fetch,
        })
    }

    /// Returns the certificate that `name` shows to another node.
    fn shown(&self, to: &str, name: &str) -> Result<Shown, TrustError> {
        let config = std::fs::read_to_string(self.nodes[name].folder.path().join("identity.pem")).unwrap();
        let chain = config.find("-----BEGIN CERTIFICATE").map(|at| &config[at..]).unwrap();
        let chain: Vec<_> = pem_chain(chain);
        self.nodes[to].identity.shown(&chain)
    }

    fn handed(&self, by: &str, to: &str, proof: &str) -> Result<String, Problem> {
        let shown = self.shown(by, to).map_err(failed)?;
        let node = &self.nodes[by];
        hand_over(
            &Part {
                registry: &self.registry,
                identity: &node.identity,
                folder: node.folder.path(),
                changed: &|| {},
                fetch: &|_, _| Err(failed("not now")),
            },
            &shown,
            proof,
        )
    }

    fn begin(&self, name: &str) -> Result<String, Problem> {
        self.part(name, |part| part.replace(false))
    }

    fn step(&mut self, name: &str) -> Result<bool, Problem> {
        let mut pending = self.nodes.get_mut(name).unwrap().pending.take();
        let stepped = self.part(name, |part| part.step(&mut pending));
        self.nodes.get_mut(name).unwrap().pending = pending;
        stepped
    }

    /// As after `kill -9`: only what is in its files.
    fn restart(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        node.identity = Identity::load(node.folder.path()).unwrap();
        node.pending = None;
    }

    fn names(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    fn record(&self) -> Record {
        read(&self.registry).unwrap().0
    }

    fn view(&self, name: &str) -> AuthorityView {
        self.part(name, |part| part.view(&|node| self.nodes.contains_key(node))).unwrap()
    }

    /// All believe each other, at any moment.
    fn all_believe(&self) {
        for one in self.names() {
            for other in self.names() {
                self.shown(&one, &other).unwrap_or_else(|error| panic!("{one} of {other}: {error}"));
            }
        }
    }

    /// Checks that nothing of a replacement is left.
    fn is_settled(&self) {
        let record = self.record();
        assert_eq!(record.successors, []);
        let fingerprint = settled(&self.registry).unwrap();
        for (name, node) in &self.nodes {
            assert_eq!(node.identity.fingerprints(), [fingerprint], "{name}");
            assert_eq!(node.identity.issuer(), Some(fingerprint), "{name}");
            let stored = Identity::load(node.folder.path()).unwrap();
            assert_eq!((stored.serial(), stored.fingerprints()), (node.identity.serial(), vec![fingerprint]));
            assert!(Authority::load_next(node.folder.path()).unwrap().is_none(), "{name}");
            let key = format!("{NODES}{name}");
            let (entered, _) = get_json::<NodeRecord>(&self.registry, &key).unwrap().unwrap();
            assert_eq!(entered.serial, node.identity.serial().to_string(), "{name}");
            if let Some(own) = Authority::load(node.folder.path()).unwrap() {
                assert_eq!(own.fingerprint(), fingerprint, "{name}");
            }
        }
        assert!(self.registry.list(RENEWALS).unwrap().is_empty());
        self.all_believe();
    }
}

fn pem_chain(pem: &str) -> Vec<rustls::pki_types::CertificateDer<'static>> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

#[test]
fn everybody_believes_everybody_while_the_authority_is_replaced_in_any_order_and_over_any_death() {
    // Orders that differ, and in each of them somebody dies again and again.
    for seed in 0..20_usize {
        let mut cluster = Cluster::of(&["a", "B", "c", "d"]);
        let before = settled(&cluster.registry).unwrap();
        cluster.registry.put(&format!("{TOKENS}1"), b"{}", Expected::Absent).unwrap();
        cluster.begin("a").unwrap();
        assert_eq!(settled(&cluster.registry).unwrap_err().code, Code::Taken, "nobody joins meanwhile");
        let names = cluster.names();
        let mut state = seed.wrapping_mul(0x9e37_79b9) + 1;
        let mut steps = 0;
        while !cluster.record().successors.is_empty() || steps % names.len() != 0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let name = &names[(state >> 33) % names.len()];
            if (state >> 40) % 11 == 0 {
                cluster.restart(name);
            }
            // Whoever has the key may be away when it is asked for.
            let _again = cluster.step(name);
            cluster.all_believe();
            steps += 1;
            assert!(steps < 2_000, "seed {seed}: {:?}", cluster.view("a"));
        }
        for name in &names {
            assert!(!cluster.step(name).unwrap(), "it is done");
        }
        cluster.is_settled();
        assert_ne!(settled(&cluster.registry).unwrap(), before);
        assert!(cluster.registry.list(TOKENS).unwrap().is_empty(), "they name the one before");
        assert!(own(&cluster.registry, cluster.nodes["b"].folder.path()).unwrap().is_some(), "b had the key");
        assert!(own(&cluster.registry, cluster.nodes["c"].folder.path()).unwrap().is_none(), "c had not");
    }
}

fn round(cluster: &mut Cluster, names: &[&str]) {
    for _ in 0..8 {
        for name in names {
            cluster.step(name).unwrap();
        }
    }
}

#[test]
fn who_is_away_is_waited_for_and_said_and_who_is_removed_is_not() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.begin("a").unwrap();
    round(&mut cluster, &["a", "b"]);
    let gone = cluster.nodes.remove("c").unwrap();
    let waits = cluster.view("b").replacement.unwrap();
    assert_eq!(waits.by, "a");
    let [waits] = &waits.waits_for[..] else { panic!("{waits:?}") };
    assert!(!waits.alive && waits.node == "c" && waits.why.contains("node remove c"), "{waits:?}");
    let shows = cluster.nodes["b"].identity.issuer().unwrap();
    assert_eq!(cluster.view("b").fingerprint, shows.to_string(), "nobody shows the next one yet");
    super::super::join::leave(&cluster.registry, "c").unwrap();
    round(&mut cluster, &["a", "b"]);
    cluster.is_settled();
    // It was removed, and does nothing any more, also where another machine has its name by now.
    cluster.nodes.insert("c".into(), gone);
    let has = cluster.nodes["c"].identity.fingerprints();
    let entered = NodeRecord { serial: "4000".into(), ..record("c", "10.0.0.3:7420") };
    for _ in 0..2 {
        assert!(!cluster.step("c").unwrap());
        assert_eq!(cluster.nodes["c"].identity.fingerprints(), has);
        cluster.registry.put("node/c", &to_json(&entered).unwrap(), Expected::Anything).unwrap();
    }
    assert!(cluster.begin("c").unwrap_err().message.contains("was removed"));
    // One that was away, and would be believed by nobody, keeps what it has, and says so.
    let key = format!("{REVOKED}{}", cluster.nodes["c"].identity.serial());
    cluster.registry.delete(&key, Expected::Anything).unwrap();
    assert!(cluster.view("c").stranger && !cluster.view("a").stranger);
    let refusal = cluster.step("c").unwrap_err();
    assert!(refusal.message.contains("node join"), "{refusal}");
    assert_eq!(
        cluster.nodes["c"].identity.issuer(),
        cluster.nodes["c"].identity.fingerprints().first().copied()
    );
}

#[test]
fn when_the_node_that_began_is_lost_another_begins_anew_and_nobody_is_cut_off() {
    let mut cluster = Cluster::of(&["a", "B", "c"]);
    let refusal = cluster.begin("c").unwrap_err();
    assert!(refusal.code == Code::Refused && refusal.help.is_some(), "{refusal}");
    cluster.begin("a").unwrap();
    let again = cluster.begin("a").unwrap();
    assert!(again.contains("already"), "{again}");
    let other = cluster.begin("b").unwrap_err();
    assert!(other.message.contains("node a began"), "{other}");
    // Some show the first successor already.
    round(&mut cluster, &["b", "c"]);
    round(&mut cluster, &["a"]);
    cluster.step("c").unwrap();
    cluster.nodes.remove("a");
    super::super::join::leave(&cluster.registry, "a").unwrap();
    let waits = cluster.view("b").replacement.unwrap().waits_for;
    assert!(waits.iter().any(|one| one.node == "a" && one.why.contains("begins anew")), "{waits:?}");
    let first = cluster.record().successors[0].certificate_pem.clone();
    assert_eq!(cluster.nodes["c"].identity.issuer(), Some(fingerprint(&first).unwrap()));
    cluster.begin("b").unwrap();
    round(&mut cluster, &["b", "c"]);
    cluster.is_settled();
    assert_ne!(settled(&cluster.registry).unwrap(), fingerprint(&first).unwrap());
}

#[test]
fn the_next_ones_key_is_for_who_had_that_of_the_one_before_and_shows_a_certificate_of_the_next() {
    let mut cluster = Cluster::of(&["a", "B", "c"]);
    let former = Authority::load(cluster.nodes["a"].folder.path()).unwrap().unwrap();
    let refused =
        |cluster: &Cluster, to: &str, proof: &str| cluster.handed("a", to, proof).unwrap_err().message;
    let proven =
        |cluster: &Cluster, node: &str| former.proof(node, &cluster.nodes[node].identity.serial()).unwrap();
    let proof = proven(&cluster, "b");
    assert!(refused(&cluster, "b", &proof).contains("not being replaced"));
    cluster.begin("a").unwrap();
    round(&mut cluster, &["a"]);
    // Whoever has the authority of before can pretend to be a node, with a certificate of that.
    assert!(refused(&cluster, "b", &proof).contains("not of the next authority"));
    let former_of_c = proven(&cluster, "c");
    for name in ["b", "c", "a", "c"] {
        cluster.step(name).unwrap();
    }
    assert_eq!(
        cluster.nodes["c"].identity.issuer(),
        cluster.nodes["a"].identity.fingerprints().get(1).copied()
    );
    let own = Request::new("c").unwrap().pem().unwrap();
    for bad in [&proof, &own, &former_of_c] {
        assert!(refused(&cluster, "c", bad).contains("has not shown"), "{bad}");
    }
    assert!(refused(&cluster, "c", "hello").contains("the proof"));
    assert!(cluster.handed("a", "c", &proven(&cluster, "c")).is_ok(), "it had the key, then");
}

#[test]
fn who_missed_the_end_of_one_replacement_takes_part_in_the_next() {
    let mut cluster = Cluster::of(&["a", "B", "c"]);
    cluster.begin("a").unwrap();
    // All show; the end is made by a, and b has not seen it when the next one begins.
    round(&mut cluster, &["b", "c"]);
    cluster.step("a").unwrap();
    cluster.step("a").unwrap();
    for _ in 0..4 {
        cluster.step("c").unwrap();
    }
    cluster.step("b").unwrap();
    while cluster.view("a").replacement.is_some() {
        cluster.step("a").unwrap();
    }
    let missed = Authority::load(cluster.nodes["b"].folder.path()).unwrap().unwrap().fingerprint();
    assert_ne!(missed, settled(&cluster.registry).unwrap(), "b does not know of the end yet");
    cluster.begin("a").unwrap();
    cluster.restart("b");
    round(&mut cluster, &["a", "b", "c"]);
    cluster.is_settled();
    assert!(own(&cluster.registry, cluster.nodes["b"].folder.path()).unwrap().is_some());
}

#[test]
fn nothing_is_said_to_others_that_is_not_written_down_here() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let folder = cluster.nodes["b"].folder.path().to_owned();
    let away = folder.with_extension("away");
    let full = |full: bool| {
        let (from, to) = if full { (&folder, &away) } else { (&away, &folder) };
        std::fs::rename(from, to).unwrap();
    };
    let said = |cluster: &Cluster| {
        let entry = cluster.registry.get(&format!("{RENEWALS}b")).unwrap();
        entry.map(|entry| serde_json::from_slice::<Renewal>(&entry.value).unwrap())
    };
    cluster.begin("a").unwrap();
    full(true);
    for _ in 0..2 {
        cluster.step("b").unwrap_err();
        assert_eq!(said(&cluster), None, "it does not say that it believes the next one");
    }
    full(false);
    cluster.step("b").unwrap();
    for _ in 0..3 {
        cluster.step("a").unwrap();
    }
    assert!(said(&cluster).unwrap().chain_pem.is_some());
    full(true);
    for _ in 0..2 {
        cluster.step("b").unwrap_err();
        assert!(!said(&cluster).unwrap().shown, "it does not say that it shows it");
    }
    full(false);
    round(&mut cluster, &["a", "b"]);
    cluster.is_settled();
    cluster.restart("b");
    cluster.is_settled();
}

#[test]
fn a_registry_that_was_put_back_to_before_or_into_the_replacement_comes_right() {
    let mut cluster = Cluster::of(&["a", "B", "c"]);
    let before = cluster.registry.get(AUTHORITY).unwrap().unwrap().value;
    cluster.begin("a").unwrap();
    let during = cluster.registry.get(AUTHORITY).unwrap().unwrap().value;
    round(&mut cluster, &["a", "b", "c"]);
    cluster.is_settled();
    let (now, names) = (settled(&cluster.registry).unwrap(), ["a", "b", "c"]);
    // Into it: it comes to its end again, by itself, and nobody believes the former meanwhile. What
    // was issued is known again.
    let entered = to_json(&record("c", "10.0.0.1:7420")).unwrap();
    cluster.registry.put(&format!("{NODES}c"), &entered, Expected::Anything).unwrap();
    cluster.registry.put(AUTHORITY, &during, Expected::Anything).unwrap();
    for name in names {
        cluster.step(name).unwrap();
        assert_eq!(cluster.nodes[name].identity.fingerprints(), [now], "{name}");
    }
    round(&mut cluster, &names);
    cluster.is_settled();
    let serial = cluster.nodes["c"].identity.serial();
    assert!(cluster.registry.get(&format!("issued/c/{serial}")).unwrap().is_some());
    assert_eq!(settled(&cluster.registry).unwrap(), now);
    // To before: nobody goes back to the former, all believe each other, and somebody has to say
    // which it is.
    cluster.registry.put(AUTHORITY, &before, Expected::Anything).unwrap();
    for name in names {
        let refusal = cluster.step(name).unwrap_err();
        assert!(refusal.message.contains("--restored"), "{refusal}");
        assert!(cluster.view(name).stranger);
    }
    cluster.all_believe();
    let again = |cluster: &Cluster, name: &str| cluster.part(name, |part| part.replace(true));
    assert!(again(&cluster, "c").unwrap_err().message.contains("has not the key"));
    cluster.registry.put(&format!("{TOKENS}1"), b"{}", Expected::Absent).unwrap();
    assert!(again(&cluster, "b").unwrap().contains(&now.to_string()));
    assert!(cluster.registry.list(TOKENS).unwrap().is_empty(), "it names the former");
    assert!(again(&cluster, "b").unwrap_err().message.contains("as it is"));
    round(&mut cluster, &names);
    cluster.is_settled();
    assert_eq!(settled(&cluster.registry).unwrap(), now);
    // It is the machine that was put back, and not etcd.
    let later = Authority::new("lab", SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
    let younger =
        Record { cluster: "lab".into(), certificate_pem: later.certificate_pem(), successors: Vec::new() };
    cluster.registry.put(AUTHORITY, &to_json(&younger).unwrap(), Expected::Anything).unwrap();
    let refusal = again(&cluster, "b").unwrap_err();
    assert!(refusal.message.contains("younger") && refusal.help.is_some(), "{refusal}");
}

#[test]
fn what_could_not_be_issued_is_said_and_tried_again() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.begin("a").unwrap();
    cluster.step("a").unwrap();
    let nonsense = Renewal {
        request_pem: "hello".into(),
        ..Renewal::of(fingerprint(&cluster.record().successors[0].certificate_pem).unwrap())
    };
    cluster.registry.put(&format!("{RENEWALS}b"), &to_json(&nonsense).unwrap(), Expected::Anything).unwrap();
    let refusal = cluster.step("a").unwrap_err();
    assert!(refusal.message.contains("node b gets no certificate"), "{refusal}");
    round_over_errors(&mut cluster);
    cluster.is_settled();
}

fn round_over_errors(cluster: &mut Cluster) {
    for _ in 0..8 {
        for name in ["b", "a"] {
            let _again = cluster.step(name);
        }
    }
}

#[test]
fn nonsense_in_the_registry_is_asked_anew_or_said_and_loses_nothing() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.begin("a").unwrap();
    cluster.registry.put(&format!("{RENEWALS}b"), b"hello", Expected::Anything).unwrap();
    cluster.step("a").unwrap();
    assert_eq!(cluster.view("a").replacement.unwrap().waits_for.len(), 1);
    round(&mut cluster, &["a", "b"]);
    cluster.is_settled();
    let before = cluster.registry.get(AUTHORITY).unwrap().unwrap().value;
    let stranger = Authority::new("lab", SystemTime::now()).unwrap().certificate_pem();
    let record =
        |pem: &str| Record { cluster: "lab".into(), certificate_pem: pem.to_owned(), successors: Vec::new() };
    let serials = |cluster: &Cluster| cluster.nodes["b"].identity.fingerprints();
    let believed = serials(&cluster);
    let bad = [
        b"hello".to_vec(),
        b"{}".to_vec(),
        to_json(&record("")).unwrap(),
        to_json(&record(&stranger)).unwrap(),
    ];
    for bad in bad {
        cluster.registry.put(AUTHORITY, &bad, Expected::Anything).unwrap();
        cluster.step("b").unwrap_err();
        assert_eq!(serials(&cluster), believed, "what is in use stays");
    }
    cluster.registry.put(AUTHORITY, &before, Expected::Anything).unwrap();
    round(&mut cluster, &["a", "b"]);
    cluster.is_settled();
}

/// Anybody who could write into etcd named an authority of its own as the next one, and every node
/// believed it.
#[test]
fn nobody_believes_an_authority_that_the_one_before_has_not_signed() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let good = cluster.registry.get(AUTHORITY).unwrap().unwrap().value;
    let own = Authority::load(cluster.nodes["a"].folder.path()).unwrap().unwrap();
    let strange = Authority::new("lab", SystemTime::now()).unwrap();
    let successor = |signature: String| Successor {
        certificate_pem: strange.certificate_pem(),
        by: "a".into(),
        since_unix_s: 1,
        signature,
    };
    let words = successor(String::new()).words("lab").unwrap();
    let record =
        |certificate_pem: String, successors| Record { cluster: "lab".into(), certificate_pem, successors };
    let of_token = own.say(About::Token, &words).unwrap();
    let own_pem = own.certificate_pem();
    let as_next = Successor {
        certificate_pem: own_pem.clone(),
        ..successor(strange.say(About::Successor, &words).unwrap())
    };
    for forged in [
        record(own_pem.clone(), vec![successor(String::new())]),
        record(own_pem.clone(), vec![successor(strange.say(About::Successor, &words).unwrap())]),
        record(own_pem.clone(), vec![successor(of_token)]),
        record(
            own_pem.clone(),
            vec![Successor { by: "b".into(), ..successor(own.say(About::Successor, &words).unwrap()) }],
        ),
    ] {
        cluster.registry.put(AUTHORITY, &to_json(&forged).unwrap(), Expected::Anything).unwrap();
        for name in ["a", "b"] {
            let refusal = cluster.step(name).unwrap_err();
            assert!(refusal.message.contains("the registry names"), "{refusal}");
            assert_eq!(cluster.nodes[name].identity.fingerprints(), [own.fingerprint()]);
        }
    }
    // As if the strange one had been replaced by the one that there is: that is believed already,
    // and nobody else.
    let turned = record(strange.certificate_pem(), vec![as_next]);
    cluster.registry.put(AUTHORITY, &to_json(&turned).unwrap(), Expected::Anything).unwrap();
    for name in ["b", "a"] {
        cluster.step(name).unwrap();
        assert_eq!(cluster.nodes[name].identity.fingerprints(), [own.fingerprint()]);
    }
    let signed = record(own_pem, vec![successor(own.say(About::Successor, &words).unwrap())]);
    cluster.registry.put(AUTHORITY, &to_json(&signed).unwrap(), Expected::Anything).unwrap();
    cluster.step("b").unwrap();
    assert_eq!(cluster.nodes["b"].identity.fingerprints().len(), 2);
    cluster.registry.put(AUTHORITY, &good, Expected::Anything).unwrap();
    cluster.step("b").unwrap();
    assert_eq!(cluster.nodes["b"].identity.fingerprints(), [own.fingerprint()]);
}

/// Anybody who could write into etcd asked in a node's name while the authority was replaced, and
/// had a certificate of that name.
#[test]
fn nobody_is_given_the_certificate_of_a_node_that_has_not_signed_for_it() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.begin("a").unwrap();
    for name in ["a", "b", "c"] {
        cluster.step(name).unwrap();
    }
    let key = format!("{RENEWALS}b");
    let (asked, _) = get_json::<Renewal>(&cluster.registry, &key).unwrap().unwrap();
    let words = renewal_words("lab", &asked.authority, &asked.request_pem);
    let of_c = &cluster.nodes["c"].identity;
    let in_anothers_name = Renewal {
        shown_pem: of_c.chain_pem(),
        signature: of_c.say(About::Renewal, &words).unwrap(),
        ..asked.clone()
    };
    let strange = Request::new("b").unwrap().pem().unwrap();
    for forged in [
        Renewal { request_pem: strange, ..asked.clone() },
        Renewal { signature: String::new(), ..asked },
        in_anothers_name,
    ] {
        let forged = Renewal { chain_pem: None, ..forged };
        cluster.registry.put(&key, &to_json(&forged).unwrap(), Expected::Anything).unwrap();
        let refusal = cluster.step("a").unwrap_err();
        assert!(refusal.message.contains("node b gets no certificate"), "{refusal}");
        let (now, _) = get_json::<Renewal>(&cluster.registry, &key).unwrap().unwrap();
        assert_eq!(now.chain_pem, None);
    }
    round(&mut cluster, &["b", "c"]);
    round(&mut cluster, &["a", "b", "c"]);
    cluster.is_settled();
}
