//! Two proxies over two links side by side, with real channels; the tests are their daemons.

mod endpoints;
mod loans;

use super::*;
use channel::{Config, End, Mode, Receiver, Sender, pair as channel_pair};
use link::{Link, OpenError, SendError, Sent, Share, Timing, Transport};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::link::{Hello, Packet, Pair};
use wire::proxy::{MAX_MESSAGE_BYTES, MAX_PAIRS, News, Open, SILENCE_MS, WINDOW_BYTES, word};

/// Nothing here takes longer, on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Both links, and what is between them.
struct Net {
    links: [Link; 2],
    events: [mpsc::UnboundedSender<Event>; 2],
    begun: Instant,
    cut: bool,
}

impl Net {
    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn connect(&mut self) {
        let now = self.now_ms();
        self.cut = false;
        for link in &mut self.links {
            link.connected(now, Transport::Stream).expect("a stream");
        }
        self.carry();
    }

    fn cut(&mut self) {
        self.cut = true;
        self.links.iter_mut().for_each(Link::disconnected);
    }

    fn carry(&mut self) {
        let now = self.now_ms();
        let mut bytes = Vec::new();
        while !self.cut {
            let mut quiet = true;
            for side in [0, 1] {
                bytes.clear();
                if self.links[side].poll_transmit(now, 100_000, &mut bytes) {
                    quiet = false;
                    let (header, body) = Packet::split(&bytes).expect("what was sent can be read");
                    for event in self.links[1 - side].receive(now, &header, body) {
                        let _nobody = self.events[1 - side].send(event);
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }
}

#[derive(Clone)]
struct Side {
    net: Arc<Mutex<Net>>,
    side: usize,
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "side {}", self.side)
    }
}

impl Side {
    fn net(&self) -> MutexGuard<'_, Net> {
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Link) -> T) -> T {
        let mut net = self.net();
        let done = act(&mut net.links[self.side]);
        net.carry();
        done
    }
}

impl Carrier for Side {
    fn open(&self, content: &[u8]) -> Result<Pair, OpenError> {
        self.with(|link| link.open(content))
    }
    fn send(&self, pair: Pair, message: &[u8]) -> Result<Sent, SendError> {
        self.with(|link| link.send(pair, message))
    }
    fn send_parts(&self, pair: Pair, parts: [&[u8]; 2]) -> Result<Sent, SendError> {
        self.with(|link| link.send_parts(pair, parts))
    }
    fn send_all_parts(&self, pair: Pair, messages: &[[&[u8]; 2]]) -> Result<usize, SendError> {
        self.with(|link| link.send_all_parts(pair, messages.iter().copied()))
    }

    fn consumed_all(&self, pair: Pair, messages: usize, bytes: usize) {
        self.with(|link| link.consumed_all(pair, messages, bytes));
    }
    fn close(&self, pair: Pair, reason: u32) {
        self.with(|link| link.close(pair, reason));
    }
    fn abandon(&self, pair: Pair, reason: u32) {
        self.with(|link| link.abandon(pair, reason));
    }
    fn held_of(&self, pair: Pair) -> usize {
        self.net().links[self.side].held_of(pair)
    }
    fn set_whole(&self, rate_bytes: Option<u64>) {
        self.with(|link| link.set_whole(rate_bytes));
    }
    fn set_share(&self, class: u32, share: Option<Share>) -> bool {
        self.with(|link| link.set_share(class, share))
    }
    fn classify(&self, pair: Pair, class: u32) {
        self.with(|link| link.classify(pair, class));
    }
    fn standing(&self) -> Standing {
        self.net().links[self.side].standing()
    }
    fn transport(&self) -> String {
        "memory".into()
    }
    fn loss(&self) -> String {
        "it was cut".into()
    }
    fn state(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}

fn link_config(side: u8, epoch: u64) -> link::Config {
    let hello = Hello {
        oldest: 1,
        newest: 1,
        side,
        compressions: 1,
        pairs: MAX_PAIRS,
        window_bytes: WINDOW_BYTES,
        message_bytes: MAX_MESSAGE_BYTES,
        silence_ms: SILENCE_MS,
    };
    link::Config { epoch, hello, queue_bytes: WINDOW_BYTES as usize, timing: Timing::default() }
}

/// A proxy, and this test in the place of its daemon.
struct Node {
    carrier: Side,
    path: tempfile::TempDir,
    daemon: AsyncFd<OwnedFd>,
    ended: tokio::task::JoinHandle<io::Result<String>>,
    id: u64,
}

fn configure(side: usize) -> Configure {
    let (node, peer) = [("a", "b"), ("b", "a")][side];
    Configure {
        node: node.into(),
        peer: peer.into(),
        epoch: 1,
        identity: String::new(),
        listen: Vec::new(),
        peer_at: Vec::new(),
        transport: "memory".into(),
        compression: "none".into(),
        station: None,
    }
}

fn listen(at: &std::path::Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(at).expect("an address")).expect("bound");
    rustix::net::listen(&socket, 4).expect("listening");
    socket
}

