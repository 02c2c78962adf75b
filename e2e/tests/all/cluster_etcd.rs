//! A cluster on an etcd that has its own will: TLS with certificates of clients, read-only, full,
//! slow, gone, put back to an older day.

use e2e::cluster::{Bed, Host, etcd_program};
use e2e::{Run, node};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often a busy machine may be too slow.
const TRIES: usize = 3;
/// Questions to etcd at the same time: more than a node has threads for them.
const QUESTIONS: usize = 20;

/// One etcd, on the first node of a bed.
struct Etcd<'b> {
    bed: &'b Bed,
    host: &'b Host,
    scheme: &'static str,
    more: Vec<String>,
    /// The keys that etcdctl(1) shows it.
    shown: Vec<String>,
    /// The process that entered the node for it: it stops when that does.
    parent: Cell<u32>,
}

impl<'b> Etcd<'b> {
    fn start(bed: &'b Bed, scheme: &'static str, more: Vec<String>) -> Self {
        let (shown, parent) = (Vec::new(), Cell::default());
        let etcd = Self { bed, host: bed.host(0), scheme, more, shown, parent };
        etcd.spawn();
        etcd
    }

    fn url(&self) -> String {
        format!("{}://{}:2379", self.scheme, self.host.port().address)
    }

    fn data(&self) -> PathBuf {
        self.host.folder().join("own-etcd")
    }

    fn spawn(&self) {
        let log =
            std::fs::File::options().create(true).append(true).open(self.host.folder().join("etcd.log"));
        let log = log.expect("the log of etcd");
        let peer = "http://127.0.0.1:2380";
        let mut etcd = self.host.inside(&etcd_program().expect("an etcd"));
        etcd.args(["--name", "own", "--unsafe-no-fsync", "--data-dir"]).arg(self.data());
        etcd.args(["--listen-client-urls", &self.url(), "--advertise-client-urls", &self.url()]);
        etcd.args([
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            &format!("own={peer}"),
        ]);
        etcd.args(["--heartbeat-interval", "100", "--election-timeout", "600"]).args(&self.more);
        let errors = log.try_clone().expect("a descriptor");
        let child = etcd.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("etcd starts");
        self.parent.set(child.id());
        self.host.keep(child);
        self.bed.until("etcd listens", TIMEOUT, || {
            let line = format!("exec 3<>/dev/tcp/{}/2379", self.host.port().address);
            self.host
                .inside(Path::new("bash"))
                .args(["-c", &line])
                .output()
                .is_ok_and(|run| run.status.success())
        });
    }

