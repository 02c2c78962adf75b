//! The keys, and the file in which they outlive the program.

use ring_crypto::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring_crypto::digest::{SHA256, digest};
use ring_crypto::rand::{SecureRandom, SystemRandom};
use ring_crypto::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use service::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a key that seals.
const SEAL_BYTES: usize = 32;
/// Keys that are kept; who rotates once more forgets the oldest one.
const MAX_KEYS: usize = 64;
/// Messages that one key seals in one run of the program, before there is another one: with random
/// nonces of 96 bits a nonce comes twice with a probability of 2^-33 then (NIST SP 800-38D, 8.3).
const MAX_SEALED: u64 = 1 << 32;

/// A key that signs and a key that seals, which are made together.
struct Key {
    number: u32,
    made_unix_s: u64,
    /// PKCS #8 of the key that signs.
    signs: Vec<u8>,
    seals: [u8; SEAL_BYTES],
    sealed: u64,
}

/// All keys, the newest one last.
pub struct Keys {
    all: Vec<Key>,
    folder: Option<PathBuf>,
    random: SystemRandom,
}

impl Default for Keys {
    fn default() -> Self {
        Self { all: Vec::new(), folder: None, random: SystemRandom::new() }
    }
}

impl Keys {
    /// Reads the keys of a folder, or makes the first one. Without a folder they end with the
    /// program.
    ///
    /// # Errors
    /// Why they can't be read or written: nobody is served with other keys than before.
    pub fn begin(&mut self, folder: Option<&str>) -> Result<(), String> {
        if !self.all.is_empty() {
            return if self.folder.as_deref() == folder.map(Path::new) {
                Ok(())
            } else {
                Err("the folder of keys does not change while they are in use: restart the domain".to_owned())
            };
        }
        self.folder = folder.map(PathBuf::from);
        if let Some(path) = self.path() {
            match fs::read_to_string(&path) {
                Ok(text) => {
                    let read = text.lines().map(Key::read).collect::<Option<Vec<Key>>>();
                    self.all = read.ok_or_else(|| format!("{} is damaged: restore it", path.display()))?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        if self.all.is_empty() {
            self.rotate().map_err(|errno| format!("no key can be made: {errno}"))?;
        }
        Ok(())
    }

    /// Makes new keys; the earlier ones verify and open what they signed and sealed.
    pub fn rotate(&mut self) -> Result<(), Errno> {
        let signs = Ed25519KeyPair::generate_pkcs8(&self.random).map_err(|_| Errno::IO)?;
        let number = self.all.last().map_or(1, |last| last.number + 1);
        let made_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let seals = self.random()?;
        self.all.push(Key { number, made_unix_s, signs: signs.as_ref().to_vec(), seals, sealed: 0 });
        let oldest = (self.all.len() > MAX_KEYS).then(|| self.all.remove(0));
        let stored = self.store();
        if stored.is_err() {
            self.all.pop();
            self.all.splice(0..0, oldest);
        }
        stored
    }

    /// Forgets keys that are not the newest ones: nothing of theirs is verified or opened any more.
    pub fn forget(&mut self, number: u32) -> Result<(), Errno> {
        if self.newest()?.number == number {
            return Err(Errno::BUSY);
        }
        let at = self.all.iter().position(|key| key.number == number).ok_or(Errno::NOKEY)?;
        let key = self.all.remove(at);
        let stored = self.store();
        if stored.is_err() {
            self.all.insert(at, key);
        }
        stored
    }

    pub fn sign(&self, data: &[u8]) -> Result<String, Errno> {
        let key = self.newest()?;
        Ok(format!("{} {}", key.number, hexadecimal(key.pair()?.sign(data).as_ref())))
    }

    pub fn verify(&self, number: u32, signature: &[u8], data: &[u8]) -> Result<(), Errno> {
        let pair = self.key(number)?.pair()?;
        let public = UnparsedPublicKey::new(&ED25519, pair.public_key());
        public.verify(data, signature).map_err(|_| Errno::BADMSG)
    }

    /// Encrypts and authenticates: a nonce, the ciphertext and the tag. The key's number is
    /// authenticated with it.
    pub fn seal(&mut self, data: &[u8]) -> Result<String, Errno> {
        let nonce = self.random::<NONCE_LEN>()?;
        if self.newest()?.sealed >= MAX_SEALED {
            self.rotate()?;
        }
        let key = self.all.last_mut().ok_or(Errno::NOKEY)?;
        key.sealed += 1;
        let mut sealed = data.to_vec();
        let with = (Nonce::assume_unique_for_key(nonce), Aad::from(key.number.to_be_bytes()));
        key.sealing()?.seal_in_place_append_tag(with.0, with.1, &mut sealed).map_err(|_| Errno::MSGSIZE)?;
        Ok(format!("{} {}{}", key.number, hexadecimal(&nonce), hexadecimal(&sealed)))
    }

    pub fn open(&self, number: u32, mut sealed: Vec<u8>) -> Result<Vec<u8>, Errno> {
        let key = self.key(number)?;
        let (nonce, rest) = sealed.split_at_mut_checked(NONCE_LEN).ok_or(Errno::BADMSG)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Errno::BADMSG)?;
        let opened = key.sealing()?.open_in_place(nonce, Aad::from(number.to_be_bytes()), rest);
        opened.map(|data| data.to_vec()).map_err(|_| Errno::BADMSG)
    }

    pub fn random<const N: usize>(&self) -> Result<[u8; N], Errno> {
        let mut found = [0; N];
        self.random.fill(&mut found).map_err(|_| Errno::IO)?;
        Ok(found)
    }

    /// Number, time and public key of each.
    pub fn list(&self) -> String {
        let public = |key: &Key| {
            key.pair().map_or_else(|_| "-".to_owned(), |pair| hexadecimal(pair.public_key().as_ref()))
        };
        self.all
            .iter()
            .map(|key| format!("{} {} ed25519 {}\n", key.number, key.made_unix_s, public(key)))
            .collect()
    }

    fn newest(&self) -> Result<&Key, Errno> {
        self.all.last().ok_or(Errno::NOKEY)
    }

    fn key(&self, number: u32) -> Result<&Key, Errno> {
        self.all.iter().find(|key| key.number == number).ok_or(Errno::NOKEY)
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join("keyring"))
    }

    /// Replaces the file as a whole: after a power cut there is the one or the other.
    fn store(&self) -> Result<(), Errno> {
        let Some(path) = self.path() else { return Ok(()) };
        let next = path.with_extension("next");
        let write = || {
            let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&next)?;
            self.all.iter().try_for_each(|key| file.write_all(key.line().as_bytes()))?;
            file.sync_all()?;
            fs::rename(&next, &path)?;
            File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        write().map_err(|error: std::io::Error| {
            eprintln!("crypto: can't write {}: {error}", path.display());
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        })
    }
}

impl Key {
    fn pair(&self) -> Result<Ed25519KeyPair, Errno> {
        Ed25519KeyPair::from_pkcs8(&self.signs).map_err(|_| Errno::KEYREJECTED)
    }

    fn sealing(&self) -> Result<LessSafeKey, Errno> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &self.seals).map_err(|_| Errno::KEYREJECTED)?;
        Ok(LessSafeKey::new(key))
    }

    fn line(&self) -> String {
        format!(
            "{} {} {} {}\n",
            self.number,
            self.made_unix_s,
            hexadecimal(&self.signs),
            hexadecimal(&self.seals)
        )
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (number, made_unix_s) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let signs = crate::bytes(words.next()?.as_bytes()).ok()?;
        let seals = crate::bytes(words.next()?.as_bytes()).ok()?.try_into().ok()?;
        let key = Self { number, made_unix_s, signs, seals, sealed: 0 };
        (words.next().is_none() && key.pair().is_ok()).then_some(key)
    }
}

/// SHA-256.
pub fn hash(data: &[u8]) -> String {
    hexadecimal(digest(&SHA256, data).as_ref())
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
