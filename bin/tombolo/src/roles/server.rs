//! The server: the backends of the services that the topology places in this domain.

use super::{log, said};
use session::{Control, Service};
use wire::control::ServedService;

/// Serves until the domain ends.
pub fn run() -> Result<(), String> {
    log();
    let control = Control::connect_when_there(&Control::path(), None).map_err(|e| said(&e))?;
    session::serve(control, Box::new(make), None).map_err(|e| said(&e))
}

fn make(served: &ServedService) -> Result<Box<dyn Service>, String> {
    match served.kind.as_str() {
        wire::directory::KIND => directory::service(&served.settings),
        other => Err(format!("this version knows no service of kind {other:?}")),
    }
}
