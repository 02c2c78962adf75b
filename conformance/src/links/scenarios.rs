//! The suite: each scenario has fresh sides, and runs over each kind of transport.

use super::faults::Faults;
use super::stage::{Bed, Cluster, FAR, NEAR, Side, accept, config, is_stream, local, silence_ms};
use super::talk::{Plan, both};
use super::{Done, Failure, ensure, within};
use link::{Broken, Closed, Event, Link, Over, Sent, Standing, Transport};
use std::future::{pending, poll_fn, ready};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use transport::{
    Address, Carry, Compression, ConnectError, Connection, HANDSHAKES_MAX, HANDSHAKES_OF_ONE_MAX, Handle,
    Kind, Listener, Refused, RefusedWhy, Settings, SwitchError, TipcStream, connect,
};
use wire::lane::LONG_FRAME_BYTES;
use wire::link::{Frame, PACKET_BODY_BYTES_MAX, Packet, Pair, compression, packet};

type Run = fn(Kind) -> Pin<Box<dyn Future<Output = Done> + Send>>;

/// One thing that a transport does.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The name of it.
    pub name: &'static str,
    run: Run,
}

impl Scenario {
    /// Runs it.
    ///
    /// # Errors
    /// The check that did not hold.
    pub async fn run(&self, kind: Kind) -> Done {
        (self.run)(kind).await
    }
}

macro_rules! scenarios {
    ($($name:literal: $run:path;)*) => {
        &[$(Scenario { name: $name, run: |kind| Box::pin($run(kind)) }),*]
    };
}

/// The suite.
pub const SCENARIOS: &[Scenario] = scenarios! {
    "messages of all lengths arrive once and in order, both ways": lengths;
    "bodies are made smaller, by each compression": smaller;
    "many small messages go in few packets": batches;
    "who takes nothing stops its own pair alone": a_stuck_reader;
    "a peer that dies is noticed, and its successor is another": death;
    "a goodbye is heard": goodbye;
    "cut in the middle of packets": cuts_in_packets;
    "a wrong bit on the way does no harm": wrong_bits;
    "many faults: pieces, delays, losses, doublings": rough;
    "a black hole is noticed, and gone through afterwards": black_hole;
    "a connection that is half open is replaced": half_open;
    "connections that come and go under load": reconnects;
    "transports are exchanged under load": switches;
    "an exchange that fails leaves the connection as it is": failed_switch;
    "another node, and a node of another cluster, get nowhere": strangers;
    "handshakes that never end are bounded in time and number": loiterers;
    "garbage from an authenticated node ends its link alone": garbage;
    "packets that come twice have no effect": replay;
};

const LENGTHS: Plan =
    Plan { pairs: 3, messages: 24, lengths: &[0, 1, 64, 1000, 20_000, 70_000, 300_000, 9], text: false };
const LOAD: Plan = Plan { pairs: 3, messages: 400, lengths: &[10, 900, 9_000, 30_000], text: true };

/// The first frames of both sides are as long as any, and are no part of the load.
const FRAMES_FIRST_BYTES: u64 = 2 * LONG_FRAME_BYTES as u64;

async fn untroubled() -> Done {
    pending().await
}

async fn lengths(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::None).await?;
    both((&mut bed.near, &mut bed.far), LENGTHS, untroubled()).await?;
    let status = bed.near.handle.status();
    ensure(status.kind == Some(kind), || format!("{status:?}"))
}

async fn smaller(kind: Kind) -> Done {
    for compression in Compression::ALL {
        let mut bed = Bed::make(kind, compression).await?;
        let plan = Plan { messages: 16, text: true, ..LENGTHS };
        both((&mut bed.near, &mut bed.far), plan, untroubled()).await?;
        let traffic = bed.near.handle.status().traffic;
        let part = traffic.carried_out as f64 / traffic.plain_out as f64;
        match compression {
            Compression::Lz4 | Compression::Zstd => {
                ensure(part < 0.7, || format!("{compression}: {part} is left"))?;
            }
            Compression::None => ensure(part >= 1.0, || format!("{part} is left"))?,
            // Whether it pays is for it to say.
            Compression::Auto => {}
        }
    }
    Ok(())
}

