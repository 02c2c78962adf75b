//! Video4Linux 2, as far as cameras speak it: numbers of ioctls, and the structures that they
//! carry, of 64-bit Linux (`linux/videodev2.h`). Restricted ioctls of FUSE carry them flat; none of
//! these has a pointer that is followed.
//!
//! A structure is read from bytes of exactly its length, and written back with what its ioctl
//! changes; what is reserved is 0.

mod fields;

pub use fields::{Bytes, Fields};

/// Lengths of the structures, in bytes.
pub mod length {
    /// `struct v4l2_capability`.
    pub const CAPABILITY: usize = 104;
    /// `struct v4l2_fmtdesc`.
    pub const FORMAT_DESCRIPTION: usize = 64;
    /// `struct v4l2_format`.
    pub const FORMAT: usize = 208;
    /// `struct v4l2_requestbuffers`.
    pub const REQUEST_BUFFERS: usize = 20;
    /// `struct v4l2_buffer`.
    pub const BUFFER: usize = 88;
    /// `struct v4l2_streamparm`.
    pub const STREAM_PARAMETERS: usize = 204;
    /// `struct v4l2_input`.
    pub const INPUT: usize = 80;
    /// `struct v4l2_control`.
    pub const CONTROL: usize = 8;
    /// `struct v4l2_queryctrl`.
    pub const QUERY_CONTROL: usize = 68;
    /// `struct v4l2_frmsizeenum`.
    pub const FRAME_SIZE: usize = 44;
    /// `struct v4l2_frmivalenum`.
    pub const FRAME_INTERVAL: usize = 52;
    /// An `int`.
    pub const INT: usize = 4;
}

/// Numbers of the ioctls that a camera knows. Each says by itself which way its structure goes, and
/// how long that is.
pub mod ioctl {
    /// The device's driver, card and capabilities.
    pub const QUERYCAP: u32 = 0x8068_5600;
    /// Its formats, by index.
    pub const ENUM_FMT: u32 = 0xc040_5602;
    /// The format of this open file.
    pub const G_FMT: u32 = 0xc0d0_5604;
    /// Sets it.
    pub const S_FMT: u32 = 0xc0d0_5605;
    /// Asks for buffers.
    pub const REQBUFS: u32 = 0xc014_5608;
    /// Where a buffer is.
    pub const QUERYBUF: u32 = 0xc058_5609;
    /// Gives a buffer to the device.
    pub const QBUF: u32 = 0xc058_560f;
    /// Takes a filled one.
    pub const DQBUF: u32 = 0xc058_5611;
    /// Begins.
    pub const STREAMON: u32 = 0x4004_5612;
    /// Ends; all buffers are the program's.
    pub const STREAMOFF: u32 = 0x4004_5613;
    /// The interval between frames.
    pub const G_PARM: u32 = 0xc0cc_5615;
    /// Sets it.
    pub const S_PARM: u32 = 0xc0cc_5616;
    /// Its inputs, by index.
    pub const ENUMINPUT: u32 = 0xc050_561a;
    /// The value of a control.
    pub const G_CTRL: u32 = 0xc008_561b;
    /// Sets it.
    pub const S_CTRL: u32 = 0xc008_561c;
    /// A control's name, type and range.
    pub const QUERYCTRL: u32 = 0xc044_5624;
    /// The input.
    pub const G_INPUT: u32 = 0x8004_5626;
    /// Sets it.
    pub const S_INPUT: u32 = 0xc004_5627;
    /// The format that setting this one would give.
    pub const TRY_FMT: u32 = 0xc0d0_5640;
    /// The priority of this open file.
    pub const G_PRIORITY: u32 = 0x8004_5643;
    /// Sets it.
    pub const S_PRIORITY: u32 = 0x4004_5644;
    /// Sizes of frames of a format, by index.
    pub const ENUM_FRAMESIZES: u32 = 0xc02c_564a;
    /// Intervals of frames of a format and size, by index.
    pub const ENUM_FRAMEINTERVALS: u32 = 0xc034_564b;

