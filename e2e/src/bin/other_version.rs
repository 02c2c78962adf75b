//! A proxy of a release that is too far away, for `e2e/tests/all/link_versions.rs`: it has a node's
//! certificate and speaks versions of the protocol of links that nobody else does.
//!
//! ```text
//! other_version NODE PEER FOLDER OLDEST NEWEST listen|connect LOCATOR
//! ```
//!
//! Each connection is a line on standard output: `MS WHY`, in ms since the first, and why this side
//! says that the link is over. It ends when its standard input does.

use link::{Config, Event, Timing};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use transport::{COMPRESSIONS, Compression, Dial, Events, Listener, Locator, Settings, Tls, start};
use trust::Identity;
use wire::link::Hello;
use wire::proxy::{MAX_MESSAGE_BYTES, MAX_PAIRS, SILENCE_MS, WINDOW_BYTES};

type Failed = Box<dyn std::error::Error>;

const USAGE: &str = "usage: other_version NODE PEER FOLDER OLDEST NEWEST listen|connect LOCATOR";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    std::thread::spawn(|| {
        // It ends with whoever has started it; what can't be read has ended as well.
        let _ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event loop");
    match runtime.block_on(run(&words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

async fn run(words: &[&str]) -> Result<(), Failed> {
    let [node, peer, folder, oldest, newest, way, at] = words else { return Err(USAGE.into()) };
    let identity = Identity::load(Path::new(folder))?;
    let alpn: &[&[u8]] = &[transport::ALPN];
    let checker = identity.clone();
    let tls = Tls::new(&*identity.server(alpn)?, &*identity.client(alpn)?, move |chain| {
        checker.check(chain).map(|peer| peer.node).map_err(|error| error.to_string())
    });
    let locator: Locator = at.parse()?;
    let stranger = Stranger { node, peer, versions: (oldest.parse()?, newest.parse()?) };
    if *way == "connect" {
        let dial = Dial { locators: vec![locator], tls };
        let (_handle, mut events, driver) = start(stranger.settings(Some(dial))?)?;
        tokio::spawn(driver.run());
        println!("0 {}", over(&mut events).await);
        return Ok(());
    }
    let mut listener = Listener::bind(locator, tls).await?;
    let mut first = None;
    loop {
        let connection = match listener.accept().await {
            Ok(connection) => connection,
            Err(refused) => {
                eprintln!("{refused}");
                continue;
            }
        };
        let begun = *first.get_or_insert_with(Instant::now);
        let came = begun.elapsed().as_millis();
        let (handle, mut events, driver) = start(stranger.settings(None)?)?;
        tokio::spawn(driver.run());
        handle.adopt(connection)?;
        println!("{came} {}", over(&mut events).await);
    }
}

struct Stranger<'a> {
    node: &'a str,
    peer: &'a str,
    versions: (u16, u16),
}

impl Stranger<'_> {
    fn settings(&self, dial: Option<Dial>) -> Result<Settings, Failed> {
        let (oldest, newest) = self.versions;
        let hello = Hello {
            oldest,
            newest,
            side: u8::from(self.node > self.peer),
            compressions: COMPRESSIONS,
            pairs: MAX_PAIRS,
            window_bytes: WINDOW_BYTES,
            message_bytes: MAX_MESSAGE_BYTES,
            silence_ms: SILENCE_MS,
        };
        let epoch = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
        let link = Config { epoch, hello, queue_bytes: WINDOW_BYTES as usize, timing: Timing::default() };
        let peer = self.peer.to_owned();
        Ok(Settings { peer, link, compression: Compression::None, dial, spin: Duration::ZERO })
    }
}

/// Why the link is over.
async fn over(events: &mut Events) -> String {
    while let Some(event) = events.next().await {
        if let Event::Over(why) = event {
            return why.to_string();
        }
    }
    "its driver has ended".into()
}
