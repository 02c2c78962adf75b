//! Where frames come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use v4l2::{Device, Picture};
use wire::camera::Camera;

/// Largest file of frames, in bytes: what a file system holds without trouble, and no number here
/// overflows with.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// Makes frames.
#[derive(Debug)]
pub(crate) enum Source {
    /// See [`v4l2::pattern`].
    Pattern,
    /// Raw frames, one behind the other.
    File { file: File, frames: u64 },
}

impl Source {
    /// Draws frame `number` of a stream into `into`.
    pub(crate) fn draw(
        &self,
        picture: Picture,
        number: u64,
        brightness: u8,
        into: &mut Vec<u8>,
    ) -> io::Result<()> {
        match self {
            Self::Pattern => {
                v4l2::pattern::draw(picture, number as u32, brightness, into);
                Ok(())
            }
            Self::File { file, frames } => {
                let bytes = picture.bytes();
                into.clear();
                into.resize(bytes as usize, 0);
                let index = number.checked_rem(*frames).unwrap_or(0);
                file.read_exact_at(into, index * u64::from(bytes))
            }
        }
    }
}

/// Makes a camera's device and source from its settings.
pub(crate) fn make(camera: &Camera) -> Result<(Device, Source), String> {
    let picture = Picture { format: camera.format, width: camera.width, height: camera.height };
    let Some(path) = &camera.file else {
        return Ok((Device::pattern(&camera.name, picture, camera.rate), Source::Pattern));
    };
    let fail = |what: String| format!("camera {}: the file of frames {path} {what}", camera.name);
    let file = File::open(path).map_err(|e| fail(format!("can't be opened in this domain: {e}")))?;
    let bytes = file.metadata().map_err(|e| fail(format!("can't be looked at: {e}")))?.len();
    let frame = u64::from(picture.bytes());
    if bytes == 0 || bytes % frame != 0 || bytes > FILE_BYTES_MAX {
        let (width, height) = (camera.width, camera.height);
        return Err(fail(format!(
            "has {bytes} bytes, which are no whole frames of {frame} bytes ({width}x{height}); correct `size` and `format`, or the file"
        )));
    }
    Ok((Device::fixed(&camera.name, picture, camera.rate), Source::File { file, frames: bytes / frame }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use wire::camera::Format;

    fn camera(file: Option<&str>) -> Camera {
        let file = file.map(str::to_owned);
        Camera { name: "front".into(), file, format: Format::Grey, width: 16, height: 16, rate: 30 }
    }

    #[test]
    fn frames_of_a_file_come_round_again() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for byte in [1, 2, 3] {
            file.write_all(&[byte; 256]).unwrap();
        }
        let (_, source) = make(&camera(file.path().to_str())).unwrap();
        let mut frame = Vec::new();
        for (number, byte) in [(0, 1), (1, 2), (2, 3), (3, 1), (u64::MAX, 1)] {
            let picture = Picture { format: Format::Grey, width: 16, height: 16 };
            source.draw(picture, number, 128, &mut frame).unwrap();
            assert_eq!(frame, vec![byte; 256], "{number}");
        }
    }

    #[test]
    fn a_file_of_something_else_is_refused_with_what_would_fit() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0; 257]).unwrap();
        let refused = make(&camera(file.path().to_str())).unwrap_err();
        assert!(refused.contains("257 bytes") && refused.contains("16x16"), "{refused}");
        assert!(make(&camera(Some("/nowhere"))).unwrap_err().contains("/nowhere"));
    }
}