async fn batches(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::None).await?;
    let plan = Plan { pairs: 1, messages: 20_000, lengths: &[56], text: false };
    both((&mut bed.near, &mut bed.far), plan, untroubled()).await?;
    let traffic = bed.near.handle.status().traffic;
    ensure(traffic.packets_out * 20 < traffic.messages_out, || format!("{traffic:?}"))
}

async fn a_stuck_reader(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::None).await?;
    bed.near.up().await?;
    let handle = bed.near.handle.clone();
    let stuck = handle.open(b"stuck").map_err(Failure::during("open"))?;
    // Its window and its queue are full.
    while handle.send(stuck, &[1; 50_000]).map_err(Failure::during("send"))? == Sent::Queued {}
    let other = handle.open(b"other").map_err(Failure::during("open"))?;
    for index in 0..50_u8 {
        handle.send(other, &[index; 1000]).map_err(Failure::during("send"))?;
    }
    let mut next = 0;
    while next < 50 {
        if let Event::Messages { pair, messages } = bed.far.next().await?
            && pair == other
        {
            for bytes in &messages {
                ensure(bytes == [next; 1000], || format!("another message than {next}"))?;
                next += 1;
            }
        }
    }
    Ok(())
}

async fn death(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::None).await?;
    bed.near.up().await?;
    bed.far.up().await?;
    let pair = bed.near.handle.open(b"pair").map_err(Failure::during("open"))?;
    // It dies without a word; its successor is reached at another place.
    bed.far.driver.abort();
    let settings = Settings {
        peer: NEAR.into(),
        link: config(1, 2),
        compression: Compression::None,
        dial: None,
        spin: Duration::ZERO,
    };
    let mut successor = Side::start(settings)?;
    let listener = Listener::bind(local(kind), bed.cluster.tls(FAR)?).await;
    let listener = listener.map_err(Failure::during("listen"))?;
    // Frames have one road, by which the successor is reached as well.
    bed.faults(kind).set(|it| it.black_hole = kind != Kind::Ethernet);
    bed.faults(kind).cut();
    bed.near.handle.set_locators(vec![listener.locator()]);
    let accepting = accept(listener, successor.handle.clone());
    loop {
        match bed.near.next().await? {
            Event::Closed { pair: closed, why: Closed::Reborn } => {
                ensure(closed == pair, || format!("{closed} is closed, not {pair}"))?;
            }
            Event::Up { resumed, .. } => {
                ensure(!resumed, || "the successor is taken for the one before".into())?;
                break;
            }
            Event::Silent => {}
            other => return Err(Failure(format!("{other:?}"))),
        }
    }
    let resumed = successor.up().await?;
    accepting.abort();
    ensure(!resumed, || "the successor resumed".into())
}

async fn goodbye(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::None).await?;
    bed.near.up().await?;
    bed.far.up().await?;
    bed.far.handle.goodbye(9);
    let found = bed.near.next().await?;
    ensure(found == Event::Over(Over::Goodbye { reason: 9 }), || format!("{found:?}"))?;
    let over = within("the driver's end", &mut bed.near.driver).await?;
    ensure(matches!(over, Ok(Over::Goodbye { reason: 9 })), || format!("{over:?}"))
}

/// A first connection finds out how long a way takes.
async fn until_up(handle: &Handle, faults: &Faults) -> Done {
    while handle.standing() != Standing::Up {
        faults.after(1).await?;
    }
    Ok(())
}

async fn cuts_in_packets(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::Lz4).await?;
    let handle = bed.near.handle.clone();
    let Bed { near, far, faults, .. } = &mut bed;
    let faults = &faults[&kind];
    let trouble = async {
        until_up(&handle, faults).await?;
        for at in [1_u64, 700, 40_000, 5, 123_457, 16_406] {
            if is_stream(kind) {
                let goal = faults.passed() + 20_000 + at;
                faults.set(|it| it.cut_at = Some(goal));
                faults.after(20_000 + at).await?;
            } else {
                faults.after(20_000 + at).await?;
                faults.cut();
            }
        }
        Ok(())
    };
    // Flows of datagrams and frames end in silence: fewer of them.
    let plan = if is_stream(kind) { LENGTHS } else { Plan { messages: 16, ..LENGTHS } };
    let (seen, _) = both((near, far), plan, trouble).await?;
    ensure(seen.resumed >= 1, || format!("{seen:?}"))
}