fn dial(at: &std::path::Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    rustix::net::connect(&socket, &SocketAddrUnix::new(at).expect("an address")).expect("connected");
    socket
}

impl Node {
    async fn new(carrier: Side, mut heard: mpsc::UnboundedReceiver<Event>) -> Node {
        let (tell, events) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Some(event) = heard.recv().await {
                if tell.send(event).await.is_err() {
                    return;
                }
            }
        });
        let path = tempfile::tempdir().expect("a folder");
        let at = path.path().join("s");
        let listener = listen(&at);
        let daemon = dial(&at);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let first = rustix::net::accept_with(&listener, flags).expect("accepted");
        let linked = Linked {
            carrier: Arc::new(carrier.clone()),
            events,
            listens: Vec::new(),
            listening: mpsc::unbounded_channel().1,
            trust: Box::new(drop),
            configure: Box::new(|_, _| {}),
        };
        let ended = tokio::spawn(serve(listener, first, configure(carrier.side), linked));
        let mut node = Node { carrier, path, daemon: watch(daemon).expect("watched"), ended, id: 0 };
        assert!(matches!(node.hear().await, Report::Hello { version: VERSION, .. }));
        node
    }

    async fn hear(&mut self) -> Report {
        let heard = async {
            loop {
                let mut ready = self.daemon.readable().await.expect("readable");
                match packet::receive::<Report>(self.daemon.get_ref()) {
                    Err(PacketError::NotReady) => ready.clear_ready(),
                    // Looked at by itself.
                    Ok(packet) if matches!(packet.message, Report::Parted { .. }) => {}
                    other => return other.expect("a report").message,
                }
            }
        };
        tokio::time::timeout(TIMEOUT, heard).await.expect("the proxy says something")
    }

    fn say(&self, order: &Order, end: Option<End>) {
        self.pass(order, end.map(|end| end.into_descriptors().into()).unwrap_or_default());
    }

    fn pass(&self, order: &Order, descriptors: Vec<OwnedFd>) {
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        packet::send(self.daemon.get_ref(), order, &borrowed).expect("said");
    }

    async fn up(&mut self) {
        assert!(matches!(self.hear().await, Report::Up { .. }));
    }
}

async fn joined() -> (Node, Node) {
    let ((one, first), (other, second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let links = [0, 1].map(|side| Link::new(link_config(side, 1)).expect("a link"));
    let net = Net { links, events: [one, other], begun: Instant::now(), cut: true };
    let net = Arc::new(Mutex::new(net));
    let mut a = Node::new(Side { net: Arc::clone(&net), side: 0 }, first).await;
    let mut b = Node::new(Side { net: Arc::clone(&net), side: 1 }, second).await;
    a.carrier.net().connect();
    a.up().await;
    b.up().await;
    // A link has a clock.
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(5));
        loop {
            ticks.tick().await;
            let mut net = net.lock().unwrap_or_else(PoisonError::into_inner);
            let now = net.now_ms();
            for side in [0, 1] {
                for event in net.links[side].tick(now) {
                    let _nobody = net.events[side].send(event);
                }
            }
            net.carry();
        }
    });
    (a, b)
}

