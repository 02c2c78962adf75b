//! The programs of the two nodes of `e2e/tests/long/tipc.rs`, in a guest whose kernel has TIPC: one
//! looks at what it says where something is missing, then makes a link to the other, and runs the
//! suite of links by way of it where that is asked for.
//!
//! ```text
//! tipc_peer missing module|bearer  what is said without TIPC in the kernel, and without a bearer
//! tipc_peer near                   makes the checks; the other is at 10.78.0.2
//! tipc_peer far                    is the other
//! tipc_peer bench                  links over TIPC in `tombolo bench link`, between nodes of its own
//! ```
//!
//! It is the programs that the bench starts, too: called `link-worker` it is that, and with the
//! word `proxy` what `tombolo` is with it.
//!
//! Each check is a line on standard output: `ok NAME` or `not ok NAME: why`.

use bench::choice::Choice;
use bench::links::plan::{Arm, CASES, Plan as Measured};
use conformance::links::faults::{go_by_relay, relay};
use conformance::links::stage::{FAR, NEAR, Side, accept, config};
use conformance::links::talk::{Plan, talk};
use conformance::links::{Cluster, Done, Failure, SCENARIOS, ensure, within};
use e2e::tipc_guest::{ALL, is_of_suite, suite};
use std::future::{pending, ready};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};
use sys::tipc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use transport::{
    Address, Compression, Dial, Handle, Kind, Listener, Locator, Settings, TipcListener, connect,
};
use trust::Authority;
use wire::link::TIPC_SERVICE;

/// Where the far one hears what to do.
const CONTROL: &str = "10.78.0.2:7420";
/// Where its links are reached by TCP.
const BY_TCP: &str = "tcp:10.78.0.2:7421";
/// Instances of the far one's services: its links, and its relay.
const LINKS: u32 = 1;
const RELAY: u32 = 2;
/// How long the other may take to come up.
const UP: Duration = Duration::from_secs(120);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// How often a counter is looked at.
const COUNT: Duration = Duration::from_millis(2);
/// The messages of each round, by both.
const PLAN: Plan = Plan { pairs: 2, messages: 24, lengths: &[10, 900, 9_000], text: true };
/// A silent peer is lost after so long.
const SILENCE_MS: u32 = 5000;
/// Messages that come between two exchanges of the transport.
const BETWEEN: u64 = 12;
/// Exchanges, to TCP and back.
const EXCHANGES: usize = 4;
/// How often one is tried: a handshake has 5 s, in which an emulated machine beside busy ones may
/// not come to it.
const TRIES: usize = 20;
/// How often the bearer is taken away.
const CUTS: usize = 2;
/// Each round opens pairs, of which there can't be many more.
const ROUNDS_MAX: usize = 24;
/// Where the programs that the bench starts are said to be.
const BINARY: &str = "/usr/bin/tombolo";
/// Its check: part of the suite by this name, with all that the bench measures.
const CHECK_OF_BENCH: &str = "bench_of_links";
/// The cases that the bench measures without the suite.
const CASES_IN_SHORT: [&str; 2] = ["round trip", "stream,64 B,pairs=8"];
/// As short as it can be: that it works, not how fast.
const MEASURED: Measured = Measured { launches: 1, rounds: 1, warm_up_ns: 0, window_ns: 4_000_000 };

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [name, ..] if name.ends_with("link-worker") => {
            bench::channel::work::main(bench::links::transport::with)
        }
        [_, "proxy", ..] => ended(proxy_of_a_node()),
        [_, "bench"] => {
            judge(CHECK_OF_BENCH, measured());
            ExitCode::SUCCESS
        }
        words => ended(peer(words.get(1..).unwrap_or_default())),
    }
}

fn peer(words: &[&str]) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event loop");
    runtime.block_on(async {
        match words {
            ["missing", what] => missing(what).await,
            ["near"] => near().await,
            ["far"] => far().await,
            _ => Err(Failure("usage: tipc_peer missing module|bearer, near, far or bench".into())),
        }
    })
}

