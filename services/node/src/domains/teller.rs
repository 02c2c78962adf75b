//! Progress reports of a change, and their receivers.

use admin::Progress;
use tokio::sync::mpsc;

/// Where long work says how far it is. The work goes on, whether anybody reads or not.
#[derive(Debug, Clone)]
pub(crate) struct Teller(mpsc::Sender<Progress>);

impl Teller {
    pub(crate) fn new(lines: mpsc::Sender<Progress>) -> Self {
        Self(lines)
    }

    /// For work that nobody reads about.
    pub(crate) fn nobody() -> Self {
        Self(mpsc::channel(1).0)
    }

    pub(crate) async fn tell(&self, progress: Progress) {
        // A reader that went away does not stop the work.
        let _gone = self.0.send(progress).await;
    }
}
