//! Bytes of another node's proxy to ours, once it has shown whose it is: its first bytes, pairs for
//! whatever it likes, and any messages on them, while this node's daemon accepts some and refuses
//! others, and programs come and go. What must hold: no panic; what is asked, opened and pumped is
//! counted right and within its bounds; the daemon is told of each event once; and what a refusal
//! says is cut and cleaned.
#![cfg_attr(feature = "fuzzing", no_main)]

use fuzz::script::Script;
use proxy::fuzzing::{LinkIsOver, Stage};
use wire::control::EndpointAddress;
use wire::link::Pair;
use wire::proxy::{News, Open, Order, Report, word};

/// Steps of one script: more bring nothing new.
const MAX_STEPS: usize = 256;
/// Longest message of a script; longer ones differ in nothing.
const MAX_MESSAGE: usize = 3000;
/// The beginnings of messages of pairs.
const WORDS: [u8; 15] = [
    word::WHOLE,
    word::FIRST,
    word::NEXT,
    word::LAST,
    word::ACCEPTED,
    word::REFUSED,
    word::LIMIT,
    word::NEWS,
    word::RECORD,
    word::TAKEN,
    word::OVER,
    word::WITHDRAW,
    word::RECEIVED,
    word::NOTICES,
    word::PATH,
];

fuzz::target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let mut stage = Stage::new();
    if kind % 4 == 0 {
        let _over = stage.bytes(bytes, 1 + usize::from(*kind));
        return;
    }
    let mut script = Script::new(bytes);
    let mut play = Play { stage, pairs: Vec::new(), asked: Vec::new(), opens: 0 };
    let _over = play.all(&mut script);
});

struct Play {
    stage: Stage,
    /// The pairs that the peer knows: its own, and guesses of ours.
    pairs: Vec<Pair>,
    /// The questions that the daemon was asked.
    asked: Vec<u64>,
    opens: u64,
}

impl Play {
    fn all(&mut self, script: &mut Script<'_>) -> Result<(), LinkIsOver> {
        self.stage.carry()?;
        for slot in 0..4 {
            self.pairs.extend((1..3).map(|generation| Pair { slot, generation }));
        }
        for _ in 0..MAX_STEPS {
            let Some(step) = script.step() else { return Ok(()) };
            self.step(step, script)?;
            self.stage.carry()?;
            for report in self.stage.reports() {
                if let Report::Asked { pair, .. } = report {
                    self.asked.push(pair);
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, step: u8, script: &mut Script<'_>) -> Result<(), LinkIsOver> {
        match step {
            0..60 => {
                let content = content(step, script);
                let opened = self.stage.peer(|link| link.open(&content));
                self.pairs.extend(opened.ok());
            }
            60..150 => {
                let (pair, message) = (self.pair(script), message(step, script));
                let _full = self.stage.peer(|link| link.send(pair, &message));
            }
            150..160 => {
                let (pair, reason) = (self.pair(script), u32::from(step));
                self.stage.peer(|link| link.close(pair, reason));
            }
            160..165 => {
                let pair = self.pair(script);
                self.stage.peer(|link| link.abandon(pair, 2));
            }
            165..200 => {
                let Some(pair) = self.asked.pop() else { return Ok(()) };
                return self.stage.order(Order::Accept { pair });
            }
            200..210 => {
                let Some(pair) = self.asked.pop() else { return Ok(()) };
                return self.stage.order(Order::Refuse { pair, errno: 2, message: "no such service".into() });
            }
            210..225 => {
                self.opens += 1;
                return self.stage.order(Order::Open { id: self.opens, open: open(step, script) });
            }
            225..230 => {
                let id = u64::from(script.byte());
                return self.stage.order(Order::Cancel { id });
            }
            230..235 => return self.stage.order(Order::News { news: News::Again {} }),
            235..237 => return self.stage.order(Order::Inspect { id: 1 }),
            237..240 => {
                let endpoints = [address(script), address(script)];
                return self.stage.order(Order::Part { dc: "shop".into(), endpoints });
            }
            _ => {
                let (which, size) = (usize::from(script.byte()), script.below(MAX_MESSAGE));
                self.stage.program(which, &vec![step; size], script.byte() > 200);
            }
        }
        Ok(())
    }

    fn pair(&self, script: &mut Script<'_>) -> Pair {
        self.pairs[script.below(self.pairs.len())]
    }
}

fn address(script: &mut Script<'_>) -> EndpointAddress {
    EndpointAddress { slot: script.below(4) as u32, generation: 1 + script.below(2) as u32 }
}

fn open(step: u8, script: &mut Script<'_>) -> Open {
    let (dc, domain) = ("shop".to_owned(), "web".to_owned());
    let ring_bytes = script.word() as u32;
    match step % 4 {
        0 => Open::News {},
        1 => Open::Channel { dc, service: "dns".into(), domain, entrance: "api".into(), ring_bytes },
        2 => {
            let (from, to) = (address(script), address(script));
            Open::Endpoints { dc, from, name: String::new(), domain, to, ring_bytes }
        }
        _ => Open::Grant { dc, grant: script.word(), from: address(script), name: String::new(), domain },
    }
}

/// The target of a pair: something that there is, cut or changed in places, or anything.
fn content(step: u8, script: &mut Script<'_>) -> Vec<u8> {
    let mut content = serde_json::to_vec(&open(step, script)).expect("it can be written");
    match script.byte() {
        0..180 => {}
        180..210 => content.truncate(script.below(content.len())),
        210..240 => {
            let at = script.below(content.len());
            content[at] = script.byte();
        }
        _ => content = script.bytes::<24>().to_vec(),
    }
    content
}

fn message(step: u8, script: &mut Script<'_>) -> Vec<u8> {
    if step.is_multiple_of(8) {
        let mut news = vec![word::NEWS];
        let what = [News::Anew {}, News::Again {}];
        serde_json::to_writer(&mut news, &what[script.below(2)]).expect("it can be written");
        return news;
    }
    let mut message =
        vec![WORDS[script.below(WORDS.len())] | if script.byte() > 240 { word::MORE } else { 0 }];
    message.extend(script.bytes::<24>());
    // Short ones as well: an answer is one byte.
    let length = if script.flag() { script.below(26) } else { script.below(MAX_MESSAGE) };
    message.resize(length.max(1), step);
    message
}
