//! The calls of `include/tombolo/service.h`, each a few lines: find the service, do it.
//!
//! A service that is started has a thread, in which the crate `service` serves it. Each call of a
//! consumer is put into a queue, from which the program takes it, and is answered later, by
//! whatever thread of the program.

use crate::failure::{self, failure};
use crate::library::Library;
use crate::service_calls::Queue;
use crate::serving::{Declaration, One, Phase, serve};
use crate::slot::{lock, remember_process};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, mpsc};
use sys::channel_abi::{Failure, Handle, Outcome, Patience};
use sys::service_abi::{Call, Declared, Services};
use wire::service::{MAX_ANSWER_BYTES, MAX_RECORD_BYTES};

/// Largest errno of the kernel's.
const MAX_ERRNO: i32 = 4095;

fn not_started() -> Failure {
    failure(Errno::NOTCONN, "the service is not started: call tombolo_service_start() first")
}

fn of_a_parent() -> Failure {
    failure(Errno::STALE, "this service is the parent's of this process, which serves it")
}

fn text_of(text: &CStr, what: &str) -> Outcome<String> {
    let text = text.to_str().map_err(|_| failure(Errno::INVAL, format!("{what} is no text in UTF-8")))?;
    Ok(text.to_owned())
}

impl Library {
    fn service(&self, service: Handle) -> Outcome<Arc<One>> {
        let found = lock(&self.services.0)?.all.get(&service).cloned();
        let one = found.ok_or_else(|| failure::closed(service))?;
        if one.process == std::process::id() { Ok(one) } else { Err(of_a_parent()) }
    }
}

impl Services for Library {
    fn new_service(&self, name: &CStr) -> Outcome<Handle> {
        self.begin();
        remember_process();
        let queue = Queue::new()?;
        let one = One {
            name: text_of(name, "the service's name")?,
            process: std::process::id(),
            phase: Mutex::new(Phase::Declaring(Vec::new())),
            queue: Arc::new(queue),
        };
        let mut services = lock(&self.services.0)?;
        services.last += 1;
        let handle = services.last;
        services.all.insert(handle, Arc::new(one));
        Ok(handle)
    }

    fn declare(&self, service: Handle, name: &CStr, verb: &CStr, declared: Declared) -> Outcome<i32> {
        let one = self.service(service)?;
        let (name, verb) = (text_of(name, "the file's name")?, text_of(verb, "the verb")?);
        match &mut *lock(&one.phase)? {
            Phase::Declaring(files) => {
                files.push(Declaration { name, verb, declared });
                i32::try_from(files.len() - 1).map_err(|_| failure(Errno::INVAL, "these are too many files"))
            }
            _ => Err(failure(Errno::BUSY, "the service is started: declare its files before")),
        }
    }

    fn start(&self, service: Handle) -> Outcome<()> {
        let one = self.service(service)?;
        let mut phase = lock(&one.phase)?;
        let Phase::Declaring(files) = &*phase else {
            return Err(failure(Errno::ALREADY, "the service is started already"));
        };
        let (files, name, queue) = (files.clone(), one.name.clone(), Arc::clone(&one.queue));
        let (begun, told) = mpsc::sync_channel(1);
        let thread = sys::signals::without_signals(|| {
            let thread = std::thread::Builder::new().name("tombolo-service".to_owned());
            thread.spawn(move || serve(&name, files, &queue, &begun))
        });
        let thread = thread.map_err(|error| failure::system("start a service's thread", &error))?;
        let gone = || failure(Errno::NOTRECOVERABLE, "a defect of libtombolo ended the service's thread");
        let (streams, stop) = told.recv().unwrap_or_else(|_| Err(gone()))?;
        *phase = Phase::Started { streams, stop, thread };
        Ok(())
    }

    fn next(&self, service: Handle, patience: Patience) -> Outcome<Call> {
        let one = self.service(service)?;
        if let Phase::Declaring(_) = &*lock(&one.phase)? {
            return Err(not_started());
        }
        one.queue.next(patience)
    }

    fn answer(&self, service: Handle, id: u64, answer: Result<&[u8], i32>) -> Outcome<()> {
        let one = self.service(service)?;
        let answer = match answer {
            Ok(bytes) if bytes.len() > MAX_ANSWER_BYTES => {
                let text =
                    format!("an answer has at most {MAX_ANSWER_BYTES} bytes, and this one {}", bytes.len());
                return Err(failure(Errno::MSGSIZE, text));
            }
            Ok(bytes) => Ok(bytes.to_vec()),
            Err(errno) if (1..=MAX_ERRNO).contains(&errno) => Err(Errno::from_raw_os_error(errno)),
            Err(other) => return Err(failure(Errno::INVAL, format!("{other} is no errno"))),
        };
        one.queue.answer(id, answer)
    }

    fn is_cancelled(&self, service: Handle, id: u64) -> Outcome<bool> {
        let one = self.service(service)?;
        Ok(one.queue.is_cancelled(id))
    }

    fn publish(&self, service: Handle, file: i32, record: &[u8]) -> Outcome<()> {
        let one = self.service(service)?;
        let stream = match &*lock(&one.phase)? {
            Phase::Started { streams, .. } => {
                usize::try_from(file).ok().and_then(|file| streams.get(file)?.clone())
            }
            _ => return Err(not_started()),
        };
        let stream = stream.ok_or_else(|| failure(Errno::INVAL, format!("file {file} is no stream")))?;
        stream.publish(record).map_err(|errno| {
            failure(
                errno,
                format!("a record has at most {MAX_RECORD_BYTES} bytes, and this one {}", record.len()),
            )
        })
    }

    fn descriptor(&self, service: Handle) -> Outcome<RawFd> {
        Ok(self.service(service)?.queue.descriptor())
    }

    fn close_service(&self, service: Handle) -> Outcome<()> {
        let removed = lock(&self.services.0)?.all.remove(&service);
        let one = removed.ok_or_else(|| failure::closed(service))?;
        if one.process != std::process::id() {
            // It lives on in the parent, with which this process shares what would stop it.
            std::mem::forget(one);
            return Ok(());
        }
        let phase = std::mem::replace(&mut *lock(&one.phase)?, Phase::Closed);
        one.queue.end(failure(Errno::SHUTDOWN, "the service is closed"));
        if let Phase::Started { stop, thread, .. } = phase {
            stop.stop();
            let ended = thread.join();
            ended.map_err(|_| {
                failure(Errno::NOTRECOVERABLE, "a defect of libtombolo ended the service's thread")
            })?;
        }
        one.queue.clear();
        Ok(())
    }
}
