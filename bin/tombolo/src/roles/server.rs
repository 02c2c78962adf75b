//! The server: the backends of the services that the topology places in this domain.

use super::{log, said};
use session::{Control, Service};
use std::os::fd::AsFd;
use std::path::PathBuf;
use sys::signals::SignalDescriptor;
use wire::control::ServedService;

/// Signals that ask for an end. As process 1 of a container it would be deaf to them otherwise.
const STOP_SIGNALS: [i32; 2] =
    [rustix::process::Signal::TERM.as_raw(), rustix::process::Signal::INT.as_raw()];

/// Serves until it is asked to end.
pub fn run() -> Result<(), String> {
    log();
    let stop = SignalDescriptor::block(&STOP_SIGNALS).map_err(|e| format!("can't take signals: {e}"))?;
    let control = Control::connect_when_there(&Control::path(), None).map_err(|e| said(&e))?;
    session::serve(control, Box::new(make), Some(stop.as_fd())).map_err(|e| said(&e))
}

fn make(served: &ServedService) -> Result<Box<dyn Service>, String> {
    match served.kind.as_str() {
        wire::directory::KIND => directory::service(&served.settings),
        wire::coordination::KIND => coordinator::service(served, &Control::path()),
        wire::events::KIND => {
            let kept = std::env::var_os(wire::control::KEPT_VARIABLE).map(PathBuf::from);
            events::service(&served.settings, kept.map(|folder| folder.join(&served.name)))
        }
        wire::camera::KIND => camera::service(&served.settings),
        wire::location::KIND => locator::service(&served.name, &served.settings),
        wire::files::KIND => {
            let folder = std::env::var_os(wire::files::STORE_VARIABLE).map(PathBuf::from);
            files::service(&served.name, &served.settings, folder.as_deref())
        }
        other => Err(format!("this version knows no service of kind {other:?}")),
    }
}
