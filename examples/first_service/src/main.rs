//! A thermometer: a text, a control, and a stream.

use service::{Errno, Error, Service, StreamOptions};
use std::time::Duration;

fn main() -> Result<(), Error> {
    let mut thermometer = Service::new("thermometer", 20.0_f64)?;
    let samples = thermometer.stream("samples", "read", StreamOptions::default());

    thermometer.text("reading", "read", |degrees, _call| Ok(format!("{degrees:.1}\n")));

    thermometer.control("ctl", "calibrate", |degrees, _call, line| {
        let text = str::from_utf8(line).map_err(|_| Errno::INVAL)?;
        *degrees = text.parse().map_err(|_| Errno::INVAL)?;
        Ok(())
    });

    thermometer.every(Duration::from_millis(100), move |degrees| {
        samples.publish(format!("{degrees:.1}\n")).expect("a short record");
    });

    thermometer.run()
}