    /// All of them.
    pub const ALL: [u32; 23] = [
        QUERYCAP,
        ENUM_FMT,
        G_FMT,
        S_FMT,
        REQBUFS,
        QUERYBUF,
        QBUF,
        DQBUF,
        STREAMON,
        STREAMOFF,
        G_PARM,
        S_PARM,
        ENUMINPUT,
        G_CTRL,
        S_CTRL,
        QUERYCTRL,
        G_INPUT,
        S_INPUT,
        TRY_FMT,
        G_PRIORITY,
        S_PRIORITY,
        ENUM_FRAMESIZES,
        ENUM_FRAMEINTERVALS,
    ];
}

/// Offsets of fields in the structures.
pub mod at {
    /// `struct v4l2_capability`.
    pub mod capability {
        /// `driver`, 16 bytes.
        pub const DRIVER: usize = 0;
        /// `card`, 32 bytes.
        pub const CARD: usize = 16;
        /// `bus_info`, 32 bytes.
        pub const BUS_INFO: usize = 48;
        /// `version`.
        pub const VERSION: usize = 80;
        /// `capabilities`.
        pub const CAPABILITIES: usize = 84;
        /// `device_caps`.
        pub const DEVICE_CAPABILITIES: usize = 88;
    }
    /// `struct v4l2_fmtdesc`.
    pub mod format_description {
        /// `index`.
        pub const INDEX: usize = 0;
        /// `type`.
        pub const TYPE: usize = 4;
        /// `description`, 32 bytes.
        pub const DESCRIPTION: usize = 12;
        /// `pixelformat`.
        pub const PIXEL_FORMAT: usize = 44;
    }
    /// `struct v4l2_format` with a `struct v4l2_pix_format` in it.
    pub mod format {
        /// `type`.
        pub const TYPE: usize = 0;
        /// `width`.
        pub const WIDTH: usize = 8;
        /// `height`.
        pub const HEIGHT: usize = 12;
        /// `pixelformat`.
        pub const PIXEL_FORMAT: usize = 16;
        /// `field`.
        pub const FIELD: usize = 20;
        /// `bytesperline`.
        pub const BYTES_PER_LINE: usize = 24;
        /// `sizeimage`.
        pub const SIZE_IMAGE: usize = 28;
        /// `colorspace`.
        pub const COLORSPACE: usize = 32;
        /// Where the fields of a picture end.
        pub const END: usize = 56;
    }
    /// `struct v4l2_requestbuffers`.
    pub mod request_buffers {
        /// `count`.
        pub const COUNT: usize = 0;
        /// `type`.
        pub const TYPE: usize = 4;
        /// `memory`.
        pub const MEMORY: usize = 8;
        /// `capabilities`.
        pub const CAPABILITIES: usize = 12;
    }
    /// `struct v4l2_buffer`.
    pub mod buffer {
        /// `index`.
        pub const INDEX: usize = 0;
        /// `type`.
        pub const TYPE: usize = 4;
        /// `bytesused`.
        pub const BYTES_USED: usize = 8;
        /// `flags`.
        pub const FLAGS: usize = 12;
        /// `field`.
        pub const FIELD: usize = 16;
        /// `timestamp.tv_sec`, 8 bytes.
        pub const SECONDS: usize = 24;
        /// `timestamp.tv_usec`, 8 bytes.
        pub const MICROSECONDS: usize = 32;
        /// `sequence`.
        pub const SEQUENCE: usize = 56;
        /// `memory`.
        pub const MEMORY: usize = 60;
        /// `m.offset`, in 8 bytes of a union.
        pub const OFFSET: usize = 64;
        /// `length`.
        pub const LENGTH: usize = 72;
    }
    /// `struct v4l2_streamparm` with a `struct v4l2_captureparm` in it.
    pub mod stream_parameters {
        /// `type`.
        pub const TYPE: usize = 0;
        /// `capability`.
        pub const CAPABILITY: usize = 4;
        /// `timeperframe.numerator`.
        pub const NUMERATOR: usize = 12;
        /// `timeperframe.denominator`.
        pub const DENOMINATOR: usize = 16;
        /// `readbuffers`.
        pub const READ_BUFFERS: usize = 24;
    }
    /// `struct v4l2_input`.
    pub mod input {
        /// `index`.
        pub const INDEX: usize = 0;
        /// `name`, 32 bytes.
        pub const NAME: usize = 4;
        /// `type`.
        pub const TYPE: usize = 36;
    }
    /// `struct v4l2_control`.
    pub mod control {
        /// `id`.
        pub const ID: usize = 0;
        /// `value`.
        pub const VALUE: usize = 4;
    }
    /// `struct v4l2_queryctrl`.
    pub mod query_control {
        /// `id`.
        pub const ID: usize = 0;
        /// `type`.
        pub const TYPE: usize = 4;
        /// `name`, 32 bytes.
        pub const NAME: usize = 8;
        /// `minimum`.
        pub const MINIMUM: usize = 40;
        /// `maximum`.
        pub const MAXIMUM: usize = 44;
        /// `step`.
        pub const STEP: usize = 48;
        /// `default_value`.
        pub const DEFAULT: usize = 52;
        /// `flags`.
        pub const FLAGS: usize = 56;
    }
    /// `struct v4l2_frmsizeenum`.
    pub mod frame_size {
        /// `index`.
        pub const INDEX: usize = 0;
        /// `pixel_format`.
        pub const PIXEL_FORMAT: usize = 4;
        /// `type`.
        pub const TYPE: usize = 8;
        /// `discrete.width`.
        pub const WIDTH: usize = 12;
        /// `discrete.height`.
        pub const HEIGHT: usize = 16;
    }
    /// `struct v4l2_frmivalenum`.
    pub mod frame_interval {
        /// `index`.
        pub const INDEX: usize = 0;
        /// `pixel_format`.
        pub const PIXEL_FORMAT: usize = 4;
        /// `width`.
        pub const WIDTH: usize = 8;
        /// `height`.
        pub const HEIGHT: usize = 12;
        /// `type`.
        pub const TYPE: usize = 16;
        /// `discrete.numerator`.
        pub const NUMERATOR: usize = 20;
        /// `discrete.denominator`.
        pub const DENOMINATOR: usize = 24;
    }
}