async fn wrong_bits(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::None).await?;
    let Bed { near, far, faults, .. } = &mut bed;
    let faults = &faults[&kind];
    let trouble = async {
        faults.after(100_000).await?;
        // Of a stream each wrong bit costs a connection; others drop a datagram, or a frame.
        faults.set(|it| {
            it.corrupt = match kind {
                Kind::Tcp => 40,
                // Its pieces are long.
                Kind::Tipc => 12,
                Kind::Quic | Kind::Ethernet => 30,
            }
        });
        faults.after(1_500_000).await?;
        faults.set(|it| it.corrupt = 0);
        untroubled().await
    };
    let (seen, _) = both((near, far), LENGTHS, trouble).await?;
    ensure(!is_stream(kind) || seen.resumed >= 1, || format!("{seen:?}"))
}

async fn rough(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::Zstd).await?;
    let Bed { near, far, faults, .. } = &mut bed;
    let faults = &faults[&kind];
    faults.set(|it| match kind {
        Kind::Tcp | Kind::Tipc => (it.piece_bytes, it.delay) = (301, Duration::ZERO),
        Kind::Quic | Kind::Ethernet => it.rough = 25,
    });
    let trouble = async {
        faults.after(150_000).await?;
        faults.set(|it| (it.piece_bytes, it.delay) = (4000, Duration::from_millis(2)));
        faults.after(150_000).await?;
        faults.set(|it| (it.piece_bytes, it.delay) = (60_000, Duration::ZERO));
        untroubled().await
    };
    both((near, far), Plan { messages: 16, ..LENGTHS }, trouble).await.map(drop)
}

async fn black_hole(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::None).await?;
    bed.near.up().await?;
    bed.far.up().await?;
    bed.faults(kind).set(|it| it.black_hole = true);
    let begun = tokio::time::Instant::now();
    let pair = bed.near.handle.open(b"pair").map_err(Failure::during("open"))?;
    bed.near.handle.send(pair, b"through the hole").map_err(Failure::during("send"))?;
    let found = bed.near.next().await?;
    let late = begun.elapsed() > 4 * Duration::from_millis(silence_ms().into());
    ensure(found == Event::Silent && !late, || format!("{found:?} after {:?}", begun.elapsed()))?;
    ensure(bed.near.handle.standing() == Standing::Down, || "it stands".into())?;
    bed.faults(kind).set(|it| it.black_hole = false);
    loop {
        match bed.far.next().await? {
            Event::Messages { messages, .. } => {
                return ensure(messages.iter().eq([b"through the hole"]), || format!("{messages:?}"));
            }
            Event::Silent | Event::Up { resumed: true, .. } | Event::Opened { .. } => {}
            other => return Err(Failure(format!("{other:?}"))),
        }
    }
}

async fn half_open(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::None).await?;
    let Bed { near, far, faults, .. } = &mut bed;
    let faults = &faults[&kind];
    let bytes = if kind == Kind::Ethernet { FRAMES_FIRST_BYTES } else { 0 } + 30_000;
    let trouble = async {
        for _ in 0..3 {
            faults.after(bytes).await?;
            match kind {
                Kind::Tcp | Kind::Tipc => faults.set(|it| it.halves += 1),
                Kind::Quic | Kind::Ethernet => faults.cut(),
            }
        }
        Ok(())
    };
    let (near, far) = both((near, far), Plan { messages: 24, ..LENGTHS }, trouble).await?;
    ensure(near.resumed >= 1 && far.resumed >= 1, || format!("{near:?}, {far:?}"))
}

