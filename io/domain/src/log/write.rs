//! The monitor's half: cutting output into records, bounding what is kept.

use super::{MAX_FILES, MAX_LINE_BYTES, Stream, file};
use crate::clock::rfc3339;
use crate::error::{Context, Result};
use crate::spec::LogLimits;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A log being written. A full disk loses lines and never stops the domain.
#[derive(Debug)]
pub(crate) struct LogWriter {
    path: PathBuf,
    limits: LogLimits,
    file: Option<File>,
    bytes: u64,
    /// Records that could not be written; said in the log as soon as it can be.
    lost: u64,
    /// The unfinished line of each stream.
    pending: [Vec<u8>; 2],
    out: Vec<u8>,
}

impl LogWriter {
    /// Opens the log for appending and makes its directory.
    pub fn open(path: &Path, limits: LogLimits) -> Result<Self> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).at("create", dir)?;
        }
        let (file, bytes) = open(path).at("open log", path)?;
        Ok(Self {
            path: path.to_owned(),
            limits,
            file: Some(file),
            bytes,
            lost: 0,
            pending: Default::default(),
            out: Vec::new(),
        })
    }

    /// Takes output of a stream as it comes.
    pub fn output(&mut self, stream: Stream, mut bytes: &[u8]) {
        let slot = usize::from(stream == Stream::Stderr);
        let mut pending = std::mem::take(&mut self.pending[slot]);
        while !bytes.is_empty() {
            let room = MAX_LINE_BYTES - pending.len();
            let window = &bytes[..bytes.len().min(room)];
            let (taken, complete) = match window.iter().position(|&b| b == b'\n') {
                Some(end) => (end + 1, true),
                None => (window.len(), false),
            };
            pending.extend_from_slice(&window[..taken - usize::from(complete)]);
            bytes = &bytes[taken..];
            if complete || pending.len() == MAX_LINE_BYTES {
                self.record(stream, !complete, &pending);
                pending.clear();
            }
        }
        self.pending[slot] = pending;
    }

    /// Ends unfinished lines: no more output comes.
    pub fn finish(&mut self) {
        for (slot, stream) in [Stream::Stdout, Stream::Stderr].into_iter().enumerate() {
            let rest = std::mem::take(&mut self.pending[slot]);
            if !rest.is_empty() {
                self.record(stream, false, &rest);
            }
        }
    }

    /// A remark of the monitor's own.
    pub fn remark(&mut self, text: &str) {
        for line in text.lines() {
            let cut = line.floor_char_boundary(MAX_LINE_BYTES);
            self.record(Stream::Monitor, false, &line.as_bytes()[..cut]);
        }
    }

    fn record(&mut self, stream: Stream, partial: bool, line: &[u8]) {
        let head = |out: &mut Vec<u8>, stream: Stream, tag: &str| {
            out.extend_from_slice(rfc3339(SystemTime::now()).as_bytes());
            out.extend_from_slice(format!(" {} {tag} ", stream.name()).as_bytes());
        };
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        if self.lost > 0 {
            head(&mut out, Stream::Monitor, "F");
            out.extend_from_slice(
                format!("{} records lost: the log could not be written\n", self.lost).as_bytes(),
            );
        }
        head(&mut out, stream, if partial { "P" } else { "F" });
        // A carriage return or NUL is content; only the line feed separates records.
        out.extend_from_slice(line);
        out.push(b'\n');
        match self.append(&out) {
            Ok(()) => self.lost = 0,
            Err(_) => self.lost += 1,
        }
        self.out = out;
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let size = bytes.len() as u64;
        if self.bytes > 0 && self.bytes + size > self.limits.max_bytes {
            self.rotate()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let (file, bytes) = open(&self.path)?;
                self.bytes = bytes;
                self.file.insert(file)
            }
        };
        let result = file.write_all(bytes);
        if result.is_err() {
            // Part of it may have been written: cut it off, so that what follows starts a record.
            let _ = file.set_len(self.bytes);
            return result;
        }
        self.bytes += size;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        let oldest = self.limits.files.clamp(1, MAX_FILES) - 1;
        match fs::remove_file(file(&self.path, oldest)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        for age in (0..oldest).rev() {
            match fs::rename(file(&self.path, age), file(&self.path, age + 1)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}