/// `V4L2_BUF_TYPE_VIDEO_CAPTURE`.
pub const TYPE_CAPTURE: u32 = 1;
/// `V4L2_MEMORY_MMAP`.
pub const MEMORY_MMAP: u32 = 1;
/// `V4L2_FIELD_NONE`: whole frames.
pub const FIELD_NONE: u32 = 1;
/// `V4L2_COLORSPACE_SMPTE170M`.
pub const COLORSPACE: u32 = 1;
/// `V4L2_INPUT_TYPE_CAMERA`.
pub const INPUT_CAMERA: u32 = 2;
/// `V4L2_FRMSIZE_TYPE_DISCRETE`, and the same for intervals.
pub const DISCRETE: u32 = 1;
/// `V4L2_CAP_TIMEPERFRAME`: intervals can be set.
pub const TIME_PER_FRAME: u32 = 0x1000;
/// `V4L2_PRIORITY_INTERACTIVE`: that of who has said nothing.
pub const PRIORITY_DEFAULT: u32 = 2;
/// `V4L2_PRIORITY_RECORD`: the highest.
pub const PRIORITY_MAX: u32 = 3;
/// Most buffers of one open file (`VIDEO_MAX_FRAME`).
pub const BUFFERS_MAX: u32 = 32;

/// Bits of a device's capabilities.
pub mod capability {
    /// `V4L2_CAP_VIDEO_CAPTURE`.
    pub const CAPTURE: u32 = 0x1;
    /// `V4L2_CAP_READWRITE`.
    pub const READ_WRITE: u32 = 0x0100_0000;
    /// `V4L2_CAP_STREAMING`.
    pub const STREAMING: u32 = 0x0400_0000;
    /// `V4L2_CAP_DEVICE_CAPS`.
    pub const DEVICE: u32 = 0x8000_0000;
}