fn open() -> Open {
    Open::Channel {
        dc: "shop".into(),
        service: "dns".into(),
        domain: "web".into(),
        entrance: "api".into(),
        ring_bytes: 0,
    }
}

async fn asked(node: &mut Node) -> u64 {
    match node.hear().await {
        Report::Asked { pair, open: asked } => {
            assert_eq!(asked, open());
            pair
        }
        other => panic!("nothing is asked: {other:?}"),
    }
}

/// The other proxy is told that its pair was accepted.
async fn accepted(events: &mut mpsc::UnboundedReceiver<Event>, pair: Pair) {
    let told = async {
        while let Some(event) = events.recv().await {
            let Event::Messages { pair: of, messages } = event else { continue };
            if of == pair && messages.iter().eq([[word::ACCEPTED]]) {
                return;
            }
        }
        panic!("the link is over");
    };
    tokio::time::timeout(TIMEOUT, told).await.expect("it is accepted");
}

/// Opens a channel from a to b: the ends that a program on either would have.
async fn channel(a: &mut Node, b: &mut Node, config: &Config) -> (End, End) {
    let (near, to_a) = channel_pair(config).expect("a channel");
    let (far, to_b) = channel_pair(config).expect("a channel");
    a.id += 1;
    let id = a.id;
    a.say(&Order::Open { id, open: open() }, Some(to_a));
    let pair = asked(b).await;
    b.say(&Order::Accept { pair }, Some(to_b));
    assert_eq!(a.hear().await, Report::Opened { id });
    (near, far)
}

/// Blocks elsewhere, so that the proxies run.
async fn aside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(act);
    tokio::time::timeout(TIMEOUT, done).await.expect("in time").expect("no panic")
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

fn receive(receiver: &mut Receiver) -> Result<Vec<u8>, channel::ReceiveError> {
    let mut message = Vec::new();
    receiver.receive(&mut message, soon()).map(|_| message)
}

#[tokio::test]
async fn messages_cross_both_ways_once_and_in_order_and_so_does_the_end() {
    let (mut a, mut b) = joined().await;
    let (near, far) = channel(&mut a, &mut b, &Config::default()).await;
    let echo = tokio::task::spawn_blocking(move || {
        let (mut sender, mut receiver) = far.open().expect("opened");
        let mut count = 0_u32;
        while let Ok(message) = receive(&mut receiver) {
            sender.send(&message, soon()).expect("sent");
            count += 1;
        }
        count
    });
    aside(move || {
        let (mut sender, mut receiver) = near.open().expect("opened");
        for turn in 0..50_u32 {
            for number in 0..20_u32 {
                let length = (turn * 97 + number) as usize % 300;
                sender.send(&vec![turn as u8; length], soon()).expect("sent");
            }
            for number in 0..20_u32 {
                let length = (turn * 97 + number) as usize % 300;
                assert_eq!(receive(&mut receiver).expect("echoed"), vec![turn as u8; length]);
            }
        }
    })
    .await;
    assert_eq!(echo.await.expect("the echo ends with the channel"), 1000);
}

/// Messages of 1,000 bytes at each rate.
const CLASSED_MESSAGES: usize = 100;

async fn state(node: &mut Node) -> serde_json::Value {
    node.id += 1;
    let id = node.id;
    node.say(&Order::Inspect { id }, None);
    match node.hear().await {
        Report::State { id: found, state } if found == id => state,
        other => panic!("no state: {other:?}"),
    }
}

