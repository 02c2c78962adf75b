//! The rules of locations.

use super::Context;
use crate::bounds::{ACCURACY_DEFAULT, HOLD_MS_DEFAULT, LOCATION_TIMEOUT_MS_DEFAULT, RANGE_ERROR_DEFAULT};
use crate::diagnostic::Code;
use crate::file::{LocationForm, SourceForm};
use crate::model::{LocationKind, LocationSettings, LocationSource};
use crate::read::{At, Field};

/// The word that means no source in particular, in the file `ctl`.
const AUTO: &str = "auto";

/// The settings of a location service.
pub(super) fn settings(form: &LocationForm, cx: &mut Context<'_, '_>) -> LocationSettings {
    let mut sources: Vec<LocationSource> = Vec::new();
    for item in form.sources.value().map_or(&[][..], |items| items.0.as_slice()) {
        let Some(source) = source(item, cx) else { continue };
        if let Field::Given(name) = &item.value.name {
            if sources.iter().any(|other| other.name == source.name) {
                let message = format!("there is a source called `{}` already", source.name);
                cx.out.error(Code::Duplicate, &name.span, message).help("give each source a name of its own");
            }
            if source.name.as_str() == AUTO {
                cx.out
                    .error(Code::Conflict, &name.span, format!("`{AUTO}` means no source in particular"))
                    .help("give the source another name");
            }
        }
        sources.push(source);
    }
    let port = |field: &Field<crate::scalar::Count<1, 65_535>>| {
        field.value().and_then(|count| u16::try_from(count.0).ok())
    };
    let (gpsd_port, nmea_port) = (port(&form.gpsd), port(&form.nmea));
    if let (Some(port), Field::Given(at)) = (gpsd_port.filter(|_| gpsd_port == nmea_port), &form.nmea) {
        cx.out
            .error(Code::Duplicate, &at.span, format!("gpsd's protocol is spoken at port {port} already"))
            .help("sentences of NMEA 0183 have port 10110 by custom");
    }
    LocationSettings {
        sources,
        accuracy_m: form.accuracy.value().map_or(ACCURACY_DEFAULT, |count| count.0),
        hold_ms: form.hold.value().map_or(HOLD_MS_DEFAULT, |time| time.0),
        timeout_ms: form.timeout.value().map_or(LOCATION_TIMEOUT_MS_DEFAULT, |time| time.0),
        gpsd_port,
        nmea_port,
    }
}

fn source(item: &At<SourceForm>, cx: &mut Context<'_, '_>) -> Option<LocationSource> {
    let form = &item.value;
    let kind = *form.kind.value()?;
    match (kind, &form.survey) {
        (LocationKind::Signals, Field::Absent) => {
            cx.out
                .error(Code::MissingKey, &item.span, "signals say a place only beside a survey of the floor")
                .help("name the survey's file: survey = \"/maps/floor.json\"");
        }
        (LocationKind::Nmea, Field::Given(at)) => {
            cx.out
                .error(Code::Conflict, &at.span, "a receiver of satellites needs no survey")
                .help("leave `survey` out, or say kind = \"signals\"");
        }
        _ => {}
    }
    if let (LocationKind::Signals, Field::Given(at)) = (kind, &form.range_error) {
        cx.out
            .error(Code::Conflict, &at.span, "signals have no distances to satellites")
            .help("leave `range_error` out, or say kind = \"nmea\"");
    }
    Some(LocationSource {
        name: form.name.value()?.clone(),
        kind,
        path: form.path.value()?.0.clone(),
        survey: form.survey.value().map(|path| path.0.clone()),
        range_error_m: form.range_error.value().map_or(RANGE_ERROR_DEFAULT, |count| count.0),
        power_mw: form.power.value().map_or(0, |count| count.0),
    })
}