async fn reconnects(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::Auto).await?;
    let Bed { near, far, faults, .. } = &mut bed;
    let faults = &faults[&kind];
    let cuts = if is_stream(kind) { 12 } else { 3 };
    let bytes = if kind == Kind::Ethernet { FRAMES_FIRST_BYTES } else { 0 } + 60_000;
    let trouble = async {
        for _ in 0..cuts {
            faults.after(bytes).await?;
            faults.cut();
        }
        Ok(())
    };
    let (seen, _) = both((near, far), LOAD, trouble).await?;
    ensure(seen.resumed >= 2, || format!("{seen:?}"))
}

async fn switches(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::Auto).await?;
    let other = if kind == Kind::Tcp { Kind::Quic } else { Kind::Tcp };
    let ways = [bed.through(other), bed.through(kind)];
    let handle = bed.near.handle.clone();
    let Bed { near, far, faults, .. } = &mut bed;
    let faults_of_all = &*faults;
    let trouble = async {
        until_up(&handle, &faults_of_all[&kind]).await?;
        for way in ways.into_iter().cycle().take(8) {
            handle.switch(way).await.map_err(Failure::during("exchange the transport"))?;
            ensure(handle.status().kind == Some(way.kind), || "another kind".into())?;
            let faults = &faults_of_all[&way.kind];
            faults.after(40_000).await?;
        }
        Ok(())
    };
    let (near, far) = both((near, far), Plan { messages: 1200, ..LOAD }, trouble).await?;
    ensure(near.resumed >= 2 && far.resumed >= 2, || format!("{near:?}, {far:?}"))
}

async fn failed_switch(kind: Kind) -> Done {
    let mut bed = Bed::make(kind, Compression::None).await?;
    bed.near.up().await?;
    bed.far.up().await?;
    let there = bed.locators[0].address.ip().map_err(Failure::during("know an address"))?;
    let nowhere = TcpStream::connect(there).await.map_err(Failure::during("connect"))?;
    // Nobody listens at the address of this end.
    let address = nowhere.local_addr().map_err(Failure::during("ask for an address"))?.into();
    drop(nowhere);
    let locator = transport::Locator { kind: Kind::Tcp, address };
    let failed = bed.near.handle.switch(locator).await;
    ensure(matches!(failed, Err(SwitchError::Connect(ConnectError::Unreachable { .. }))), || {
        format!("{failed:?}")
    })?;
    let failed = bed.far.handle.switch(locator).await;
    ensure(matches!(failed, Err(SwitchError::NotOurs(_))), || format!("{failed:?}"))?;
    let plan = Plan { messages: 8, ..LENGTHS };
    both((&mut bed.near, &mut bed.far), plan, untroubled()).await?;
    let status = bed.near.handle.status();
    ensure(status.kind == Some(kind), || format!("{status:?}"))
}

async fn strangers(kind: Kind) -> Done {
    let cluster = Cluster::new("ours")?;
    let mut listener =
        Listener::bind(local(kind), cluster.tls(FAR)?).await.map_err(Failure::during("listen"))?;
    let locator = listener.locator();
    // Another node than expected.
    let tls = cluster.tls(NEAR)?;
    let (found, _) = tokio::join!(connect(locator, &tls, "third"), listener.accept());
    ensure(matches!(found, Err(ConnectError::Handshake { .. } | ConnectError::WrongPeer { .. })), || {
        format!("a third node: {found:?}")
    })?;
    // A cluster of the same name, with nodes of the same names.
    let stranger = Cluster::new("ours")?.tls(NEAR)?;
    let (found, accepted) = tokio::join!(connect(locator, &stranger, FAR), listener.accept());
    ensure(found.is_err() && accepted.is_err(), || format!("a stranger: {found:?}, {accepted:?}"))?;
    // And who is expected gets in.
    let (found, accepted) = tokio::join!(connect(locator, &tls, FAR), listener.accept());
    let peers = [found.map_err(Failure::during("connect"))?, accepted.map_err(Failure::during("accept"))?];
    ensure(peers[0].peer() == FAR && peers[1].peer() == NEAR, || format!("{peers:?}"))?;
    // A link takes connections of its own peer alone.
    let settings = Settings {
        peer: "third".into(),
        link: config(1, 1),
        compression: Compression::None,
        dial: None,
        spin: Duration::ZERO,
    };
    let [_, accepted] = peers;
    let refused = Side::start(settings)?.handle.adopt(accepted);
    ensure(refused.is_err_and(|wrong| wrong.found == NEAR), || "a wrong peer is adopted".into())
}