#[tokio::test]
async fn a_domain_sends_over_the_link_as_fast_as_its_class_lets_it_and_faster_when_that_is_adapted() {
    let (mut a, mut b) = joined().await;
    let share = |ceiling_bits| Order::Share {
        name: "shop/web".into(),
        rate_bits: 80_000,
        ceiling_bits,
        burst_bytes: 2_000,
        precedence: 0,
    };
    a.say(&Order::Whole { rate_bits: 80_000_000 }, None);
    a.say(&share(800_000), None);
    // Whose pair it is, each side knows of its own.
    let (near, far) = channel(&mut a, &mut b, &Config::default()).await;
    let shown = state(&mut a).await;
    assert_eq!(shown["shares"]["classes"]["shop/web"]["ceiling_bits"], 800_000, "{shown}");
    let sending = tokio::task::spawn_blocking(move || {
        let (mut sender, receiver) = near.open().expect("opened");
        for _ in 0..2 * CLASSED_MESSAGES {
            sender.send(&[7; 1_000], soon()).expect("sent");
        }
        (sender, receiver)
    });
    let begun = Instant::now();
    let mut taking = aside(move || {
        let (sender, mut receiver) = far.open().expect("opened");
        for _ in 0..CLASSED_MESSAGES {
            receive(&mut receiver).expect("it comes");
        }
        (sender, receiver)
    })
    .await;
    // 100,000 bytes at 100,000 a second: not much sooner than in a second, but later on a busy
    // machine.
    assert!(begun.elapsed() > Duration::from_millis(700), "{:?}", begun.elapsed());
    a.say(&share(80_000_000), None);
    aside(move || {
        for _ in 0..CLASSED_MESSAGES {
            receive(&mut taking.1).expect("it comes");
        }
    })
    .await;
    sending.await.expect("all was sent");
    a.say(&Order::Whole { rate_bits: 0 }, None);
    assert_eq!(state(&mut a).await["shares"]["rate_bits"], 0);
}

#[tokio::test]
async fn what_was_committed_before_a_death_arrives_before_it() {
    let (mut a, mut b) = joined().await;
    let (near, far) = channel(&mut a, &mut b, &Config::default()).await;
    aside(move || {
        let (mut sender, _receiver) = near.open().expect("opened");
        for number in 0..100_u8 {
            sender.send(&[number], soon()).expect("sent");
        }
    })
    .await;
    aside(move || {
        let (_sender, mut receiver) = far.open().expect("opened");
        for number in 0..100_u8 {
            assert_eq!(receive(&mut receiver).expect("what was sent"), [number]);
        }
        assert!(matches!(receive(&mut receiver), Err(channel::ReceiveError::Closed)));
    })
    .await;
}

#[tokio::test]
async fn long_records_and_messages_in_pieces_and_streams_cross_too() {
    let (mut a, mut b) = joined().await;
    let config = Config { ring_bytes: 1 << 18, ..Config::default() };
    let (near, far) = channel(&mut a, &mut b, &config).await;
    const LONG: usize = 3 << 20;
    let content = |length: usize| (0..length).map(|at| (at % 251) as u8).collect::<Vec<_>>();
    let takes = tokio::task::spawn_blocking(move || {
        let (_sender, mut receiver) = far.open().expect("opened");
        receiver.set_message_limit(LONG);
        for length in [100_000, LONG, 5] {
            assert!(receive(&mut receiver).expect("received") == content(length), "{length} bytes");
        }
    });
    let (_sender, _receiver) = aside(move || {
        let (mut sender, receiver) = near.open().expect("opened");
        sender.send(&content(100_000), soon()).expect("one long record");
        // The other end has said how much it takes; that comes over.
        let until = Instant::now() + TIMEOUT;
        while sender.message_limit() < LONG {
            assert!(Instant::now() < until, "the limit does not come over");
            std::thread::yield_now();
        }
        sender.send(&content(LONG), soon()).expect("sent in pieces");
        sender.send(&content(5), soon()).expect("sent");
        (sender, receiver)
    })
    .await;
    tokio::time::timeout(TIMEOUT, takes).await.expect("in time").expect("no panic");

    let config = Config { mode: Mode::Stream, ..Config::default() };
    let (near, far) = channel(&mut a, &mut b, &config).await;
    let reads = tokio::task::spawn_blocking(move || {
        use std::io::{Read, Write};
        let (mut writer, mut reader) = far.open_stream().expect("opened");
        let mut all = Vec::new();
        // To the end of that direction; the other one is open.
        reader.read_to_end(&mut all).expect("read");
        writer.write_all(b"thanks").expect("written");
        writer.finish(soon()).expect("finished");
        let mut rest = [0; 1];
        let _closed = reader.read(&mut rest);
        all
    });
    aside(move || {
        use std::io::{Read, Write};
        let (mut writer, mut reader) = near.open_stream().expect("opened");
        writer.write_all(&content(LONG)).expect("written");
        writer.finish(soon()).expect("finished");
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer).expect("read");
        assert_eq!(answer, b"thanks");
    })
    .await;
    assert!(tokio::time::timeout(TIMEOUT, reads).await.expect("in time").expect("read") == content(LONG));
}

