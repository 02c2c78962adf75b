//! The files of a service, and the functions that they are made of.

use crate::call::{Call, Reply};
use crate::folder::Folder;
use crate::stream::Stream;
use rustix::io::Errno;
use std::time::Duration;
use wire::service::{
    Behaviour, FileExport, VERSION_MIN, VERSION_WITH_LINKS, VERSION_WITH_LOCKS, VERSION_WITH_XATTRS,
};

type Opened<S> = Box<dyn FnMut(&mut S, &mut Call<'_>) -> Result<(), Errno>>;
type Closed<S> = Box<dyn FnMut(&mut S, &mut Call<'_>)>;
pub(crate) type Asked<S> = Box<dyn FnMut(&mut S, &mut Call<'_>, &[u8]) -> Result<Reply, Errno>>;
type Read<S> = Box<dyn FnMut(&mut S, &mut Call<'_>, usize) -> Result<Reply, Errno>>;
type Written<S> = Box<dyn FnMut(&mut S, &mut Call<'_>, &[u8]) -> Result<usize, Errno>>;
type Ioctl<S> = Box<dyn FnMut(&mut S, &mut Call<'_>, u32, &[u8]) -> Result<Reply, Errno>>;

/// A file of a service. The functions that a file of this behaviour does not have are never called,
/// and [`crate::Service::run`] says so.
pub struct File<S> {
    pub(crate) export: FileExport,
    /// The oldest version of the protocol that has what it uses beside its behaviour.
    pub(crate) version: u32,
    /// Whether files below it can be locked: for so long after the start of the service only by
    /// who had the lock before.
    pub(crate) locks: Option<Duration>,
    pub(crate) stream: Option<Stream>,
    pub(crate) folder: Option<Box<dyn Folder>>,
    pub(crate) opened: Option<Opened<S>>,
    pub(crate) closed: Option<Closed<S>>,
    /// Lines of sessions and controls, records of streams.
    pub(crate) asked: Option<Asked<S>>,
    /// Texts, controls and devices that are read.
    pub(crate) read: Option<Read<S>>,
    pub(crate) written: Option<Written<S>>,
    pub(crate) ioctl: Option<Ioctl<S>>,
}

impl<S> File<S> {
    pub(crate) fn new(export: FileExport) -> Self {
        Self {
            export,
            version: VERSION_MIN,
            locks: None,
            stream: None,
            folder: None,
            opened: None,
            closed: None,
            asked: None,
            read: None,
            written: None,
            ioctl: None,
        }
    }

    /// Its permission bits.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.export.mode = mode;
        self
    }

    /// Nodes below this folder may be symbolic links, and [`Folder::room`] is asked. Consumers that
    /// are older than that do not get the service.
    pub fn with_links(&mut self) -> &mut Self {
        self.version = self.version.max(VERSION_WITH_LINKS);
        self
    }

    /// Nodes below this folder may have extended attributes: [`Folder::xattr`] and what follows it
    /// there are asked. Consumers that are older than that do not get the service.
    pub fn with_xattrs(&mut self) -> &mut Self {
        self.version = self.version.max(VERSION_WITH_XATTRS);
        self
    }

    /// Files below this folder can be locked, by fcntl(2) and flock(2), between all domains that
    /// see them. `grace`: for so long after the start of the service, locks are granted only to
    /// those who had them at the service before; zero where there was none. Consumers that are
    /// older than that do not get the service.
    pub fn with_locks(&mut self, grace: Duration) -> &mut Self {
        self.version = self.version.max(VERSION_WITH_LOCKS);
        self.locks = Some(grace);
        self
    }

    /// Whether what was not answered when this program died is asked again at the next one; else
    /// the caller gets `ECONNRESET`.
    pub fn idempotent(&mut self, idempotent: bool) -> &mut Self {
        self.export.idempotent = idempotent;
        self
    }

    /// Calls this when a session or a device is opened. An errno refuses it.
    pub fn opened(
        &mut self,
        function: impl FnMut(&mut S, &mut Call<'_>) -> Result<(), Errno> + 'static,
    ) -> &mut Self {
        self.opened = Some(Box::new(function));
        self
    }

    /// Calls this when a session or a device is over, however that came.
    pub fn closed(&mut self, function: impl FnMut(&mut S, &mut Call<'_>) + 'static) -> &mut Self {
        self.closed = Some(Box::new(function));
        self
    }

    /// Answers who reads a control (without it, a control is empty), or a device: the most bytes
    /// that the caller takes.
    pub fn read<R: Into<Reply>>(
        &mut self,
        mut function: impl FnMut(&mut S, &mut Call<'_>, usize) -> Result<R, Errno> + 'static,
    ) -> &mut Self {
        self.read = Some(Box::new(move |state, call, size| function(state, call, size).map(Into::into)));
        self
    }

    /// Takes what is written to a device, and says how many bytes it took. `EAGAIN` where it can't
    /// now: say with [`Call::ready`] when.
    pub fn written(
        &mut self,
        function: impl FnMut(&mut S, &mut Call<'_>, &[u8]) -> Result<usize, Errno> + 'static,
    ) -> &mut Self {
        self.written = Some(Box::new(function));
        self
    }

    /// Answers an ioctl(2) of a session or a device: its number, and its data. Without it:
    /// `ENOTTY`.
    pub fn ioctl<R: Into<Reply>>(
        &mut self,
        mut function: impl FnMut(&mut S, &mut Call<'_>, u32, &[u8]) -> Result<R, Errno> + 'static,
    ) -> &mut Self {
        self.ioctl = Some(Box::new(move |state, call, number, data| {
            function(state, call, number, data).map(Into::into)
        }));
        self
    }

    /// The function that it has, and that nobody would ever call.
    pub(crate) fn useless(&self) -> Option<&'static str> {
        let is = |behaviours: &[Behaviour]| behaviours.contains(&self.export.behaviour);
        let has_sessions = is(&[Behaviour::Session, Behaviour::Device]);
        let functions = [
            ("opened", self.opened.is_some(), has_sessions),
            ("closed", self.closed.is_some(), has_sessions),
            ("ioctl", self.ioctl.is_some(), has_sessions),
            ("read", self.read.is_some(), is(&[Behaviour::Text, Behaviour::Control, Behaviour::Device])),
            ("written", self.written.is_some(), is(&[Behaviour::Device])),
        ];
        functions.into_iter().find_map(|(name, has, may)| (has && !may).then_some(name))
    }
}
