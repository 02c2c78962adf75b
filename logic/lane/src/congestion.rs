//! How many frames may be on their way: as with TCP (RFC 5681), so that others on the same switch
//! have their share.

/// Bytes that may be on their way at first: no switch drops that.
const FIRST_BYTES: usize = 128 << 10;
/// Frames that may be on their way at first, at least and at most.
const FIRST_FRAMES: [u64; 2] = [10, 64];
/// Frames that may always be on their way.
const LEAST_FRAMES: u64 = 4;
/// After so long without anything on its way the network is another one.
const STALE_US: u64 = 1_000_000;

/// The window of congestion, in frames.
#[derive(Debug, Clone)]
pub(crate) struct Congestion {
    first: u64,
    most: u64,
    window: u64,
    /// From here on it grows by one frame each round trip.
    threshold: u64,
    /// Frames that came since it grew.
    counted: u64,
    /// Losses of what was sent before this are one loss.
    recovery: u64,
    quiet_since_us: Option<u64>,
}

impl Congestion {
    pub fn new(frame_bytes: usize, most: u64) -> Self {
        let first = u64::try_from(FIRST_BYTES / frame_bytes.max(1)).unwrap_or(u64::MAX);
        let first = first.clamp(FIRST_FRAMES[0], FIRST_FRAMES[1]);
        let window = first.min(most);
        Self { first, most, window, threshold: u64::MAX, counted: 0, recovery: 0, quiet_since_us: None }
    }

    pub fn window(&self) -> u64 {
        self.window
    }

    /// So many frames have come for sure. `used`: so many were on their way, of those that might.
    pub fn came(&mut self, frames: u64, used: u64) {
        // Who does not use the window learns nothing about it.
        if used.saturating_mul(2) < self.window {
            return;
        }
        if self.window < self.threshold {
            self.window = self.window.saturating_add(frames).min(self.most);
            return;
        }
        self.counted += frames;
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window = (self.window + 1).min(self.most);
        }
    }

    /// A frame that was the `order`th to be sent is lost; so many were sent.
    pub fn lost(&mut self, order: u64, sent: u64) {
        if order < self.recovery {
            return;
        }
        self.recovery = sent;
        self.window = (self.window * 7 / 10).max(LEAST_FRAMES);
        (self.threshold, self.counted) = (self.window, 0);
    }

    /// Nothing was heard for several waits: the network is full, or gone.
    pub fn silent(&mut self, sent: u64) {
        self.threshold = (self.window / 2).max(LEAST_FRAMES);
        (self.window, self.counted, self.recovery) = (LEAST_FRAMES, 0, sent);
    }

    /// Whether something is on its way, from now on.
    pub fn on_its_way(&mut self, now_us: u64, something: bool) {
        match (something, self.quiet_since_us) {
            (false, None) => self.quiet_since_us = Some(now_us),
            (true, Some(since)) => {
                self.quiet_since_us = None;
                if now_us.saturating_sub(since) > STALE_US {
                    self.window = self.window.min(self.first);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_quickly_then_slowly_and_shrinks_once_for_each_loss() {
        let mut congestion = Congestion::new(1500, 2048);
        assert_eq!(congestion.window(), 64);
        congestion.came(64, 64);
        assert_eq!(congestion.window(), 128);
        congestion.lost(100, 128);
        congestion.lost(101, 130);
        assert_eq!(congestion.window(), 89, "what was lost of one round trip is one loss");
        congestion.came(89, 89);
        assert_eq!(congestion.window(), 90);
        for order in 0..100 {
            congestion.lost(1000 * (order + 1), 1000 * (order + 1) + 1);
        }
        assert_eq!(congestion.window(), LEAST_FRAMES);
    }

    #[test]
    fn who_sends_little_is_not_allowed_more() {
        let mut congestion = Congestion::new(1500, 2048);
        for _ in 0..1000 {
            congestion.came(1, 1);
        }
        assert_eq!(congestion.window(), 64);
    }

    #[test]
    fn after_a_pause_it_begins_again() {
        let mut congestion = Congestion::new(1500, 2048);
        congestion.came(1000, 64);
        congestion.on_its_way(0, true);
        congestion.on_its_way(10, false);
        congestion.on_its_way(20, true);
        assert_eq!(congestion.window(), 1064);
        congestion.on_its_way(30, false);
        congestion.on_its_way(31 + STALE_US, true);
        assert_eq!(congestion.window(), 64);
    }
}
