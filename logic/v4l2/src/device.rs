//! The abilities of a camera.

use wire::camera::Format;

use crate::format::{Interval, Picture};

/// Sizes that a test pattern has beside the one that the file says, in the order in which V4L2
/// enumerates them.
const SIZES: [(u32, u32); 8] =
    [(48, 32), (96, 64), (160, 128), (320, 240), (640, 480), (800, 600), (1280, 720), (1920, 1080)];
/// Rates that a test pattern has beside the one that the file says, in frames per second.
const RATES: [u32; 9] = [1, 5, 10, 15, 25, 30, 60, 120, 240];

/// One camera, as all who open it see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    formats: Vec<Format>,
    sizes: Vec<(u32, u32)>,
    rates: Vec<u32>,
    usual: Picture,
    usual_rate: u32,
}

impl Device {
    /// One that shows whatever is asked for; `usual` to whoever asks for nothing.
    #[must_use]
    pub fn pattern(name: &str, usual: Picture, rate: u32) -> Self {
        let mut sizes = SIZES.to_vec();
        if !sizes.contains(&(usual.width, usual.height)) {
            sizes.push((usual.width, usual.height));
        }
        let mut rates = RATES.to_vec();
        if !rates.contains(&rate) {
            rates.push(rate);
        }
        Self { name: name.to_owned(), formats: Format::ALL.to_vec(), sizes, rates, usual, usual_rate: rate }
    }

    /// One that shows one kind of picture only.
    #[must_use]
    pub fn fixed(name: &str, picture: Picture, rate: u32) -> Self {
        Self {
            name: name.to_owned(),
            formats: vec![picture.format],
            sizes: vec![(picture.width, picture.height)],
            rates: vec![rate],
            usual: picture,
            usual_rate: rate,
        }
    }

    /// Returns the picture and the interval for a program that asks for none.
    #[must_use]
    pub fn usual(&self) -> (Picture, Interval) {
        (self.usual, Interval::of_rate(self.usual_rate))
    }

    pub(crate) fn format(&self, index: u32) -> Option<Format> {
        self.formats.get(index as usize).copied()
    }

    pub(crate) fn has_format(&self, fourcc: u32) -> Option<Format> {
        Format::from_fourcc(fourcc).filter(|format| self.formats.contains(format))
    }

    pub(crate) fn size(&self, index: u32) -> Option<(u32, u32)> {
        self.sizes.get(index as usize).copied()
    }

    pub(crate) fn rate(&self, index: u32) -> Option<u32> {
        self.rates.get(index as usize).copied()
    }

    /// Whether it shows such pictures.
    #[must_use]
    pub fn shows(&self, picture: Picture) -> bool {
        self.formats.contains(&picture.format) && self.sizes.contains(&(picture.width, picture.height))
    }

    /// Whether it has this interval.
    #[must_use]
    pub fn has_interval(&self, interval: Interval) -> bool {
        interval.numerator == 1 && self.rates.contains(&interval.denominator)
    }

    /// The picture that is nearest to what was asked for: V4L2 refuses no format, but says what it
    /// takes instead.
    pub(crate) fn nearest(&self, fourcc: u32, width: u32, height: u32) -> Picture {
        let format = self.has_format(fourcc).unwrap_or(self.usual.format);
        let distance = |&(w, h): &(u32, u32)| u64::from(w.abs_diff(width)) + u64::from(h.abs_diff(height));
        let usual = (self.usual.width, self.usual.height);
        let (width, height) = self.sizes.iter().copied().min_by_key(distance).unwrap_or(usual);
        Picture { format, width, height }
    }

    /// The interval that is nearest to what was asked for; 0 asks for the usual one.
    pub(crate) fn nearest_interval(&self, numerator: u32, denominator: u32) -> Interval {
        if numerator == 0 || denominator == 0 {
            return Interval::of_rate(self.usual_rate);
        }
        // Rates are compared in thousandths, which tells 29.97 from 30.
        let wanted = u64::from(denominator) * 1000 / u64::from(numerator);
        let distance = |rate: &u32| (u64::from(*rate) * 1000).abs_diff(wanted);
        Interval::of_rate(self.rates.iter().copied().min_by_key(distance).unwrap_or(self.usual_rate))
    }
}