/// Sends until nothing more goes: how many messages.
fn fill(sender: &mut Sender) -> usize {
    let mut sent = 0;
    let message = [7; 4096];
    // Not a measure of time: what could go has gone by then.
    while sender.send(&message, Some(Instant::now() + Duration::from_millis(300))).is_ok() {
        sent += 1;
        assert!(sent < 100_000, "nobody takes it, and there is no bound");
    }
    sent
}

#[tokio::test]
async fn a_receiver_that_takes_nothing_stops_its_own_senders_and_no_others() {
    let (mut a, mut b) = joined().await;
    let (stuck_near, stuck_far) = channel(&mut a, &mut b, &Config::default()).await;
    let (near, far) = channel(&mut a, &mut b, &Config::default()).await;
    let (stuck, mut held) = aside(move || {
        let mut opened = stuck_near.open().expect("opened");
        (fill(&mut opened.0), opened)
    })
    .await;
    assert!(stuck > 10);
    aside(move || {
        let (mut sender, _receiver) = near.open().expect("opened");
        let (_sender, mut receiver) = far.open().expect("opened");
        for number in 0..200_u32 {
            sender.send(&number.to_le_bytes(), soon()).expect("sent");
            assert_eq!(receive(&mut receiver).expect("received"), number.to_le_bytes());
        }
    })
    .await;
    // And when it takes, all is there.
    let taken = aside(move || {
        let (_sender, mut receiver) = stuck_far.open().expect("opened");
        for _ in 0..stuck {
            assert_eq!(receive(&mut receiver).expect("received").len(), 4096);
        }
        held.0.send(b"more", soon()).expect("there is room");
        receive(&mut receiver).expect("received")
    })
    .await;
    assert_eq!(taken, b"more");
}

#[tokio::test]
async fn a_cut_delays_and_loses_nothing_and_the_end_of_the_other_proxy_ends_its_channels() {
    let (mut a, mut b) = joined().await;
    let (near, far) = channel(&mut a, &mut b, &Config::default()).await;
    a.carrier.net().cut();
    let (mut sender, mut receiver) = near.open().expect("opened");
    let (_far_sender, mut far_receiver) = far.open().expect("opened");
    for number in 0..10_u8 {
        sender.send(&[number], soon()).expect("it waits in the ring");
    }
    a.carrier.net().connect();
    for node in [&mut a, &mut b] {
        assert!(matches!(node.hear().await, Report::Up { resumed: true, .. } | Report::Down { .. }));
    }
    let (sender, mut receiver) = aside(move || {
        for number in 0..10_u8 {
            assert_eq!(receive(&mut far_receiver).expect("received"), [number]);
        }
        // What follows is about the end.
        std::mem::forget(_far_sender);
        std::mem::forget(far_receiver);
        (
            sender,
            std::mem::replace(&mut receiver, channel_pair(&Config::default()).unwrap().0.open().unwrap().1),
        )
    })
    .await;
    // Another incarnation on the other side.
    {
        let mut net = a.carrier.net();
        net.links[1] = Link::new(link_config(1, 2)).expect("a link");
        net.connect();
    }
    let closed = aside(move || {
        let closed = receive(&mut receiver);
        drop(sender);
        closed
    })
    .await;
    assert!(matches!(closed, Err(channel::ReceiveError::Closed)));
}

