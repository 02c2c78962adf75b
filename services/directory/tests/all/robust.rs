//! No bytes from anybody make the service panic, forget an answer, or answer twice.

use proptest::prelude::*;
use rustix::io::Errno;
use session::{Context, Interest, LinkId, Readiness, ReplyTo, Service};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use wire::control::Consumer;
use wire::directory::{Settings, file};
use wire::service::{OpenInfo, Phase};

/// A loop that does nothing by itself: the test says what time it is and which socket is ready.
pub struct FakeLoop {
    pub now: Instant,
    pub answers: Vec<(ReplyTo, Result<Vec<u8>, Errno>)>,
    pub watched: HashMap<u32, ()>,
    pub capsules: usize,
    /// The kernel has no room for another descriptor, and `epoll_ctl` says so.
    pub full: bool,
    descriptors: HashMap<i32, u32>,
}

impl FakeLoop {
    pub fn new() -> Self {
        let (answers, watched, descriptors) = (Vec::new(), HashMap::new(), HashMap::new());
        Self { now: Instant::now(), answers, watched, capsules: 0, full: false, descriptors }
    }
}

impl Context for FakeLoop {
    fn now(&self) -> Instant {
        self.now
    }

    fn answer(&mut self, to: ReplyTo, answer: Result<&[u8], Errno>, _: &[Phase]) {
        self.answers.push((to, answer.map(<[u8]>::to_vec)));
    }

    fn capsule(&mut self, _: LinkId, _: u64, capsule: &[u8]) {
        assert!(capsule.len() <= wire::service::MAX_CAPSULE_BYTES);
        self.capsules += 1;
    }

    fn detach(&mut self, _: LinkId, reason: &str) {
        panic!("the service throws nobody out, yet: {reason}");
    }

    fn watch(&mut self, descriptor: BorrowedFd<'_>, token: u32, _: Interest) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        if self.full {
            return Err(Errno::NOSPC.into());
        }
        assert!(self.watched.insert(token, ()).is_none(), "a token is used once at a time");
        self.descriptors.insert(descriptor.as_raw_fd(), token);
        Ok(())
    }

    fn rewatch(&mut self, _: BorrowedFd<'_>, _: u32, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn unwatch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let token =
            self.descriptors.remove(&descriptor.as_raw_fd()).expect("only what is watched is unwatched");
        self.watched.remove(&token);
        Ok(())
    }
}

pub fn directory(settings: &Settings) -> Box<dyn Service> {
    directory::service(&serde_json::to_value(settings).expect("json")).expect("a service")
}

pub fn consumer(domain: &str) -> Consumer {
    let verbs = ["resolve", "control"].map(String::from).into();
    Consumer { dc: "dc".into(), domain: domain.into(), entrance: "api".into(), verbs }
}

pub fn to(link: u64, session: u64, tag: u64, file: u32, received: Instant) -> ReplyTo {
    ReplyTo { link: LinkId(link), session, tag, file, traced: tag.is_multiple_of(2), received }
}

/// An upstream that hears and never answers by itself.
pub fn mute() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("its address");
    socket.set_nonblocking(true).expect("set");
    (socket, address)
}

#[derive(Debug, Clone)]
enum Call {
    Request(u32, u64, Vec<u8>),
    Control(u32, Vec<u8>),
    Open(u64, Vec<u8>),
    Cancel(u64),
    Close(u64),
    Upstream(Vec<u8>),
    Later(u64),
    Settings(u32),
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..60),
        "(A|MX|ANY|ctl|PTR|TYPE65|session|flush|timeout|search|upstream|none|\\PC){1,2}( [a-z0-9.:\\\\_-]{0,20}){0,4}\n?"
            .prop_map(String::into_bytes),
        "(ctl (timeout|retries|format|trace|search|upstream) (5ms|1|json|on|none|a.example|127.0.0.1:9))"
            .prop_map(String::into_bytes),
        "[a-c]{1,2}(\\.example)?".prop_map(String::into_bytes),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let file = prop_oneof![
        4 => Just(file::QUERY),
        1 => Just(file::CTL),
        1 => Just(file::STATUS),
        1 => Just(file::SESSIONS),
        1 => Just(file::MESSAGE),
        1 => Just(file::ADDRESSES),
        1 => Just(file::NAMES),
        1 => any::<u32>(),
    ];
    let number = prop_oneof![
        Just(wire::directory::ioctl::SET_SETTINGS),
        Just(wire::directory::ioctl::ADD_UPSTREAM),
        Just(wire::directory::ioctl::ADD_SEARCH),
        any::<u32>(),
    ];
    let data = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::collection::vec(0u8..3, 32),
        proptest::collection::vec(0u8..3, 24),
        proptest::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'.')], 256),
    ];
    let capsule = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..60),
        r#"\{"v":[12],"session":[0-9]{1,20}(,"search":\["[a-z.]{1,9}"\])?(,"timeout_ms":[0-9]{1,6})?\}"#
            .prop_map(String::into_bytes),
    ];
    prop_oneof![
        8 => (file, 0u64..3, line()).prop_map(|(file, session, bytes)| Call::Request(file, session, bytes)),
        2 => (number, data).prop_map(|(number, bytes)| Call::Control(number, bytes)),
        2 => (0u64..3, capsule).prop_map(|(session, bytes)| Call::Open(session, bytes)),
        1 => (0u64..40).prop_map(Call::Cancel),
        1 => (0u64..3).prop_map(Call::Close),
        4 => proptest::collection::vec(any::<u8>(), 0..100).prop_map(Call::Upstream),
        2 => (0u64..300).prop_map(Call::Later),
        1 => (0u32..4).prop_map(Call::Settings),
    ]
}