async fn loiterers(kind: Kind) -> Done {
    let cluster = Cluster::new("ours")?;
    let tls = cluster.tls(FAR)?;
    let mut listener = Listener::bind(local(kind), tls).await.map_err(Failure::during("listen"))?;
    let there = listener.locator().address;
    if kind == Kind::Quic {
        // Who sends a datagram that is none gets no answer, and holds nothing.
        let socket = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let socket = socket.map_err(Failure::during("bind"))?;
        let there = there.ip().map_err(Failure::during("know an address"))?;
        for bytes in [1, 100, 1200] {
            let sent = socket.send_to(&vec![0xc3; bytes], there).await;
            sent.map_err(Failure::during("send"))?;
        }
        let near = cluster.tls(NEAR)?;
        let (found, accepted) = tokio::join!(connect(listener.locator(), &near, FAR), listener.accept());
        return ensure(found.is_ok() && accepted.is_ok(), || format!("{found:?}, {accepted:?}"));
    }
    // They are held as long as this runs.
    let mut loiterers = JoinSet::new();
    for _ in 0..=HANDSHAKES_OF_ONE_MAX {
        loiterers.spawn(async move {
            // A stream of TIPC is there when it was accepted, not before.
            let held: io::Result<(Option<TcpStream>, Option<TipcStream>)> = match there {
                Address::Ip(there) => TcpStream::connect(there).await.map(|held| (Some(held), None)),
                Address::Tipc(there) => TipcStream::connect(there).await.map(|held| (None, Some(held))),
            };
            let _held = held;
            pending::<()>().await;
        });
    }
    let refused = within("a refusal", listener.accept()).await?;
    let many = matches!(&refused, Err(refused) if matches!(refused.why, RefusedWhy::Many { .. }));
    ensure(many, || format!("one too many: {refused:?}"))?;
    // A node that proves who it is gets in beside them, from the same address: for each of its
    // connections (over Ethernet there may be several before one carries frames) one of them is
    // given up.
    let near = cluster.tls(NEAR)?;
    let (found, accepted) = tokio::join!(connect(listener.locator(), &near, FAR), async {
        let mut given_up = 0;
        loop {
            match listener.accept().await {
                Err(Refused { why: RefusedWhy::Many { .. }, .. }) if given_up < HANDSHAKES_OF_ONE_MAX => {
                    given_up += 1
                }
                other => return (given_up, other),
            }
        }
    });
    let (given_up, accepted) = accepted;
    ensure(found.is_ok() && given_up > 0 && accepted.is_ok(), || {
        format!("{found:?}, {given_up}, {accepted:?}")
    })?;
    for _ in given_up..HANDSHAKES_OF_ONE_MAX {
        let refused = within("the end of a handshake", listener.accept()).await?;
        let late = matches!(&refused, Err(refused) if matches!(refused.why, RefusedWhy::Late));
        ensure(late, || format!("one that says nothing: {refused:?}"))?;
    }
    let near = cluster.tls(NEAR)?;
    let (found, accepted) = tokio::join!(connect(listener.locator(), &near, FAR), listener.accept());
    ensure(found.is_ok() && accepted.is_ok(), || format!("{found:?}, {accepted:?}"))?;
    match there {
        Address::Ip(there) => crowd(&mut listener, there).await,
        // There are no other machines on one node.
        Address::Tipc(_) => Ok(()),
    }
}