#[tokio::test]
async fn the_next_daemon_finds_the_proxy_and_hears_what_waits() {
    let (mut a, mut b) = joined().await;
    let (near, far) = channel(&mut a, &mut b, &Config::default()).await;
    let (_near, to_a) = channel_pair(&Config::default()).expect("a channel");
    a.say(&Order::Open { id: 99, open: open() }, Some(to_a));
    let pair = asked(&mut b).await;
    // Node b's daemon dies with that unanswered; channels go on.
    let next = dial(&b.path.path().join("s"));
    b.daemon = watch(next).expect("watched");
    let Report::Hello { configured, up, .. } = b.hear().await else { panic!("no hello") };
    assert!(up && configured == Some(configure(1)));
    assert_eq!(b.hear().await, Report::Asked { pair, open: open() });
    b.say(&Order::Refuse { pair, errno: 11, message: "nobody\u{7} serves".into() }, None);
    let refused = Report::Refused { id: 99, errno: 11, message: "nobody serves".into() };
    assert_eq!(a.hear().await, refused);
    let news = News::Unserved { dc: "shop".into(), service: "dns".into() };
    b.say(&Order::News { news: news.clone() }, None);
    assert_eq!(a.hear().await, Report::News { news });
    let message = aside(move || {
        let (mut sender, _receiver) = near.open().expect("opened");
        let (_sender, mut receiver) = far.open().expect("opened");
        sender.send(b"still here", soon()).expect("sent");
        receive(&mut receiver).expect("received")
    })
    .await;
    assert_eq!(message, b"still here");
    a.say(&Order::End { why: "the test is over".into(), unless_used: false }, None);
    assert_eq!(a.hear().await, Report::Over { why: "the test is over".into() });
    assert_eq!(a.ended.await.expect("no panic").expect("no error"), "the test is over");
}

