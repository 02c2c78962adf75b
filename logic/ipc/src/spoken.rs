//! Words of two stand-ins to each other, as messages of a link (`docs/spec/proxy.md`).

use crate::Said;
use wire::ipc::{HEADER_BYTES, Header, payload_bytes_max};
use wire::proxy::{MAX_MESSAGE_BYTES, word};

/// Bytes of a record in one message of the link.
const FRAGMENT_BYTES: usize = MAX_MESSAGE_BYTES as usize - 1;

/// The messages of the link that say it.
#[must_use]
pub fn messages(said: &Said) -> Vec<Vec<u8>> {
    let (first, number) = match said {
        Said::Record(header, payload) => {
            let record = [&header.to_bytes()[..], payload].concat();
            let mut fragments: Vec<Vec<u8>> = record
                .chunks(FRAGMENT_BYTES)
                .map(|chunk| [&[word::RECORD | word::MORE][..], chunk].concat())
                .collect();
            if let Some(first) = fragments.last_mut().and_then(|last| last.first_mut()) {
                *first = word::RECORD;
            }
            return fragments;
        }
        Said::Taken(id) => (word::TAKEN, id),
        Said::Over(id) => (word::OVER, id),
        Said::Withdraw(id) => (word::WITHDRAW, id),
        Said::Received(bytes) => (word::RECEIVED, bytes),
        Said::Notices(bits) => (word::NOTICES, bits),
        Said::Path(path) => (word::PATH, path),
    };
    vec![[&[first][..], &number.to_le_bytes()].concat()]
}

/// Puts together what the link brings.
#[derive(Debug, Default)]
pub struct Hearing {
    /// The part of a record that has come.
    part: Vec<u8>,
}

impl Hearing {
    /// Takes a message of the link; `None`: the record goes on. `ring_bytes` is what the ring has
    /// that a record has to fit into.
    ///
    /// # Errors
    /// The rule that the other side breaks, in words.
    pub fn hear(&mut self, message: &[u8], ring_bytes: u32) -> Result<Option<Said>, String> {
        let Some((first, content)) = message.split_first() else {
            return Err("a message without a word".into());
        };
        match *first & !word::MORE {
            word::RECORD => self.record(*first & word::MORE != 0, content, ring_bytes),
            _ => number(*first, content).map(Some),
        }
    }

    fn record(&mut self, goes_on: bool, content: &[u8], ring_bytes: u32) -> Result<Option<Said>, String> {
        let length = self.part.len() + content.len();
        let most = HEADER_BYTES + payload_bytes_max(ring_bytes);
        if length > most {
            return Err(format!("a record of {length} bytes or more, where {most} fit"));
        }
        self.part.extend_from_slice(content);
        if goes_on {
            return Ok(None);
        }
        let record = std::mem::take(&mut self.part);
        let (header, payload) =
            record.split_first_chunk::<HEADER_BYTES>().ok_or("a record that is shorter than its header")?;
        let header = Header::read(*header, record.len()).map_err(|why| why.to_string())?;
        Ok(Some(Said::Record(header, payload.to_vec())))
    }
}

/// Reads a message that says a number.
fn number(first: u8, content: &[u8]) -> Result<Said, String> {
    let number = content.try_into().map(u64::from_le_bytes);
    let number = number.map_err(|_| format!("word {first} with {} bytes", content.len()))?;
    Ok(match first {
        word::TAKEN => Said::Taken(number),
        word::OVER => Said::Over(number),
        word::WITHDRAW => Said::Withdraw(number),
        word::RECEIVED => Said::Received(number),
        word::NOTICES => Said::Notices(number),
        word::PATH => Said::Path(number),
        _ => return Err(format!("word {first} does not belong on a pair of endpoints")),
    })
}