/// Bits of a buffer's flags.
pub mod buffer_flags {
    /// `V4L2_BUF_FLAG_MAPPED`.
    pub const MAPPED: u32 = 0x1;
    /// `V4L2_BUF_FLAG_QUEUED`.
    pub const QUEUED: u32 = 0x2;
    /// `V4L2_BUF_FLAG_DONE`.
    pub const DONE: u32 = 0x4;
    /// `V4L2_BUF_FLAG_TIMESTAMP_MONOTONIC`.
    pub const MONOTONIC: u32 = 0x2000;
}

/// `V4L2_BUF_CAP_SUPPORTS_MMAP`, in the answer to `REQBUFS`.
pub const BUFFERS_MAPPED: u32 = 0x1;

/// Controls.
pub mod control {
    /// `V4L2_CID_BRIGHTNESS`.
    pub const BRIGHTNESS: u32 = 0x0098_0900;
    /// `V4L2_CTRL_FLAG_NEXT_CTRL`, in the id of `QUERYCTRL`: the first one beyond this id.
    pub const NEXT: u32 = 0x8000_0000;
    /// `V4L2_CTRL_FLAG_SLIDER`.
    pub const SLIDER: u32 = 0x20;
    /// `V4L2_CTRL_TYPE_INTEGER`.
    pub const INTEGER: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::{ioctl, length};

    /// `_IOC` of `asm-generic/ioctl.h`.
    fn number(direction: u32, nr: u32, bytes: usize) -> u32 {
        direction << 30 | (bytes as u32) << 16 | u32::from(b'V') << 8 | nr
    }

    #[test]
    fn numbers_say_the_lengths_of_their_structures() {
        for (found, direction, nr, bytes) in [
            (ioctl::QUERYCAP, 2, 0, length::CAPABILITY),
            (ioctl::ENUM_FMT, 3, 2, length::FORMAT_DESCRIPTION),
            (ioctl::G_FMT, 3, 4, length::FORMAT),
            (ioctl::S_FMT, 3, 5, length::FORMAT),
            (ioctl::REQBUFS, 3, 8, length::REQUEST_BUFFERS),
            (ioctl::QUERYBUF, 3, 9, length::BUFFER),
            (ioctl::QBUF, 3, 15, length::BUFFER),
            (ioctl::DQBUF, 3, 17, length::BUFFER),
            (ioctl::STREAMON, 1, 18, length::INT),
            (ioctl::STREAMOFF, 1, 19, length::INT),
            (ioctl::G_PARM, 3, 21, length::STREAM_PARAMETERS),
            (ioctl::S_PARM, 3, 22, length::STREAM_PARAMETERS),
            (ioctl::ENUMINPUT, 3, 26, length::INPUT),
            (ioctl::G_CTRL, 3, 27, length::CONTROL),
            (ioctl::S_CTRL, 3, 28, length::CONTROL),
            (ioctl::QUERYCTRL, 3, 36, length::QUERY_CONTROL),
            (ioctl::G_INPUT, 2, 38, length::INT),
            (ioctl::S_INPUT, 3, 39, length::INT),
            (ioctl::TRY_FMT, 3, 64, length::FORMAT),
            (ioctl::G_PRIORITY, 2, 67, length::INT),
            (ioctl::S_PRIORITY, 1, 68, length::INT),
            (ioctl::ENUM_FRAMESIZES, 3, 74, length::FRAME_SIZE),
            (ioctl::ENUM_FRAMEINTERVALS, 3, 75, length::FRAME_INTERVAL),
        ] {
            assert_eq!(found, number(direction, nr, bytes), "{nr}");
        }
    }
}