/// A hostile proxy: a bare link in the place of node b's.
#[tokio::test]
async fn who_breaks_a_rule_loses_that_pair_and_nothing_else() {
    let ((one, first), (other, mut second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let links = [0, 1].map(|side| Link::new(link_config(side, 1)).expect("a link"));
    let net = Net { links, events: [one, other], begun: Instant::now(), cut: true };
    let hostile = Side { net: Arc::new(Mutex::new(net)), side: 1 };
    let mut a = Node::new(Side { net: Arc::clone(&hostile.net), side: 0 }, first).await;
    hostile.net().connect();
    a.up().await;
    let encoded = serde_json::to_vec(&open()).expect("encoded");
    // What opens nothing, and what speaks before it was accepted.
    for content in [&b"{}"[..], b"\xff", br#"{"open":"news","x":1}"#, b""] {
        hostile.open(content).expect("opened");
    }
    let early = hostile.open(&encoded).expect("opened");
    let pair = asked(&mut a).await;
    hostile.send(early, &[word::WHOLE, 1]).expect("sent");
    assert_eq!(a.hear().await, Report::Withdrawn { pair });
    // Words that mean nothing, on a pair that was accepted; each ends its channel.
    let (good_near, good) = channel_pair(&Config::default()).expect("a channel");
    let good_pair = hostile.open(&encoded).expect("opened");
    let pair = asked(&mut a).await;
    a.say(&Order::Accept { pair }, Some(good));
    accepted(&mut second, good_pair).await;
    let too_long = [vec![word::WHOLE | word::MORE], vec![0; 30_000]].concat();
    for bad in [vec![], vec![77], vec![word::LIMIT, 1], vec![word::NEWS, b'{', b'}'], too_long] {
        let (near, end) = channel_pair(&Config::default()).expect("a channel");
        let pair = hostile.open(&encoded).expect("opened");
        let number = asked(&mut a).await;
        a.say(&Order::Accept { pair: number }, Some(end));
        accepted(&mut second, pair).await;
        let (sender, mut receiver) = near.open().expect("opened");
        // A record that never ends is more than the ring takes at some time.
        let ends = tokio::task::spawn_blocking(move || {
            let ended = receive(&mut receiver);
            drop(sender);
            ended
        });
        while !ends.is_finished() {
            let _room_or_not = hostile.send(pair, &bad);
            while second.try_recv().is_ok() {}
            tokio::task::yield_now().await;
        }
        assert!(
            matches!(ends.await.expect("no panic"), Err(channel::ReceiveError::Closed)),
            "{:?}",
            bad.first()
        );
    }
    // The good one is still there.
    hostile.send(good_pair, &[word::WHOLE, 42]).expect("it is open");
    let got = aside(move || {
        let (_sender, mut receiver) = good_near.open().expect("opened");
        receive(&mut receiver).expect("received")
    })
    .await;
    assert_eq!(got, [42]);
}

/// Daemons keep what other nodes say that they serve, by the thousand: names of 16 KiB took
/// hundreds of MiB of them.
#[tokio::test]
async fn news_with_enormous_names_end_their_pair_and_are_not_passed_on() {
    let ((one, first), (other, _second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let links = [0, 1].map(|side| Link::new(link_config(side, 1)).expect("a link"));
    let net = Net { links, events: [one, other], begun: Instant::now(), cut: true };
    let hostile = Side { net: Arc::new(Mutex::new(net)), side: 1 };
    let mut a = Node::new(Side { net: Arc::clone(&hostile.net), side: 0 }, first).await;
    hostile.net().connect();
    a.up().await;
    let say = |name: &str| {
        let pair = hostile.open(br#"{"open":"news"}"#).expect("opened");
        let news = News::Served { dc: "shop".into(), service: name.into(), generation: 1 };
        let text = serde_json::to_vec(&news).expect("written");
        hostile.send(pair, &[&[word::NEWS][..], &text].concat()).expect("sent");
        news
    };
    say(&"n".repeat(10_000));
    // Its pair is over, so it may have another one.
    let good = say("dns");
    assert_eq!(a.hear().await, Report::News { news: good });
    assert_eq!(state(&mut a).await["broken"], 1);
}

/// A pair that was closed went on to hold what the other node did not take, and counted for nobody:
/// who opened and closed enough of them had the proxy's memory.
#[tokio::test]
async fn what_a_closed_pair_still_has_to_send_counts_until_it_is_sent() {
    const SENT: usize = 240;
    let (mut a, mut b) = joined().await;
    let (near, far) = channel(&mut a, &mut b, &Config::default()).await;
    let far = far.open().expect("opened");
    aside(move || {
        let (mut sender, _receiver) = near.open().expect("opened");
        for _ in 0..SENT {
            sender.send(&[7; 4096], soon()).expect("the link takes it");
        }
    })
    .await;
    let until = Instant::now() + TIMEOUT;
    while state(&mut a).await["pairs_open"] != 0 {
        assert!(Instant::now() < until, "the pair stays");
    }
    let held = a.carrier.net().links[0].held().outward;
    assert!(held > 100_000, "{held} bytes wait");
    for _ in 0..20 {
        tokio::task::yield_now().await;
        assert!(state(&mut a).await["memory"]["domains"]["shop/web"].as_u64() > Some(1 << 20));
    }
    let mut far = far;
    let far = aside(move || {
        for _ in 0..SENT {
            assert_eq!(receive(&mut far.1).expect("received").len(), 4096);
        }
        far
    })
    .await;
    drop(far);
    let until = Instant::now() + TIMEOUT;
    for node in [&mut a, &mut b] {
        while state(node).await["memory"]["used_bytes"] != 0 {
            assert!(Instant::now() < until, "it counts on");
        }
    }
}