/// The query that the upstream heard last, with bytes over it, as an answer with the right id and
/// question.
fn garble(heard: &[u8], noise: &[u8]) -> Vec<u8> {
    let mut packet = heard.to_vec();
    if let Some(flags) = packet.get_mut(2) {
        *flags |= 0x80;
    }
    if let (Some(&where_to), true) = (noise.first(), packet.len() > 12) {
        let at = 2 + usize::from(where_to) % (packet.len() - 2);
        packet.truncate(at.max(12));
        packet.extend_from_slice(noise);
    }
    packet
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn every_call_is_answered_once_whatever_its_bytes(calls in proptest::collection::vec(call(), 1..80)) {
        let (upstream, address) = mute();
        let mut plain = crate::stage::settings(&[address]);
        plain.cache.mode = wire::directory::CacheMode::Shared;
        plain.cache.share = vec!["a".into(), "b".into()];
        let (mut service, mut ctx) = (directory(&plain), FakeLoop::new());
        service.attach(&mut ctx, LinkId(1), &consumer("a"));
        service.attach(&mut ctx, LinkId(2), &consumer("b"));
        let (mut expected, mut open) = (HashMap::new(), std::collections::HashSet::new());
        for (tag, call) in (0u64..).zip(calls) {
            let link = tag % 2 + 1;
            let mut ask = |session, file| {
                expected.insert(tag, link);
                to(link, session, tag, file, ctx.now)
            };
            match call {
                Call::Request(file, session, bytes) if session == 0 || open.contains(&(link, session)) => {
                    let to = ask(session, file);
                    service.request(&mut ctx, to, &bytes);
                }
                Call::Request(..) => {}
                Call::Control(number, bytes) => {
                    let to = ask(1, number);
                    service.control(&mut ctx, to, &bytes);
                }
                Call::Open(session, capsule) if session != 0 && !open.contains(&(link, session)) => {
                    let to = ask(session, file::QUERY);
                    service.open(&mut ctx, to, &OpenInfo { capsule, ..OpenInfo::default() });
                    if ctx.answers.last().is_some_and(|(to, answer)| to.tag == tag && answer.is_ok()) {
                        open.insert((link, session));
                    }
                }
                Call::Open(..) => {}
                Call::Cancel(tag) => {
                    if let Some(link) = expected.get(&tag).copied() {
                        service.cancel(&mut ctx, LinkId(link), tag);
                        if !ctx.answers.iter().any(|(to, _)| to.tag == tag) {
                            expected.remove(&tag);
                        }
                    }
                }
                Call::Close(session) => {
                    if open.remove(&(link, session)) {
                        service.close(&mut ctx, LinkId(link), session);
                    }
                }
                Call::Upstream(noise) => {
                    let mut heard = [0; 1500];
                    while let Ok((came, from)) = upstream.recv_from(&mut heard) {
                        let _gone = upstream.send_to(&garble(&heard[..came], &noise), from);
                    }
                    for token in ctx.watched.keys().copied().collect::<Vec<_>>() {
                        service.ready(&mut ctx, token, Readiness { readable: true, ..Readiness::default() });
                    }
                }
                Call::Later(ms) => {
                    ctx.now += Duration::from_millis(ms);
                    if service.deadline().is_some_and(|at| at <= ctx.now) {
                        service.expired(&mut ctx);
                    }
                }
                Call::Settings(entries) => {
                    let mut other = plain.clone();
                    other.cache.entries = entries;
                    let _taken = service.settings(&mut ctx, &serde_json::to_value(&other).expect("json"));
                }
            }
        }
        // Wait everything out: then each call has its one answer, and no socket waits for anybody.
        while let Some(at) = service.deadline() {
            ctx.now = ctx.now.max(at);
            service.expired(&mut ctx);
        }
        let mut answered = HashMap::new();
        ctx.answers.iter().for_each(|(to, _)| *answered.entry(to.tag).or_insert(0) += 1);
        for tag in expected.keys() {
            prop_assert_eq!(answered.get(tag), Some(&1), "answers to {}", tag);
        }
        prop_assert_eq!(service.state()["lookups"].as_u64(), Some(0));
        service.detach(&mut ctx, LinkId(1));
        service.detach(&mut ctx, LinkId(2));
        prop_assert_eq!(service.state()["domains"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn a_server_out_of_resources_says_so_and_recovers() {
    let (_upstream, address) = mute();
    let (mut service, mut ctx) = (directory(&crate::stage::settings(&[address])), FakeLoop::new());
    service.attach(&mut ctx, LinkId(1), &consumer("a"));
    ctx.full = true;
    let now = ctx.now;
    service.request(&mut ctx, to(1, 0, 1, file::QUERY, now), b"A host.example");
    assert_eq!(ctx.answers.pop().map(|(_, answer)| answer), Some(Err(Errno::NOBUFS)));
    ctx.full = false;
    service.request(&mut ctx, to(1, 0, 2, file::QUERY, now), b"A host.example");
    assert!(ctx.answers.is_empty(), "it waits for the upstream");
    assert_eq!(service.state()["sockets"]["open"].as_u64(), Some(1));
}

#[test]
fn settings_of_a_wrong_shape_are_refused_with_a_text() {
    for (settings, wanted) in [
        (serde_json::json!(null), "known shape"),
        (serde_json::json!({ "upstream": ["x"] }), "known shape"),
        (serde_json::json!([1, 2]), "known shape"),
    ] {
        match directory::service(&settings) {
            Err(text) => assert!(text.contains(wanted), "{text}"),
            Ok(_) => panic!("{settings} was taken"),
        }
    }
}

/// The settings changed while a question was under way, and it was asked anew. When the first
/// look-up ended, it took the second one's entry along, so that whoever asked next was not told by
/// that one, but sent a third query.
#[test]
fn after_other_settings_a_question_is_under_way_once() {
    let (upstream, address) = mute();
    let mut plain = crate::stage::settings(&[address]);
    let (mut service, mut ctx) = (directory(&plain), FakeLoop::new());
    service.attach(&mut ctx, LinkId(1), &consumer("a"));
    let heard = || {
        let (mut packet, mut all) = ([0; 1500], Vec::new());
        while let Ok((came, from)) = upstream.recv_from(&mut packet) {
            all.push((packet[..came].to_vec(), from));
        }
        all
    };
    let now = ctx.now;
    let ask = |service: &mut Box<dyn Service>, ctx: &mut FakeLoop, tag| {
        service.request(ctx, to(1, 0, tag, file::QUERY, now), b"A host.example");
    };
    ask(&mut service, &mut ctx, 1);
    let first = heard();
    plain.cache.mode = wire::directory::CacheMode::Shared;
    service.settings(&mut ctx, &serde_json::to_value(&plain).expect("json")).expect("taken");
    ask(&mut service, &mut ctx, 2);
    assert_eq!((first.len(), heard().len()), (1, 1), "asked anew under other settings");
    upstream.send_to(&garble(&first[0].0, &[]), first[0].1).expect("sent");
    for token in ctx.watched.keys().copied().collect::<Vec<_>>() {
        service.ready(&mut ctx, token, Readiness { readable: true, ..Readiness::default() });
    }
    assert_eq!(ctx.answers.len(), 1);
    ask(&mut service, &mut ctx, 3);
    assert_eq!(heard().len(), 0, "it is under way already");
}

/// One domain had as many look-ups under way as there may be sockets; those of every other one
/// failed.
#[test]
fn one_domain_does_not_use_up_the_sockets_of_the_others() {
    let (_upstream, address) = mute();
    let mut wide = crate::stage::settings(&[address]);
    wide.outstanding_per_domain = 4096;
    let (mut service, mut ctx) = (directory(&wide), FakeLoop::new());
    for (link, domain) in [(1, "a"), (2, "b")] {
        service.attach(&mut ctx, LinkId(link), &consumer(domain));
    }
    let now = ctx.now;
    for tag in 0..8192 {
        let line = format!("A host{tag}.example");
        service.request(&mut ctx, to(1, 0, tag, file::QUERY, now), line.as_bytes());
    }
    assert!(!ctx.answers.is_empty(), "more than there may be");
    let before = ctx.answers.len();
    for tag in 0..100 {
        let line = format!("A host{tag}.example");
        service.request(&mut ctx, to(2, 0, 10_000 + tag, file::QUERY, now), line.as_bytes());
    }
    assert_eq!(ctx.answers.len(), before, "each waits for its answer");
}
