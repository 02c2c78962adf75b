//! Where the positions of the source that counts go.

use crate::desk::object;
use crate::hub::Hub;
use location::{Fix, sentences};
use service::Stream;

/// The streams of the service, and the clients of its ports. Clones lead to the same ones.
#[derive(Clone)]
pub(crate) struct Outputs {
    pub(crate) fixes: Stream,
    pub(crate) nmea: Stream,
    pub(crate) hub: Option<Hub>,
}

impl Outputs {
    /// Tells all of a position.
    pub(crate) fn tell(&self, source: &str, fix: Fix) {
        let records =
            [(&self.fixes, format!("{}\n", object(source, &fix))), (&self.nmea, sentences::sentences(&fix))];
        for (stream, record) in records {
            if let Err(error) = stream.publish(record) {
                tracing::warn!(%error, "a position is not published");
            }
        }
        if let Some(hub) = &self.hub {
            hub.push(source, fix);
        }
    }
}
