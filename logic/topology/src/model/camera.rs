//! Cameras, admitted.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// The settings of a camera service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CameraSettings {
    /// Its cameras, each with a name of its own; at least one.
    pub cameras: Vec<Camera>,
    /// Open files that one domain may have, of all of them.
    pub sessions_per_domain: u32,
}

/// One camera.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Camera {
    /// The name of its file.
    pub name: Name,
    /// The file of raw frames, in the server's domain, that it shows; none: a test pattern.
    pub file: Option<PathBuf>,
    /// How the pixels of the file lie; of a test pattern, what a program gets that asks for
    /// nothing.
    pub format: FrameFormat,
    /// The same for the pixels of a line.
    pub width: u32,
    /// The same for the lines.
    pub height: u32,
    /// The same for frames in a second.
    pub rate: u32,
}

/// How the pixels of a frame lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameFormat {
    /// Two bytes for each pixel: Y, U, Y, V (`V4L2_PIX_FMT_YUYV`).
    Yuyv,
    /// A byte for each pixel (`V4L2_PIX_FMT_GREY`).
    Grey,
}

impl FrameFormat {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yuyv => "yuyv",
            Self::Grey => "grey",
        }
    }
}