/// Several machines, of which none has too many: one more is one too many of all, and one of those
/// goes who have most.
async fn crowd(listener: &mut Listener, there: SocketAddr) -> Done {
    let from = |machine: u8| async move {
        let socket = TcpSocket::new_v4().map_err(Failure::during("make a socket"))?;
        socket.bind((Ipv4Addr::new(127, 0, 9, machine), 0).into()).map_err(Failure::during("bind"))?;
        socket.connect(there).await.map_err(Failure::during("connect"))
    };
    let machines = HANDSHAKES_MAX / HANDSHAKES_OF_ONE_MAX;
    let mut held = Vec::new();
    for machine in 1..=u8::try_from(machines).unwrap_or(u8::MAX) {
        for _ in 0..HANDSHAKES_OF_ONE_MAX {
            held.push(from(machine).await?);
        }
    }
    held.push(from(200).await?);
    let refused = within("a refusal", listener.accept()).await?;
    let is_one_of_many = |refused: &Refused| {
        matches!(refused.why, RefusedWhy::Many { most: HANDSHAKES_MAX })
            && matches!(refused.from, Some(Address::Ip(from)) if from.ip() != Ipv4Addr::new(127, 0, 9, 200))
    };
    ensure(refused.as_ref().is_err_and(is_one_of_many), || format!("one too many of all: {refused:?}"))
}

async fn say(connection: &mut Connection, mut bytes: &[u8]) -> Done {
    let carrier = connection.carrier();
    while !bytes.is_empty() {
        let taken = poll_fn(|cx| carrier.poll_send(cx, bytes)).await.map_err(Failure::during("send"))?;
        bytes = bytes.get(taken..).unwrap_or_default();
    }
    poll_fn(|cx| carrier.poll_flush(cx)).await.map_err(Failure::during("flush"))
}

/// Takes what comes until `done` says that it is enough.
async fn hear(connection: &mut Connection, link: &mut Link, mut done: impl FnMut(&mut Link) -> bool) -> Done {
    let (carrier, mut decoder): (&mut dyn Carry, _) = (connection.carrier(), wire::link::Decoder::default());
    let mut bytes = vec![0; 70_000];
    while !done(link) {
        let read = within("an answer", poll_fn(|cx| carrier.poll_receive(cx, &mut bytes))).await?;
        let read = read.map_err(Failure::during("receive"))?;
        ensure(read > 0, || "the other side has closed".into())?;
        let mut rest = &bytes[..read];
        while let Some((header, body)) = decoder.next(&mut rest).map_err(Failure::during("decode"))? {
            link.receive(0, &header, &body);
        }
    }
    Ok(())
}

/// A far side, and a hostile node that has made its way in: a link without a driver, and its
/// connection. The road goes with the cluster.
async fn hostile(kind: Kind) -> Done<(Cluster, Side, Link, Connection)> {
    let cluster = Cluster::new("ours")?;
    let settings = Settings {
        peer: NEAR.into(),
        link: config(1, 1),
        compression: Compression::None,
        dial: None,
        spin: Duration::ZERO,
    };
    let mut far = Side::start(settings)?;
    let listener = Listener::bind(local(kind), cluster.tls(FAR)?).await;
    let listener = listener.map_err(Failure::during("listen"))?;
    let locator = listener.locator();
    let accepting = accept(listener, far.handle.clone());
    let connection = connect(locator, &cluster.tls(NEAR)?, FAR).await;
    let mut connection = connection.map_err(Failure::during("connect"))?;
    let mut link = Link::new(config(0, 1)).map_err(Failure::during("make a link"))?;
    link.connected(0, Transport::Stream).map_err(Failure::during("connect a link"))?;
    let mut out = Vec::new();
    while link.poll_transmit(0, usize::MAX, &mut out) {}
    say(&mut connection, &out).await?;
    hear(&mut connection, &mut link, |link| link.standing() == Standing::Up).await?;
    // Only now the far side knows that it was heard.
    let mut out = Vec::new();
    while link.poll_transmit(0, usize::MAX, &mut out) {}
    say(&mut connection, &out).await?;
    far.up().await?;
    if kind != Kind::Quic {
        accepting.abort();
    } else {
        // Its socket carries the connections that it accepted.
        tokio::spawn(accepting);
    }
    Ok((cluster, far, link, connection))
}

