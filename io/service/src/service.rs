//! A service: a name, a state, and files.

use crate::call::{Call, Reply};
use crate::engine::{Engine, SettingsFunction, Timer};
use crate::file::File;
use crate::folder::Folder;
use crate::stream::{Stream, StreamOptions};
use crate::wake::{Handle, Wake};
use rustix::io::Errno;
use serde_json::Value;
use session::{Control, ServeError, Server};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::service::{Behaviour, FileExport, OWN_FOLDER};

/// Most files of a service: any of them may be a folder, and a folder's id has a bound. What is
/// more belongs into a folder.
pub const MAX_FILES: usize = 255;
/// How long a program waits for the daemon of its node.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest name of a file, in bytes.
const MAX_NAME_BYTES: usize = wire::service::MAX_NAME_BYTES;

/// Why a service is not served, or not any more.
#[derive(Debug, Error)]
pub enum Error {
    /// A file can't be as it was declared.
    #[error("service {service}: {mistake}")]
    Declaration {
        /// Its name.
        service: String,
        /// The file, and what is wrong with it.
        mistake: String,
    },
    /// The kernel gave no eventfd.
    #[error("the service can't be waited for")]
    Wait(#[source] std::io::Error),
    /// The daemon refused it, or it is placed elsewhere now.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// A service of kind `program` with a state `S`, which all its functions are given. They are called
/// in one thread, one after another.
pub struct Service<S> {
    name: String,
    state: S,
    files: Vec<File<S>>,
    timers: Vec<Timer<S>>,
    settings: Option<SettingsFunction<S>>,
    wake: Arc<Wake>,
    mistake: Option<String>,
}

impl<S: 'static> Service<S> {
    /// A service of the name that the topology file has. Nothing is offered yet.
    ///
    /// # Errors
    /// [`Error::Wait`].
    pub fn new(name: &str, state: S) -> Result<Self, Error> {
        let wake = Arc::new(Wake::new().map_err(Error::Wait)?);
        Ok(Self {
            name: name.to_owned(),
            state,
            files: Vec::new(),
            timers: Vec::new(),
            settings: None,
            wake,
            mistake: None,
        })
    }

    /// A file that is read: `function` answers the whole text.
    pub fn text<R: Into<Reply>>(
        &mut self,
        name: &str,
        verb: &str,
        mut function: impl FnMut(&mut S, &mut Call<'_>) -> Result<R, Errno> + 'static,
    ) -> &mut File<S> {
        let file = self.add(name, verb, Behaviour::Text, 0o444);
        file.idempotent(true).read(move |state, call, _| function(state, call))
    }

    /// A file to which lines are written, each done or refused before write(2) returns.
    pub fn control<R: Into<Reply>>(
        &mut self,
        name: &str,
        verb: &str,
        function: impl FnMut(&mut S, &mut Call<'_>, &[u8]) -> Result<R, Errno> + 'static,
    ) -> &mut File<S> {
        self.asking(name, verb, Behaviour::Control, function)
    }

    /// A file on which each who opens it has a session: lines are asked and answered.
    pub fn session<R: Into<Reply>>(
        &mut self,
        name: &str,
        verb: &str,
        function: impl FnMut(&mut S, &mut Call<'_>, &[u8]) -> Result<R, Errno> + 'static,
    ) -> &mut File<S> {
        self.asking(name, verb, Behaviour::Session, function)
    }

    /// A file that behaves as a character device: give it [`File::read`], [`File::written`] and
    /// [`File::ioctl`].
    pub fn device(&mut self, name: &str, verb: &str) -> &mut File<S> {
        self.add(name, verb, Behaviour::Device, 0o666)
    }

    /// A file of records, each of which every reader gets once.
    pub fn stream(&mut self, name: &str, verb: &str, options: StreamOptions) -> Stream {
        let stream = Stream::new(options, Arc::clone(&self.wake));
        let file = self.add(name, verb, Behaviour::Stream, 0o444).idempotent(options.numbered);
        file.stream = Some(stream.clone());
        stream
    }

    /// The same, to which records are written as well; an errno is that of the writer's next write.
    pub fn exchange<R: Into<Reply>>(
        &mut self,
        name: &str,
        verb: &str,
        options: StreamOptions,
        mut function: impl FnMut(&mut S, &mut Call<'_>, &[u8]) -> Result<R, Errno> + 'static,
    ) -> Stream {
        let stream = self.stream(name, verb, options);
        if let Some(file) = self.files.last_mut() {
            file.mode(0o666).asked =
                Some(Box::new(move |s, call, record| function(s, call, record).map(Into::into)));
        }
        stream
    }

    /// A folder of which only `folder` knows what is in it. `change`: the verb to change that;
    /// none: nobody does. The name `"."` is the service's own folder.
    pub fn folder(
        &mut self,
        name: &str,
        verb: &str,
        change: Option<&str>,
        folder: impl Folder + 'static,
    ) -> &mut File<S> {
        let mode = if change.is_some() { 0o777 } else { 0o755 };
        let file = self.add(name, verb, Behaviour::Folder, mode).idempotent(true);
        file.export.change = change.map(str::to_owned);
        file.folder = Some(Box::new(folder));
        if let Some(mistake) = change.and_then(|verb| word("change", verb)) {
            self.wrong(name, &mistake);
        }
        let last = self.files.len() - 1;
        &mut self.files[last]
    }

    /// Calls `function` again and again, in the thread that serves. A round that was missed is not
    /// made up for.
    pub fn every(&mut self, period: Duration, function: impl FnMut(&mut S) + 'static) {
        let next = Instant::now() + period;
        self.timers.push(Timer {
            period: period.max(Duration::from_millis(1)),
            next,
            function: Box::new(function),
        });
    }

    /// Tells the settings of the topology file, before the first consumer comes and at each change.
    /// An error keeps the old ones, and ends a service that has none yet.
    pub fn on_settings(&mut self, function: impl FnMut(&mut S, &Value) -> Result<(), String> + 'static) {
        self.settings = Some(Box::new(function));
    }

    /// Speaks to the service from other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.wake))
    }

    /// Offers the service to the daemon of this domain and serves it, until [`Handle::stop`]. The
    /// daemon's death is survived.
    ///
    /// # Errors
    /// [`Error`].
    pub fn run(self) -> Result<(), Error> {
        self.offer()?.run()
    }

    /// Offers the service to the daemon of this domain. Nobody is served before [`Offered::run`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn offer(self) -> Result<Offered, Error> {
        self.check()?;
        let connected = Control::connect_when_there(&Control::path(), Some(Instant::now() + TIMEOUT));
        self.offer_at(connected.map_err(ServeError::from)?)
    }

    /// The service as a backend of [`session::serve`]: for a program that serves several.
    ///
    /// # Errors
    /// [`Error::Declaration`].
    pub fn backend(self) -> Result<Box<dyn session::Service>, Error> {
        self.check()?;
        Ok(Box::new(Engine::new(&self.name, self.state, self.files, self.timers, self.settings, self.wake)))
    }

    /// As [`Service::run`], at a control socket that is connected already.
    ///
    /// # Errors
    /// [`Error`].
    pub fn run_at(self, control: Control) -> Result<(), Error> {
        self.check()?;
        self.offer_at(control)?.run()
    }

    fn offer_at(self, control: Control) -> Result<Offered, Error> {
        let wake = Arc::clone(&self.wake);
        let engine = Engine::new(&self.name, self.state, self.files, self.timers, self.settings, self.wake);
        Ok(Offered { server: Server::offering(control, &self.name, Box::new(engine))?, wake })
    }

    fn check(&self) -> Result<(), Error> {
        let useless = self.files.iter().find_map(|file| {
            let name = file.export.name.as_deref().unwrap_or_default();
            let behaviour = file.export.behaviour;
            file.useless().map(|function| format!("file {name:?}: a {behaviour:?} has no `{function}`"))
        });
        match self.mistake.clone().or(useless) {
            Some(mistake) => Err(Error::Declaration { service: self.name.clone(), mistake }),
            None => Ok(()),
        }
    }

    fn asking<R: Into<Reply>>(
        &mut self,
        name: &str,
        verb: &str,
        behaviour: Behaviour,
        mut function: impl FnMut(&mut S, &mut Call<'_>, &[u8]) -> Result<R, Errno> + 'static,
    ) -> &mut File<S> {
        let file = self.add(name, verb, behaviour, 0o666);
        file.asked = Some(Box::new(move |state, call, line| function(state, call, line).map(Into::into)));
        file
    }

    fn add(&mut self, name: &str, verb: &str, behaviour: Behaviour, mode: u32) -> &mut File<S> {
        let own_folder = name == OWN_FOLDER && behaviour == Behaviour::Folder;
        let is_bad =
            name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(['/', '\0']) || name == "..";
        if !own_folder && (is_bad || name == OWN_FOLDER) {
            self.wrong(name, "a name has 1 to 255 bytes without / and NUL, and is neither . nor ..");
        }
        if self.files.iter().any(|file| file.export.name.as_deref() == Some(name)) {
            self.wrong(name, "there is a file of this name already");
        }
        if self.files.len() >= MAX_FILES {
            self.wrong(name, &format!("a service has at most {MAX_FILES} files; put more into a folder"));
        }
        if let Some(mistake) = word("verb", verb) {
            self.wrong(name, &mistake);
        }
        let export = FileExport {
            id: u32::try_from(self.files.len()).unwrap_or(u32::MAX),
            name: Some(name.to_owned()),
            mode,
            behaviour,
            idempotent: false,
            verb: verb.to_owned(),
            change: None,
        };
        self.files.push(File::new(export));
        let last = self.files.len() - 1;
        &mut self.files[last]
    }

    /// Remembers the first mistake, which [`Service::run`] tells.
    fn wrong(&mut self, file: &str, why: &str) {
        self.mistake.get_or_insert_with(|| format!("file {file:?}: {why}"));
    }
}

/// A service that the daemon knows, and that is not served yet. Dropped, it is withdrawn.
pub struct Offered {
    server: Server<'static>,
    wake: Arc<Wake>,
}

impl Offered {
    /// Serves it, until [`Handle::stop`]. The daemon's death is survived.
    ///
    /// # Errors
    /// [`Error`].
    pub fn run(mut self) -> Result<(), Error> {
        Ok(self.server.run(Some(self.wake.stop.as_fd()))?)
    }
}

/// Why this is no word of a topology file.
fn word(what: &str, word: &str) -> Option<String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_word = (1..=63).contains(&word.len())
        && word.bytes().all(inner)
        && !word.starts_with('-')
        && !word.ends_with('-');
    (!is_word)
        .then(|| format!("the {what} {word:?} has to be of small letters, digits and hyphens, at most 63"))
}
