//! The files of the service.

use crate::desk::Desk;
use crate::hub::Hub;
use crate::outputs::Outputs;
use crate::source::Feed;
use serde_json::Value;
use service::{Errno, Service, StreamOptions};
use wire::location::{CHOOSE, CONTROL, FIXES, KIND, NMEA, POSITION, READ, STATE, Settings};

/// Makes the service from its admitted settings, and starts to read its sources.
///
/// # Errors
/// The fault in the settings: a survey that does not fit, a port that is taken.
pub fn service(name: &str, settings: &Value) -> Result<Box<dyn session::Service>, String> {
    let settings: Settings = serde_json::from_value(settings.clone())
        .map_err(|error| format!("the settings of a service of kind {KIND} are not understood: {error}"))?;
    let feeds: Vec<Feed> = settings
        .sources
        .iter()
        .enumerate()
        .map(|(index, source)| Feed::new(index, source))
        .collect::<Result<_, _>>()?;
    let desk = Desk::new(&settings);
    let ports = [settings.gpsd_port, settings.nmea_port];
    let hub = ports.iter().any(Option::is_some).then(|| Hub::start(ports, desk.clone())).transpose()?;

    let said = |error: service::Error| error.to_string();
    let mut files = Service::new(name, desk.clone()).map_err(said)?;
    let fixes = files.stream(FIXES, READ, StreamOptions::default());
    let nmea = files.stream(NMEA, READ, StreamOptions::default());
    // Where no source has a recent position the file says so, in the kernel's words: no data
    // available.
    files.text(POSITION, READ, |desk, _call| {
        desk.position().map(|value| format!("{value}\n")).ok_or(Errno::NODATA)
    });
    files.text(STATE, READ, |desk, _call| Ok(format!("{}\n", desk.state())));
    files.control(CONTROL, CHOOSE, |desk, _call, line| {
        let line = str::from_utf8(line).map_err(|_| Errno::INVAL)?;
        desk.choose(line).map_err(|_| Errno::INVAL)
    });
    let before = settings;
    files.on_settings(move |desk, value| {
        let new: Settings = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
        if (Settings { accuracy_m: before.accuracy_m, ..new.clone() }) != before {
            return Err(
                "sources, times and ports are those of the server's start: restart its domain to change them"
                    .into(),
            );
        }
        desk.want(f64::from(new.accuracy_m));
        Ok(())
    });
    let outputs = Outputs { fixes, nmea, hub };
    for feed in feeds {
        feed.start(desk.clone(), outputs.clone())?;
    }
    files.backend().map_err(said)
}