    fn pid(&self) -> Option<u32> {
        let data = self.data();
        let of_ours = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let is_etcd = words.first().is_some_and(|word| word.ends_with(b"/etcd") || *word == b"etcd");
            is_etcd && words.contains(&data.as_os_str().as_encoded_bytes())
        };
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).find(of_ours)
    }

    fn kill(&self) {
        node::kill_and_wait(&[self.pid().expect("it runs")]);
    }

    /// Stops it: it keeps its connections and says nothing. What entered the node for it stops when
    /// it sees that.
    fn stop(&self) {
        send(self.pid().expect("it runs"), Signal::STOP);
        self.bed.until("it is stopped", TIMEOUT, || self.stopped() == (true, true));
    }

    /// Lets it go on, by way of its parent: else that could stop later, and never reap it.
    fn go_on(&self) {
        send(self.parent.get(), Signal::CONT);
        self.bed.until("it goes on", TIMEOUT, || self.stopped() == (false, false));
    }

    fn stopped(&self) -> (bool, bool) {
        let stopped = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        (self.pid().is_some_and(stopped), stopped(self.parent.get()))
    }

    fn ctl(&self, arguments: &[&str]) -> Run {
        let program = etcd_program().expect("an etcd").with_file_name("etcdctl");
        let mut etcdctl = self.host.inside(&program);
        etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &self.url()]).args(&self.shown);
        etcdctl.args(arguments);
        etcdctl.output().expect("etcdctl starts").into()
    }

    /// As [`Etcd::ctl`], insisting on success.
    fn ctl_ok(&self, arguments: &[&str]) {
        let run = self.ctl(arguments);
        assert_eq!(run.code, 0, "etcdctl {arguments:?}: {run:?}");
    }

    /// How often anything has changed there.
    fn revision(&self) -> u64 {
        let status = self.ctl(&["endpoint", "status", "--write-out", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
        status[0]["Status"]["header"]["revision"].as_u64().expect("a revision")
    }

    /// From now on it asks who somebody is, by the name in the certificate: `root` may everything,
    /// `client` read and write what is ours.
    fn know_users(&self) {
        self.ctl_ok(&["role", "add", "tombolo"]);
        self.lets_nodes("readwrite");
        for (user, role) in [("root", "root"), ("client", "tombolo")] {
            self.ctl_ok(&["user", "add", user, "--no-password"]);
            self.ctl_ok(&["user", "grant-role", user, role]);
        }
        self.ctl_ok(&["auth", "enable"]);
    }

    fn lets_nodes(&self, what: &str) {
        self.ctl_ok(&["role", "grant-permission", "tombolo", what, "/tombolo/", "--prefix=true"]);
    }

    /// Puts back what was saved in a file.
    fn restore(&self, file: &str) {
        let data = self.data().display().to_string();
        let peer = ["--initial-cluster", "own=http://127.0.0.1:2380"];
        let peer = [&peer[..], &["--initial-advertise-peer-urls", "http://127.0.0.1:2380"]].concat();
        let restore = ["snapshot", "restore", file, "--name", "own", "--data-dir", &data];
        self.ctl_ok(&[&restore[..], &peer].concat());
    }

    /// Whether this machine can have one at all.
    fn missing() -> bool {
        let missing = etcd_program().is_none_or(|etcd| !etcd.with_file_name("etcdctl").exists());
        if missing {
            println!("skipped: needs etcd and etcdctl; run `make deps`");
        }
        missing
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, signal).expect("the signal is sent");
}

fn at(host: &Host) -> String {
    host.port().address.to_string()
}

fn init(host: &Host, etcd: &Etcd<'_>, more: &[&str]) -> Run {
    let init = ["node", "init", "--name", host.name(), "--address", &at(host), "--etcd", &etcd.url()];
    let open: &[&str] = if etcd.scheme == "http" { &["--insecure-etcd"] } else { &[] };
    host.run(&[&init[..], open, more].concat())
}

/// All nodes of the bed as one cluster, the first of which began it.
fn join_rest(bed: &Bed) {
    let first = bed.host(0);
    for host in bed.hosts().iter().skip(1) {
        let token = first.json(&["node", "token"])["token"].as_str().expect("a token").to_owned();
        host.ok(&[
            "node",
            "join",
            &at(first),
            &token,
            "--name",
            host.name(),
            "--address",
            &at(host),
            "--insecure-etcd",
        ]);
    }
    bed.until("every node sees every node", TIMEOUT, || {
        bed.hosts().iter().all(|host| alive(host) == bed.hosts().len())
    });
}

/// How many nodes are alive, as one says; none where it can't say so, or is fenced.
pub(crate) fn alive(host: &Host) -> usize {
    let run = host.run(&["node", "ls", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&run.out).unwrap_or_default();
    if said["fenced"] == true {
        return 0;
    }
    let nodes = said["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().filter(|node| node["alive"] == true).count()
}

/// Whether a node is fenced, for this reason.
fn fenced(host: &Host, why: &str) -> bool {
    let said = host.json(&["node", "ls"]);
    said["fenced"] == true && said["why"].as_str().is_some_and(|said| said.contains(why))
}

fn domain(name: &str, node: &str) -> String {
    format!(
        "name = \"{name}\"\n[domain.{name}]\nkind = \"process\"\nnode = \"{node}\"\ncommand = [\"sleep\", \"infinity\"]\n"
    )
}

/// Whether a domain runs on a node: by what its processes say, whatever the node says.
fn pid(host: &Host, domain: &str) -> Option<u64> {
    let run = host.run(&["inspect", domain, "--json"]);
    serde_json::from_str::<serde_json::Value>(&run.out).ok()?["pid"].as_u64()
}

fn refused(run: &Run, why: &[&str]) {
    assert!(run.code != 0 && why.iter().all(|why| run.err.contains(why)), "{why:?} is not why: {run:?}");
}

/// An authority, and what it signs, as files in a folder.
struct Signed<'f> {
    folder: &'f Path,
    name: &'static str,
    key: KeyPair,
    params: CertificateParams,
}

impl<'f> Signed<'f> {
    fn new(folder: &'f Path, name: &'static str) -> Self {
        let (key, mut params) = (KeyPair::generate().expect("a key"), CertificateParams::default());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("an authority").pem();
        std::fs::write(folder.join(format!("{name}.pem")), pem).expect("written");
        Self { folder, name, key, params }
    }

    fn authority(&self) -> String {
        self.folder.join(format!("{}.pem", self.name)).display().to_string()
    }

    /// Certificate and key.
    fn issue(&self, to: &str) -> [String; 2] {
        let key = KeyPair::generate().expect("a key");
        let issuer = Issuer::new(self.params.clone(), &self.key);
        let mut params = CertificateParams::new(vec![to.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, to);
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
        let file = |end: &str, text: String| {
            let path = self.folder.join(format!("{}-{to}.{end}", self.name));
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        [file("pem", certificate), file("key", key.serialize_pem())]
    }
}

#[test]
fn etcd_by_tls_knows_its_clients_and_says_what_it_has_against_others() {
    if Etcd::missing() {
        return;
    }
    let Some(bed) = Bed::start(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let (signed, other) = (Signed::new(bed.folder(), "ours"), Signed::new(bed.folder(), "other"));
    let [certificate, key] = signed.issue(&at(a));
    let more = [
        format!("--cert-file={certificate}"),
        format!("--key-file={key}"),
        format!("--trusted-ca-file={}", signed.authority()),
        "--client-cert-auth".to_owned(),
    ];
    let mut etcd = Etcd::start(&bed, "https", more.into());
    bed.start_daemon(a);
    bed.start_daemon(b);
    refused(&init(a, &etcd, &[]), &["https and the authority of its certificates belong together"]);
    let wrong = init(a, &etcd, &["--etcd-ca", &other.authority(), "--insecure-etcd"]);
    refused(&wrong, &["we do not believe its certificate"]);
    let unknown = init(a, &etcd, &["--etcd-ca", &signed.authority()]);
    refused(&unknown, &["we have no certificate for it", "--insecure-etcd"]);
    let none = init(a, &etcd, &["--etcd-ca", &signed.authority(), "--insecure-etcd"]);
    refused(&none, &["wants a certificate of its clients", "--etcd-cert"]);
    let [certificate, key] = other.issue("client");
    let theirs = ["--etcd-ca", &signed.authority(), "--etcd-cert", &certificate, "--etcd-key", &key];
    refused(&init(a, &etcd, &theirs), &["it refuses our certificate"]);
    let [certificate, key] = signed.issue("root");
    etcd.shown =
        ["--cacert", &signed.authority(), "--cert", &certificate, "--key", &key].map(Into::into).into();
    etcd.know_users();
    let [certificate, key] = signed.issue("client");
    let ours = ["--etcd-ca", &signed.authority(), "--etcd-cert", &certificate, "--etcd-key", &key];
    let begun = init(a, &etcd, &ours);
    assert_eq!(begun.code, 0, "{begun:?}{}", bed.logs());
    // Who joins is given what it takes.
    join_rest(&bed);
    a.up_ok(&domain("one", "beta"));
    an_etcd_that_lets_nodes_read_alone_is_told_with_what_to_grant(&bed, &etcd);
    a.ok(&["down", "--all"]);
    bed.finish();
}

fn an_etcd_that_lets_nodes_read_alone_is_told_with_what_to_grant(bed: &Bed, etcd: &Etcd<'_>) {
    let [a, b] = [bed.host(0), bed.host(1)];
    let lives = pid(b, "one");
    assert!(lives.is_some());
    etcd.lets_nodes("read");
    let told = ["does not let us", "etcdctl role grant-permission"];
    refused(&a.up(&domain("two", "beta")), &told);
    refused(&a.run(&["node", "token"]), &told);
    // Leases can be renewed by who may read: those that live go on, for longer than a lease lasts.
    let begun = Instant::now();
    bed.until("some leases are over", TIMEOUT, || {
        assert_eq!((alive(a), alive(b)), (2, 2), "a node is cut off{}", bed.logs());
        begun.elapsed() > Duration::from_secs(4)
    });
    assert_eq!(pid(b, "one"), lives);
    // A daemon that comes now can't say that it lives, and says why; what may not run elsewhere
    // goes on.
    b.kill_role("daemon");
    bed.start_daemon(b);
    bed.until("it says why", TIMEOUT, || fenced(b, told[0]) && fenced(b, told[1]));
    refused(&b.up(&domain("two", "beta")), &["is cut off from its cluster", told[0]]);
    assert_eq!(pid(b, "one"), lives);
    etcd.lets_nodes("readwrite");
    bed.until("every node is back", TIMEOUT, || alive(a) == 2 && alive(b) == 2);
    a.up_ok(&domain("two", "beta"));
    assert_eq!(pid(b, "one"), lives);
}

#[test]
fn a_full_etcd_changes_nothing_says_so_and_nobody_is_cut_off() {
    if Etcd::missing() {
        return;
    }
    let Some(bed) = Bed::start(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let etcd = Etcd::start(&bed, "http", vec!["--quota-backend-bytes=2000000".into()]);
    bed.start_daemon(a);
    bed.start_daemon(b);
    let begun = init(a, &etcd, &[]);
    assert_eq!(begun.code, 0, "{begun:?}{}", bed.logs());
    join_rest(&bed);
    a.up_ok(&domain("one", "beta"));
    let lives = pid(b, "one");
    // Somebody else fills it.
    let large = "x".repeat(100_000);
    let full =
        (0..100).any(|n| etcd.ctl(&["put", &format!("/junk/{n}"), &large]).err.contains("space exceeded"));
    assert!(full, "it takes everything");
    refused(&a.up(&domain("two", "beta")), &["is full", "etcdctl alarm disarm"]);
    refused(&a.run(&["node", "token"]), &["is full"]);
    // Longer than a lease lasts: those that there are go on.
    let begun = Instant::now();
    bed.until("some leases are over", TIMEOUT, || {
        assert_eq!((alive(a), alive(b)), (2, 2), "a node is cut off{}", bed.logs());
        begun.elapsed() > Duration::from_secs(4)
    });
    assert_eq!(pid(b, "one"), lives);
    // A daemon that comes now gets no lease, and says why; what may not run elsewhere goes on.
    b.kill_role("daemon");
    bed.start_daemon(b);
    bed.until("it says why", TIMEOUT, || fenced(b, "is full"));
    refused(&b.up(&domain("two", "beta")), &["is cut off from its cluster", "is full"]);
    assert_eq!(pid(b, "one"), lives);
    // Room is made, as the message says.
    let emptied = etcd.ctl(&["del", "--prefix", "/junk/"]);
    assert_eq!(emptied.code, 0, "{emptied:?}");
    let revision = etcd.revision().to_string();
    for arguments in [&["compact", &revision][..], &["defrag"], &["alarm", "disarm"]] {
        let run = etcd.ctl(arguments);
        assert_eq!(run.code, 0, "{run:?}");
    }
    bed.until("every node is back", TIMEOUT, || alive(a) == 2 && alive(b) == 2);
    a.up_ok(&domain("two", "beta"));
    assert_eq!(pid(b, "one"), lives);
    a.ok(&["down", "--all"]);
    bed.finish();
}

/// Two nodes that are one cluster on it, with a domain on the second.
fn with_a_domain(bed: &Bed) -> Etcd<'_> {
    let etcd = Etcd::start(bed, "http", Vec::new());
    for host in bed.hosts() {
        bed.start_daemon(host);
    }
    let begun = init(bed.host(0), &etcd, &[]);
    assert_eq!(begun.code, 0, "{begun:?}{}", bed.logs());
    join_rest(bed);
    bed.host(0).up_ok(&domain("one", "beta"));
    etcd
}

#[test]
fn an_etcd_that_is_slow_is_told_from_one_that_is_gone_and_what_runs_goes_on() {
    if Etcd::missing() {
        return;
    }
    let Some(bed) = Bed::start(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let etcd = with_a_domain(&bed);
    let lives = pid(b, "one");
    let both = |why: &str| fenced(a, why) && fenced(b, why);
    etcd.stop();
    bed.until("it is too slow", TIMEOUT, || both("does not answer in time"));
    refused(&a.up(&domain("two", "beta")), &["is cut off from its cluster", "does not answer in time"]);
    etcd.go_on();
    bed.until("every node is back", TIMEOUT, || alive(a) == 2 && alive(b) == 2);
    etcd.kill();
    bed.until("it is gone", TIMEOUT, || both("can't be reached"));
    etcd.spawn();
    bed.until("every node is back", TIMEOUT, || alive(a) == 2 && alive(b) == 2);
    assert_eq!(pid(b, "one"), lives);
    a.ok(&["down", "--all"]);
    bed.finish();
}

/// Questions to etcd that nobody answers wait by themselves: whoever works with what runs on a node
/// is served.
#[test]
fn an_etcd_that_stands_still_holds_up_those_who_ask_it_and_nobody_else() {
    if Etcd::missing() {
        return;
    }
    let Some(bed) = Bed::start(2) else { return };
    let etcd = with_a_domain(&bed);
    let beta = bed.host(1);
    etcd.stop();
    // More than there are threads for such questions.
    let asks: Vec<Child> = (0..QUESTIONS)
        .map(|_| {
            let mut ask = beta.command(&["node", "token"]);
            ask.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("tombolo starts")
        })
        .collect();
    for _ in 0..3 {
        beta.ok(&["exec", "one", "--", "true"]);
        beta.ok(&["restart", "one"]);
        beta.ok(&["node", "ls"]);
        beta.ok(&["inspect", "node"]);
    }
    etcd.go_on();
    for ask in asks {
        // Each ends: with a token, or with why there is none.
        ask.wait_with_output().expect("it ends");
    }
    bed.until("both live", TIMEOUT, || alive(beta) == 2);
    bed.host(0).ok(&["down", "--all"]);
    bed.finish();
}

/// The incarnations of all nodes, as one of them shows them.
fn incarnations(host: &Host) -> Vec<u64> {
    let said = host.json(&["node", "ls"]);
    let nodes = said["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().filter_map(|node| node["incarnation"].as_u64()).collect()
}

/// The nodes that were suspected, by the history that etcd keeps.
fn suspected(etcd: &Etcd<'_>, revisions: std::ops::RangeInclusive<u64>) -> Vec<String> {
    let mut found: Vec<String> = revisions
        .flat_map(|revision| {
            let revision = format!("--rev={revision}");
            let said = etcd.ctl(&["get", "--prefix", "/tombolo/doubt/", "--keys-only", &revision]);
            said.out
                .lines()
                .filter_map(|key| key.strip_prefix("/tombolo/doubt/"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Stops etcd for less than a lease leaves, and for longer than a renewal takes. Whether both nodes
/// were suspected, and went on all the same: a machine that is so busy that they are cut off by
/// that proves nothing.
fn goes_on_although_suspected(bed: &Bed, etcd: &Etcd<'_>) -> bool {
    let (a, before) = (bed.host(0), etcd.revision());
    let lived = incarnations(a);
    etcd.stop();
    let stopped = Instant::now();
    bed.until("they wait for it", TIMEOUT, || stopped.elapsed() > Duration::from_millis(650));
    etcd.go_on();
    let took = stopped.elapsed();
    // Longer than who suspects waits for an answer.
    bed.until("suspicions would be ripe", TIMEOUT, || stopped.elapsed() > took + Duration::from_secs(4));
    let suspected = suspected(etcd, before + 1..=etcd.revision());
    let live = incarnations(a);
    println!(
        "etcd stood still for {took:?}; suspected: {suspected:?}; incarnations {lived:?}, then {live:?}"
    );
    suspected == ["alpha", "beta"] && live == lived
}

#[test]
fn nodes_that_are_suspected_while_etcd_stands_still_go_on() {
    if Etcd::missing() {
        return;
    }
    let Some(bed) = Bed::start(2) else { return };
    let etcd = with_a_domain(&bed);
    let lives = pid(bed.host(1), "one");
    let went_on = (0..TRIES).any(|_| {
        bed.until("both take part", TIMEOUT, || bed.hosts().iter().all(|host| alive(host) == 2));
        goes_on_although_suspected(&bed, &etcd)
    });
    assert!(went_on, "{TRIES} times they were not suspected, or their lives were over{}", bed.logs());
    assert_eq!(pid(bed.host(1), "one"), lives);
    bed.host(0).ok(&["down", "--all"]);
    bed.finish();
}

/// The content of etcd at a key: the value, the revision, and in JSON nothing where there is none.
fn held(etcd: &Etcd<'_>, key: &str) -> serde_json::Value {
    let run = etcd.ctl(&["get", key, "--write-out", "json"]);
    let said: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    said["kvs"][0].clone()
}

/// Whoever may write into etcd can write suspicions, too: of them only the word that this very life
/// is over ends it, and the node comes back.
#[test]
fn suspicions_that_are_garbage_or_of_another_life_end_nothing() {
    if Etcd::missing() {
        return;
    }
    let Some(bed) = Bed::start(2) else { return };
    let etcd = with_a_domain(&bed);
    let [a, b] = [bed.host(0), bed.host(1)];
    let lives = pid(b, "one");
    bed.until("both take part", TIMEOUT, || alive(a) == 2 && alive(b) == 2);
    let lived = incarnations(a);
    let (suspicion, earlier) = ("/tombolo/doubt/beta", "/tombolo/claim/of/an-earlier-life");
    let lease = etcd.ctl(&["lease", "grant", "600"]).out;
    let lease = format!("--lease={}", lease.split_whitespace().nth(1).expect("its number"));
    for value in ["garbage", r#"{"life":1}"#, r#"{"life":1,"by":"x"}"#] {
        etcd.ctl_ok(&["put", suspicion, value]);
        bed.until("it is taken away", TIMEOUT, || held(&etcd, suspicion).is_null());
    }
    // What is bound to an earlier life goes with it, before this one goes on.
    etcd.ctl_ok(&["put", earlier, r#"{"node":"beta","incarnation":1}"#, &lease]);
    etcd.ctl_ok(&["put", suspicion, r#"{"life":1,"by":"x","over":true}"#, &lease]);
    bed.until("it is taken away", TIMEOUT, || held(&etcd, suspicion).is_null());
    assert!(held(&etcd, earlier).is_null(), "a claim of a life that is over stays");
    assert_eq!(incarnations(a), lived, "a life was ended{}", bed.logs());
    // And now the life that it has.
    let life = held(&etcd, "/tombolo/alive/beta")["mod_revision"].as_u64().expect("a revision");
    etcd.ctl_ok(&["put", suspicion, &format!(r#"{{"life":{life},"by":"x","over":true}}"#)]);
    bed.until("it has another life", TIMEOUT, || {
        let live = incarnations(a);
        live.len() == 2 && live[0] == lived[0] && live[1] > lived[1]
    });
    bed.until("both take part again", TIMEOUT, || alive(a) == 2 && alive(b) == 2);
    bed.until("nothing is left of it", TIMEOUT, || held(&etcd, suspicion).is_null());
    assert_eq!(pid(b, "one"), lives, "what may not run elsewhere goes on");
    a.ok(&["down", "--all"]);
    bed.finish();
}

#[test]
fn an_etcd_that_is_put_back_to_an_older_day_is_not_believed_until_somebody_has_looked() {
    if Etcd::missing() {
        return;
    }
    let Some(bed) = Bed::start(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let etcd = with_a_domain(&bed);
    let lives = pid(b, "one");
    let both = |why: &str| fenced(a, why) && fenced(b, why);
    // As etcd's manual has it.
    let backup = bed.folder().join("backup").display().to_string();
    etcd.ctl_ok(&["snapshot", "save", &backup]);
    // What is desired after the backup is lost with it.
    a.up_ok(&domain("two", "beta"));
    etcd.kill();
    std::fs::remove_dir_all(etcd.data()).expect("removed");
    etcd.restore(&backup);
    etcd.spawn();
    bed.until("both nodes have seen it", TIMEOUT, || both("it was restored from a backup"));
    refused(&a.up(&domain("three", "beta")), &["restored from a backup", "restart the daemon"]);
    assert!(pid(b, "one") == lives && pid(b, "two").is_some(), "something was ended by what a backup says");
    // A person has looked, and says so by a restart.
    for host in [a, b] {
        host.kill_role("daemon");
        bed.start_daemon(host);
    }
    bed.until("every node is back", TIMEOUT, || alive(a) == 2 && alive(b) == 2);
    assert_eq!(pid(b, "one"), lives, "what is desired still runs on");
    bed.until("what it does not know of has ended", TIMEOUT, || pid(b, "two").is_none());
    a.up_ok(&domain("two", "beta"));
    a.ok(&["down", "--all"]);
    bed.finish();
}

/// How many links a node says are up.
fn links_up(host: &Host) -> usize {
    let run = host.run(&["link", "ls", "--json"]);
    let links: serde_json::Value = serde_json::from_str(&run.out).unwrap_or_default();
    links.as_array().map_or(0, |links| links.iter().filter(|link| link["up"] == true).count())
}

#[test]
fn a_daemon_that_starts_while_etcd_is_gone_goes_on_with_the_links_of_the_one_before() {
    if Etcd::missing() {
        return;
    }
    let Some(bed) = Bed::start(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let etcd = with_a_domain(&bed);
    a.up_ok(&crate::joining::resolving());
    bed.until("the name is resolved over the link", TIMEOUT, || crate::joining::resolves(a));
    let proxies = || [a, b].map(|host| node::pids_of(&host.run_dir(), "proxy"));
    let before = proxies();
    etcd.kill();
    for host in [a, b] {
        host.kill_role("daemon");
        bed.start_daemon(host);
        bed.until("it speaks with the proxy that it found", TIMEOUT, || links_up(host) == 1);
    }
    assert_eq!(proxies(), before, "a proxy was replaced");
    bed.until("the name is resolved over the link", TIMEOUT, || crate::joining::resolves(a));
    etcd.spawn();
    bed.until("every node is back", TIMEOUT, || alive(a) == 2 && alive(b) == 2);
    assert_eq!(proxies(), before, "a proxy was replaced");
    bed.until("the name is resolved over the link", TIMEOUT, || crate::joining::resolves(a));
    a.ok(&["down", "--all"]);
    bed.finish();
}
