//! Cameras: the settings of the server of a service of kind `camera`. Their files speak V4L2
//! ([`crate::v4l2`]); described in `docs/spec/camera.md`.

use serde::{Deserialize, Serialize};

/// The kind of the service.
pub const KIND: &str = "camera";
/// The verb that opens cameras.
pub const WATCH: &str = "watch";
/// The file that lists the cameras, as a text.
pub const LIST: &str = "cameras";
/// The file that says, as JSON, what the caller's domain has open and what it has lost.
pub const STATE: &str = "state";

/// The admitted settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Its cameras.
    pub cameras: Vec<Camera>,
    /// Open files that one domain may have, of all of them.
    pub sessions_per_domain: u32,
}

/// One camera.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Camera {
    /// The name of its file.
    pub name: String,
    /// The file of raw frames, in the server's domain, that it shows; none: a test pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How the pixels lie.
    pub format: Format,
    /// Pixels of a line.
    pub width: u32,
    /// Lines.
    pub height: u32,
    /// Frames in a second.
    pub rate: u32,
}

/// How the pixels of a frame lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Y, U, Y, V for two pixels.
    Yuyv,
    /// A byte for each pixel.
    Grey,
}

impl Format {
    /// All there are, in the order in which V4L2 enumerates them.
    pub const ALL: [Self; 2] = [Self::Yuyv, Self::Grey];

    /// Its number in V4L2: four letters, little-endian.
    #[must_use]
    pub const fn fourcc(self) -> u32 {
        match self {
            Self::Yuyv => u32::from_le_bytes(*b"YUYV"),
            Self::Grey => u32::from_le_bytes(*b"GREY"),
        }
    }

    /// The format of a number of V4L2.
    #[must_use]
    pub fn from_fourcc(fourcc: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.fourcc() == fourcc)
    }

    /// Bytes of one pixel.
    #[must_use]
    pub const fn pixel_bytes(self) -> u32 {
        match self {
            Self::Yuyv => 2,
            Self::Grey => 1,
        }
    }

    /// Its name in V4L2.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Yuyv => "YUYV 4:2:2",
            Self::Grey => "8-bit Greyscale",
        }
    }
}
