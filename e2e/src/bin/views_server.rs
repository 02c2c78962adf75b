//! The service `kit` of the tests of views: a file of each behaviour, and nothing by chance.

use service::{Errno, Error, Later, Service, Stream, StreamOptions, ready};
use std::cell::OnceCell;
use std::rc::Rc;

/// The number that is set, and the answer that is held back.
#[derive(Default)]
struct State {
    number: i64,
    held: Vec<Later>,
    /// Bytes that were written to the device.
    port: Vec<u8>,
}

fn number(word: Option<&str>) -> Result<i64, Errno> {
    word.and_then(|word| word.parse().ok()).ok_or(Errno::INVAL)
}

fn command(state: &mut State, samples: &Stream, line: &[u8]) -> Result<(), Errno> {
    let text = str::from_utf8(line).map_err(|_| Errno::ILSEQ)?;
    let mut words = text.split(' ');
    match (words.next(), words.next()) {
        (Some("reset"), None) => *state = State { number: 20, ..State::default() },
        (Some("set"), word) => state.number = number(word)?,
        (Some("publish"), Some(record)) => samples.publish(record)?,
        (Some("large"), word) => samples.publish(vec![b'r'; number(word)? as usize])?,
        (Some("many"), word) => {
            for one in 0..number(word)? {
                samples.publish(format!("record {one}"))?;
            }
        }
        (Some("release"), None) => state.held.drain(..).for_each(|later| later.answer(Ok("released"))),
        _ => return Err(Errno::NOSYS),
    }
    Ok(())
}

/// Bytes that are written to it are read from it.
fn device(kit: &mut Service<State>) {
    let port = kit.device("port", "change");
    port.opened(|_, call| {
        call.ready(ready::WRITE);
        Ok(())
    });
    port.written(|state, call, data| {
        if data == b"!" {
            return Err(Errno::DOM);
        }
        state.port.extend_from_slice(data);
        call.ready(ready::READ | ready::WRITE);
        Ok(data.len())
    });
    port.read(|state, call, most| {
        let rest = state.port.split_off(most.min(state.port.len()));
        let part = std::mem::replace(&mut state.port, rest);
        call.ready(if state.port.is_empty() { ready::WRITE } else { ready::READ | ready::WRITE });
        Ok(part)
    });
}

fn main() -> Result<(), Error> {
    let mut kit = Service::new("kit", State { number: 20, ..State::default() })?;
    let samples = kit.stream("samples", "read", StreamOptions::default());
    kit.text("reading", "read", |state, _| Ok(format!("{}\n", state.number)));
    kit.text("long", "read", |_, _| Ok(vec![b'l'; 300_000]));
    kit.text("broken", "read", |_, _| Err::<(), _>(Errno::DOM));
    kit.control("ctl", "change", move |state, _, line| command(state, &samples, line))
        .read(|state, _, _| Ok(format!("set {}\n", state.number)));
    kit.session("ask", "change", |state, call, line| {
        let text = str::from_utf8(line).map_err(|_| Errno::ILSEQ)?;
        match text.split_once(' ').unwrap_or((text, "")) {
            ("double", word) => Ok(format!("{}\n", number(Some(word))? * 2).into()),
            ("echo", word) => Ok(word.into()),
            ("repeat", word) => Ok(vec![b'a'; number(Some(word))? as usize].into()),
            ("wait", _) => {
                let (reply, later) = call.later()?;
                state.held.push(later);
                Ok(reply)
            }
            _ => Err(Errno::NOSYS),
        }
    });
    // What is said is heard by all who read, the speaker among them.
    let heard = Rc::new(OnceCell::<Stream>::new());
    let said = Rc::clone(&heard);
    let talk = kit.exchange("talk", "change", StreamOptions::default(), move |_, _, record| {
        said.get().ok_or(Errno::IO)?.publish(record)
    });
    let _only_once = heard.set(talk);
    device(&mut kit);
    kit.run()
}