fn ended(done: Done) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            println!("it ends: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Says what came of a check.
fn judge(name: &str, done: Done) {
    match done {
        Ok(()) => println!("ok {name}"),
        Err(failure) => println!("not ok {name}: {}", failure.to_string().replace('\n', "|")),
    }
}

fn service(instance: u32) -> tipc::Address {
    tipc::Address::Service { service: TIPC_SERVICE, instance }
}

fn by_tipc() -> Locator {
    Locator { kind: Kind::Tipc, address: Address::Tipc(service(LINKS)) }
}

fn by_tcp() -> Done<Locator> {
    BY_TCP.parse().map_err(Failure::during("read a locator"))
}

fn proxy_of_a_node() -> Done {
    let listener =
        std::io::stdin().as_fd().try_clone_to_owned().map_err(Failure::during("take its socket"))?;
    proxy::run(listener).map(drop).map_err(Failure::during("serve"))
}

/// Links over TIPC have results in the bench, also after a network with other frames, which takes
/// TIPC's link down.
fn measured() -> Done {
    let arms = [Arm::LongestLink, Arm::Tipc].map(|arm| arm.name().to_owned()).to_vec();
    let in_short = CASES_IN_SHORT.map(str::to_owned).to_vec();
    let cases = if suite().is_some_and(|asked| asked == ALL || CHECK_OF_BENCH.contains(&asked)) {
        Vec::new()
    } else {
        in_short
    };
    let choice = Choice { cases, arms };
    let begun = Instant::now();
    let mut progress = |what: &str| println!("{} ms: {what}", begun.elapsed().as_millis());
    let results = bench::links::measure(&MEASURED, &choice, Path::new(BINARY), &mut progress)
        .map_err(Failure::during("measure"))?;
    progress("it was measured");
    ensure(results.notes.iter().all(|note| !note.contains(Arm::Tipc.name())), || results.notes.join("|"))?;
    for condition in CASES.iter().map(|case| case.condition()).filter(|condition| choice.takes(condition)) {
        let found = results.of(&condition, Arm::Tipc.name()).next();
        let operations = found.map_or(0, |repetition| repetition.operations);
        ensure(operations > 0, || format!("{condition}: nothing was measured"))?;
        println!("{condition}: {operations}");
    }
    Ok(())
}

/// An error where something is missing says how to get it.
async fn missing(what: &str) -> Done {
    let cluster = Cluster::new("missing")?;
    let said = connect(by_tipc(), &cluster.tls(NEAR)?, FAR).await.err();
    let said = said.map(|error| error.to_string()).unwrap_or_default();
    let words = match what {
        "module" => "modprobe tipc",
        _ => "tipc bearer enable media eth device",
    };
    let done = ensure(said.contains(words), || format!("{said:?} does not say {words:?}"));
    judge(&format!("missing_{what}"), done);
    Ok(())
}

fn settings(peer: &str, side: u8, dial: Option<Dial>) -> Settings {
    let mut link = config(side, 1);
    // Machines that are emulated are slow, and not silent.
    link.hello.silence_ms = SILENCE_MS;
    Settings { peer: peer.to_owned(), link, compression: Compression::Auto, dial, spin: Duration::ZERO }
}

async fn far() -> Done {
    let control = TcpListener::bind(CONTROL).await.map_err(Failure::during("listen"))?;
    go_by_relay(service(RELAY));
    let (mut near, _) = control.accept().await.map_err(Failure::during("accept"))?;
    let length = near.read_u32().await.map_err(Failure::during("hear"))?;
    let mut pem = vec![0; usize::try_from(length).unwrap_or(0)];
    near.read_exact(&mut pem).await.map_err(Failure::during("hear"))?;
    let authority = Authority::from_pem(&String::from_utf8_lossy(&pem));
    let tls = Cluster::of(authority.map_err(Failure::during("read an authority"))?)?.tls(FAR)?;
    let mut side = Side::start(settings(NEAR, 1, None))?;
    for at in [by_tcp()?, by_tipc()] {
        let listener = Listener::bind(at, tls.clone()).await.map_err(Failure::during("listen for links"))?;
        accept(listener, side.handle.clone());
    }
    let listener = TipcListener::bind(service(RELAY)).map_err(Failure::during("listen for the relay"))?;
    tokio::spawn(relay(listener));
    near.write_u8(0).await.map_err(Failure::during("tell"))?;
    // Round by round, as the near one says.
    while near.read_u8().await.is_ok() {
        if let Err(failure) = talk(&mut side, PLAN).await {
            println!("far: {failure}");
        }
        near.write_u8(0).await.map_err(Failure::during("tell"))?;
    }
    // The relay goes on.
    pending().await
}

/// The near one's link, and how it speaks to the far one beside it.
struct Near {
    side: Side,
    control: TcpStream,
}

impl Near {
    async fn meet() -> Done<Self> {
        let begun = Instant::now();
        let mut control = loop {
            match TcpStream::connect(CONTROL).await {
                Ok(control) => break control,
                Err(error) => {
                    ensure(begun.elapsed() < UP, || format!("the other node is not there: {error}"))?;
                    // tidy(sleep): nothing tells when another machine is up.
                    tokio::time::sleep(LOOK).await;
                }
            }
        };
        let authority =
            Authority::new("guests", SystemTime::now()).map_err(Failure::during("make an authority"))?;
        let pem = authority.to_pem();
        let length = u32::try_from(pem.len()).map_err(Failure::during("count"))?;
        control.write_u32(length).await.map_err(Failure::during("tell"))?;
        control.write_all(pem.as_bytes()).await.map_err(Failure::during("tell"))?;
        within("the other node's word", control.read_u8()).await?.map_err(Failure::during("hear"))?;
        let tls = Cluster::of(authority)?.tls(NEAR)?;
        let dial = Dial { locators: vec![by_tipc()], tls };
        Ok(Self { side: Side::start(settings(FAR, 0, Some(dial)))?, control })
    }

    /// Both say what the plan says, again and again until `trouble` is over. Says how often the
    /// link came up again.
    async fn rounds(&mut self, trouble: impl Future<Output = Done>) -> Done<u32> {
        tokio::pin!(trouble);
        let (mut is_over, mut resumed) = (false, 0);
        for _ in 0..ROUNDS_MAX {
            self.control.write_u8(0).await.map_err(Failure::during("tell"))?;
            let users = talk(&mut self.side, PLAN);
            tokio::pin!(users);
            let seen = loop {
                tokio::select! {
                    seen = &mut users => break seen?,
                    troubled = &mut trouble, if !is_over => {
                        troubled?;
                        is_over = true;
                    }
                }
            };
            resumed += seen.resumed;
            let told = within("the other's end of a round", self.control.read_u8()).await?;
            told.map_err(Failure::during("hear"))?;
            if is_over {
                return Ok(resumed);
            }
        }
        Err(Failure(format!("{ROUNDS_MAX} rounds were not enough")))
    }
}

/// Waits until so many more messages have come over a link.
async fn after(handle: &Handle, messages: u64) {
    let goal = handle.status().traffic.messages_in + messages;
    while handle.status().traffic.messages_in < goal {
        // tidy(sleep): a counter has no event.
        tokio::time::sleep(COUNT).await;
    }
}

async fn near() -> Done {
    // From here on all are as patient as emulated machines need it.
    go_by_relay(service(RELAY));
    let mut near = Near::meet().await?;
    let begun = Instant::now();
    let note = |what| println!("{} ms: {what}", begun.elapsed().as_millis());
    note("the other node is there");
    judge("messages_between_nodes", plain(&mut near).await);
    note("messages went");
    judge("exchanges_between_nodes", exchanges(&mut near).await);
    note("transports were exchanged");
    let Some(asked) = suite() else { return Ok(()) };
    judge("a_bearer_that_goes_away", cuts(&mut near).await);
    note("the bearer went away and came back");
    // The far one has said all; its relay goes on.
    drop(near);
    for scenario in SCENARIOS.iter().filter(|scenario| is_of_suite(scenario.name, &asked)) {
        let begun = Instant::now();
        let done = scenario.run(Kind::Tipc).await;
        println!("{} ms: {}", begun.elapsed().as_millis(), scenario.name);
        judge(&format!("suite.{}", scenario.name.replace([':', ','], "")), done);
    }
    Ok(())
}

async fn plain(near: &mut Near) -> Done {
    near.rounds(ready(Ok(()))).await?;
    let status = near.side.handle.status();
    ensure(status.kind == Some(Kind::Tipc), || format!("{status:?}"))
}

/// Goes over another transport.
async fn switch(handle: &Handle, way: Locator) -> Done {
    let mut last = None;
    for _ in 0..TRIES {
        match handle.switch(way).await {
            Ok(()) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    Err(Failure(format!("the transport is not exchanged: {last:?}")))
}

/// To TCP and back, again and again, while both sides speak.
async fn exchanges(near: &mut Near) -> Done {
    let (ways, handle) = ([by_tcp()?, by_tipc()], near.side.handle.clone());
    let before = handle.status().traffic.connections;
    let exchange = handle.clone();
    let trouble = async move {
        for way in ways.into_iter().cycle().take(EXCHANGES) {
            switch(&exchange, way).await?;
            after(&exchange, BETWEEN).await;
        }
        Ok(())
    };
    let resumed = near.rounds(trouble).await?;
    let connections = handle.status().traffic.connections - before;
    let enough = connections >= EXCHANGES as u64 && resumed >= 1;
    ensure(enough, || format!("{connections} connections, resumed {resumed} times"))
}

fn bearer(word: &str) -> Done {
    let done = Command::new("tipc").args(["bearer", word, "media", "eth", "device", "eth0"]).status();
    let done = done.map_err(Failure::during("run tipc"))?;
    ensure(done.success(), || format!("tipc bearer {word}: {done}"))
}

/// The link has nothing but TIPC, whose bearer goes and comes.
async fn cuts(near: &mut Near) -> Done {
    near.side.handle.set_locators(vec![by_tipc()]);
    switch(&near.side.handle, by_tipc()).await?;
    let handle = near.side.handle.clone();
    let trouble = async move {
        for _ in 0..CUTS {
            after(&handle, BETWEEN).await;
            bearer("disable")?;
            within("the loss", async {
                while handle.status().kind.is_some() {
                    // tidy(sleep): a status has no event.
                    tokio::time::sleep(COUNT).await;
                }
            })
            .await?;
            bearer("enable")?;
        }
        Ok(())
    };
    let resumed = near.rounds(trouble).await?;
    let kind = near.side.handle.status().kind;
    ensure(resumed >= 1 && kind == Some(Kind::Tipc), || format!("resumed {resumed} times, over {kind:?}"))
}
