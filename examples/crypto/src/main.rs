//! Cryptography as a service: domains hash, sign, verify, seal and open data with keys that they
//! never see. Keys are made here, stay here, and are rotated. `README.md` shows each file.

mod keys;

use keys::Keys;
use service::{Errno, Error, Service};

/// Random bytes of one read of `random`.
const RANDOM_BYTES: usize = 32;

fn main() -> Result<(), Error> {
    let mut crypto = Service::new("crypto", Keys::default())?;
    // Before the first consumer comes: the folder in which keys outlive this program.
    crypto.on_settings(|keys, settings| keys.begin(settings.get("keys").and_then(|path| path.as_str())));

    crypto.session("hash", "use", |_, _, line| Ok(keys::hash(&bytes(line)?) + "\n"));
    crypto.session("sign", "use", |keys, _, line| keys.sign(&bytes(line)?).map(ended));
    crypto.session("verify", "use", |keys, _, line| {
        let [key, signature, data] = words(line)?;
        keys.verify(number(key)?, &bytes(signature)?, &bytes(data)?).map(|()| "good\n")
    });
    crypto.session("seal", "use", |keys, _, line| keys.seal(&bytes(line)?).map(ended));
    crypto.session("open", "use", |keys, _, line| {
        let [key, sealed] = words(line)?;
        keys.open(number(key)?, bytes(sealed)?).map(|data| keys::hexadecimal(&data) + "\n")
    });
    crypto.text("random", "use", |keys, _| {
        keys.random::<RANDOM_BYTES>().map(|found| ended(keys::hexadecimal(&found)))
    });
    crypto.text("keys", "use", |keys, _| Ok(keys.list()));

    let ctl = crypto.control("ctl", "rotate", |keys, _, line| match words::<2>(line) {
        Ok([b"forget", key]) => keys.forget(number(key)?),
        _ if line == b"rotate" => keys.rotate(),
        _ => Err(Errno::INVAL),
    });
    ctl.mode(0o600);
    crypto.run()
}

fn ended(text: String) -> String {
    text + "\n"
}

/// The words of a line, which has so many.
fn words<const N: usize>(line: &[u8]) -> Result<[&[u8]; N], Errno> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    words.try_into().map_err(|_| Errno::INVAL)
}

fn number(word: &[u8]) -> Result<u32, Errno> {
    std::str::from_utf8(word).ok().and_then(|text| text.parse().ok()).ok_or(Errno::INVAL)
}

/// Bytes from their hexadecimal digits, as `xxd -p` writes them.
fn bytes(digits: &[u8]) -> Result<Vec<u8>, Errno> {
    if !digits.len().is_multiple_of(2) {
        return Err(Errno::INVAL);
    }
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pair = |pair: &[u8]| Some(value(pair[0])? << 4 | value(pair[1])?);
    digits.chunks_exact(2).map(pair).collect::<Option<_>>().ok_or(Errno::INVAL)
}