/// Packets that no link sends, by name.
fn nonsense() -> Vec<(&'static str, Vec<u8>)> {
    let with = |header: Packet, body: &[u8]| [&header.to_bytes()[..], body].concat();
    let plain = |body: &[u8]| with(Packet::plain(packet::FRAMES, body.len(), 1, 1), body);
    let packed = |number, carried: &[u8], plain: usize| {
        let [carried_bytes, plain] = [carried.len(), plain].map(|bytes| u32::try_from(bytes).unwrap_or(0));
        let header = Packet::plain(packet::FRAMES, 0, 1, 1);
        with(Packet { compression: number, carried: carried_bytes, plain, ..header }, carried)
    };
    let mut enormous = Packet::plain(packet::FRAMES, 0, 1, 1);
    (enormous.carried, enormous.plain) = (u32::MAX, u32::MAX);
    let mut data = Vec::new();
    let pair = Pair { slot: 0, generation: 1 };
    Frame::Data { pair, offset: 4096, bytes: b"beyond a gap" }.encode(&mut data);
    let zeros = vec![0; PACKET_BODY_BYTES_MAX];
    vec![
        ("no packet", vec![0xa5; 100]),
        ("an enormous one", with(enormous, &[])),
        ("no frames", plain(&[0xff; 64])),
        ("half a frame", plain(&data[..20])),
        ("a gap", plain(&data)),
        ("LZ4 that is none", packed(compression::LZ4, &[0x5a; 300], 4000)),
        ("Zstandard that is none", packed(compression::ZSTD, &[0x5a; 300], 4000)),
        ("nothing, compressed", packed(compression::LZ4, &[], 1000)),
        ("more than was announced", packed(compression::LZ4, &[0x1f, 0, 1, 0, 255, 255, 255, 255, 9], 40)),
        ("frames of zeros", plain(&zeros)),
    ]
}

async fn garbage(kind: Kind) -> Done {
    for (name, bytes) in nonsense() {
        let (_cluster, mut far, _, mut connection) = hostile(kind).await?;
        say(&mut connection, &bytes).await?;
        let found = far.next().await?;
        ensure(matches!(found, Event::Over(Over::Broken(_))), || format!("{name}: {found:?}"))?;
    }
    // A compression that was not offered is refused before anything is unpacked; this side offers
    // all there are.
    let unknown = Broken::Compression { found: 7 };
    ready(ensure(unknown.to_string().contains('7'), || "the number is not said".into())).await
}

async fn replay(kind: Kind) -> Done {
    let (_cluster, mut far, mut link, mut connection) = hostile(kind).await?;
    let pair = link.open(b"pair").map_err(Failure::during("open"))?;
    // It goes out when the far side has said what it has.
    let mut out = Vec::new();
    hear(&mut connection, &mut link, |link| link.poll_transmit(0, usize::MAX, &mut out)).await?;
    say(&mut connection, &[&out[..], &out[..]].concat()).await?;
    for index in 0..5_u8 {
        link.send(pair, &[index; 100]).map_err(Failure::during("send"))?;
        let mut out = Vec::new();
        while link.poll_transmit(0, usize::MAX, &mut out) {}
        let again = [&out[..], &out[..], &out[..]].concat();
        say(&mut connection, &again).await?;
    }
    // Packets of an incarnation that is over, and for one.
    for (from, to) in [(9, 1), (1, 9)] {
        let mut body = Vec::new();
        Frame::Goodbye { reason: 1 }.encode(&mut body);
        let header = Packet::plain(packet::FRAMES, body.len(), from, to);
        say(&mut connection, &[&header.to_bytes()[..], &body].concat()).await?;
    }
    link.send(pair, b"last").map_err(Failure::during("send"))?;
    let mut out = Vec::new();
    while link.poll_transmit(0, usize::MAX, &mut out) {}
    say(&mut connection, &out).await?;
    let (mut next, mut last) = (0, false);
    while !last {
        match far.next().await? {
            Event::Opened { .. } => {}
            Event::Messages { messages, .. } => {
                for bytes in &messages {
                    ensure(!last, || "something came behind the last".into())?;
                    last = bytes == b"last";
                    if !last {
                        ensure(bytes == [next; 100], || format!("{} came where {next} was next", bytes[0]))?;
                        next += 1;
                    }
                }
            }
            other => return Err(Failure(format!("{other:?}"))),
        }
    }
    let status = far.handle.status();
    ensure(next == 5 && status.stale == 2, || format!("{next} came; {status:?}"))
}
