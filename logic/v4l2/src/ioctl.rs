//! The effect of each ioctl on an open file.

use std::collections::VecDeque;

use wire::v4l2::{
    BUFFERS_MAPPED, BUFFERS_MAX, Bytes, COLORSPACE, DISCRETE, FIELD_NONE, Fields, INPUT_CAMERA, MEMORY_MMAP,
    PRIORITY_MAX, TIME_PER_FRAME, TYPE_CAPTURE, at, buffer_flags, capability, control, ioctl,
};

use crate::areas::{Areas, PAGE_BYTES};
use crate::device::Device;
use crate::format::{Interval, Picture};
use crate::pattern::BRIGHTNESS_USUAL;
use crate::refusal::Refusal;
use crate::session::{Clock, Done, Flow, Pool, Session};

/// The driver's name in `QUERYCAP`.
const DRIVER: &str = "tombolo";
/// The version that it says: that of the interface, Linux 6.1.
const VERSION: u32 = 0x0006_0100;
/// The name of the only input.
const INPUT: &str = "Camera 1";

/// An ioctl as it comes.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Its number.
    pub number: u32,
    /// Its data: as many bytes as the number says, where it says that there are some.
    pub data: &'a [u8],
    /// When, in ns.
    pub now_ns: u64,
}

/// The outcome of an ioctl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done; these bytes go back.
    Done(Bytes),
    /// It waits for a frame: it is to be made again when there is one.
    Later,
}

impl Session {
    /// Does what an ioctl asks. `areas`: where buffers can be; none where the domain has no memory
    /// with the service.
    ///
    /// # Errors
    /// [`Refusal`]; then nothing has changed.
    pub fn ioctl(
        &mut self,
        call: Call<'_>,
        device: &Device,
        areas: Option<&mut Areas>,
    ) -> Result<Answer, Refusal> {
        if !ioctl::ALL.contains(&call.number) {
            return Err(Refusal::Unknown);
        }
        let (bytes, brings) = ((call.number >> 16 & 0x3fff) as usize, call.number >> 30 & 1 != 0);
        let mut data = if brings { call.data.to_vec() } else { vec![0; bytes] };
        if data.len() != bytes {
            return Err(Refusal::Invalid);
        }
        match call.number {
            ioctl::QUERYCAP => describe(device, &mut data),
            ioctl::ENUM_FMT => enumerate_formats(device, &mut data)?,
            ioctl::ENUM_FRAMESIZES => enumerate_sizes(device, &mut data)?,
            ioctl::ENUM_FRAMEINTERVALS => enumerate_intervals(device, &mut data)?,
            ioctl::G_FMT => {
                is_capture(&data, at::format::TYPE)?;
                put_picture(self.picture, &mut data);
            }
            ioctl::TRY_FMT => put_picture(wanted_picture(device, &data)?, &mut data),
            ioctl::S_FMT => {
                let picture = wanted_picture(device, &data)?;
                self.be_unused()?;
                self.picture = picture;
                put_picture(picture, &mut data);
            }
            ioctl::G_PARM => {
                is_capture(&data, at::stream_parameters::TYPE)?;
                put_interval(self.interval, &mut data);
            }
            ioctl::S_PARM => self.set_interval(device, &mut data)?,
            ioctl::ENUMINPUT => enumerate_inputs(&mut data)?,
            ioctl::G_INPUT => data.put_word(0, 0),
            ioctl::S_INPUT if data.word(0) == 0 => {}
            ioctl::S_INPUT => return Err(Refusal::Invalid),
            ioctl::G_PRIORITY => data.put_word(0, self.priority),
            ioctl::S_PRIORITY => {
                let wanted = data.word(0);
                if wanted == 0 || wanted > PRIORITY_MAX {
                    return Err(Refusal::Invalid);
                }
                self.priority = wanted;
            }
            ioctl::QUERYCTRL => query_control(&mut data)?,
            ioctl::G_CTRL | ioctl::S_CTRL => self.control(call.number, &mut data)?,
            ioctl::REQBUFS => self.request_buffers(&mut data, areas)?,
            ioctl::QUERYBUF => self.query_buffer(&mut data)?,
            ioctl::QBUF => self.queue(&mut data)?,
            ioctl::DQBUF => {
                if !self.dequeue(&mut data)? {
                    return Ok(Answer::Later);
                }
            }
            ioctl::STREAMON => self.begin(&data, call.now_ns)?,
            _ => self.stop(&data)?,
        }
        // What is only brought is not given back.
        if call.number >> 31 == 0 {
            data.clear();
        }
        Ok(Answer::Done(data))
    }

    /// Whether an ioctl of this number changes what whoever serves the file next has to know.
    #[must_use]
    pub fn changes(number: u32) -> bool {
        matches!(
            number,
            ioctl::S_FMT
                | ioctl::S_PARM
                | ioctl::S_PRIORITY
                | ioctl::S_CTRL
                | ioctl::REQBUFS
                | ioctl::QBUF
                | ioctl::DQBUF
                | ioctl::STREAMON
                | ioctl::STREAMOFF
        )
    }

    /// Formats and the like stay as they are while buffers are there, or frames flow.
    fn be_unused(&self) -> Result<(), Refusal> {
        if self.pool.is_none() && self.flow == Flow::Still { Ok(()) } else { Err(Refusal::Busy) }
    }

    fn set_interval(&mut self, device: &Device, data: &mut [u8]) -> Result<(), Refusal> {
        is_capture(data, at::stream_parameters::TYPE)?;
        if self.flow != Flow::Still {
            return Err(Refusal::Busy);
        }
        let (above, below) =
            (data.word(at::stream_parameters::NUMERATOR), data.word(at::stream_parameters::DENOMINATOR));
        self.interval = device.nearest_interval(above, below);
        put_interval(self.interval, data);
        Ok(())
    }

    fn control(&mut self, number: u32, data: &mut [u8]) -> Result<(), Refusal> {
        if data.word(at::control::ID) != control::BRIGHTNESS {
            return Err(Refusal::Invalid);
        }
        if number == ioctl::S_CTRL {
            self.brightness = u8::try_from(data.word(at::control::VALUE)).map_err(|_| Refusal::Range)?;
        }
        data.put_word(at::control::VALUE, u32::from(self.brightness));
        Ok(())
    }

    fn request_buffers(&mut self, data: &mut [u8], areas: Option<&mut Areas>) -> Result<(), Refusal> {
        is_capture(data, at::request_buffers::TYPE)?;
        if data.word(at::request_buffers::MEMORY) != MEMORY_MMAP {
            return Err(Refusal::Invalid);
        }
        if self.flow != Flow::Still {
            return Err(Refusal::Busy);
        }
        // Without a memory there are no buffers that could be mapped; a program reads then.
        let areas = areas.ok_or(Refusal::Invalid)?;
        if let Some(pool) = self.pool.take() {
            areas.give_back(pool.begin);
        }
        let wanted = data.word(at::request_buffers::COUNT).min(BUFFERS_MAX);
        let mut count = 0;
        if wanted > 0 {
            let stride = self.picture.bytes().next_multiple_of(PAGE_BYTES);
            // A program that asks for many takes fewer: a half of what is free, so that others of
            // its domain find some.
            let room = (areas.longest() / 2 / stride).max((areas.longest() / stride).min(2));
            count = wanted.min(room);
            let begin = areas.take(count * stride).ok_or(Refusal::Memory)?;
            let (queued, done) = (VecDeque::new(), VecDeque::new());
            self.pool = Some(Pool { begin, stride, count, queued, done });
        }
        data.put_word(at::request_buffers::COUNT, count);
        data.clear_from(at::request_buffers::CAPABILITIES);
        data.put_word(at::request_buffers::CAPABILITIES, BUFFERS_MAPPED);
        Ok(())
    }

    /// The pool, for an ioctl about one of its buffers.
    fn pool_for(&mut self, data: &[u8], about_memory: bool) -> Result<&mut Pool, Refusal> {
        is_capture(data, at::buffer::TYPE)?;
        if about_memory && data.word(at::buffer::MEMORY) != MEMORY_MMAP {
            return Err(Refusal::Invalid);
        }
        self.pool.as_mut().ok_or(Refusal::Invalid)
    }

    fn query_buffer(&mut self, data: &mut [u8]) -> Result<(), Refusal> {
        let index = data.word(at::buffer::INDEX);
        let bytes = self.picture.bytes();
        let pool = self.pool_for(data, false)?;
        if !pool.has(index) {
            return Err(Refusal::Invalid);
        }
        let flags = if pool.queued.contains(&index) {
            buffer_flags::QUEUED
        } else if pool.is_programs(index) {
            0
        } else {
            buffer_flags::DONE
        };
        put_buffer(pool, index, (flags, bytes), data);
        Ok(())
    }

    fn queue(&mut self, data: &mut [u8]) -> Result<(), Refusal> {
        let index = data.word(at::buffer::INDEX);
        let bytes = self.picture.bytes();
        let pool = self.pool_for(data, true)?;
        if !pool.has(index) || !pool.is_programs(index) {
            return Err(Refusal::Invalid);
        }
        pool.queued.push_back(index);
        put_buffer(pool, index, (buffer_flags::QUEUED, bytes), data);
        Ok(())
    }

    /// Takes the first filled buffer; false where there is none yet.
    fn dequeue(&mut self, data: &mut [u8]) -> Result<bool, Refusal> {
        let (bytes, interval) = (self.picture.bytes(), self.interval);
        let Flow::Streaming(clock) = self.flow.clone() else { return Err(Refusal::Invalid) };
        let pool = self.pool_for(data, true)?;
        let Some(Done { index, number }) = pool.done.pop_front() else { return Ok(false) };
        put_buffer(pool, index, (0, bytes), data);
        data.put_word(at::buffer::BYTES_USED, bytes);
        data.put_word(at::buffer::SEQUENCE, number as u32);
        let ns = clock.since_ns.saturating_add(interval.due_ns(number));
        data.put_long(at::buffer::SECONDS, ns / 1_000_000_000);
        data.put_long(at::buffer::MICROSECONDS, ns % 1_000_000_000 / 1000);
        Ok(true)
    }

    fn begin(&mut self, data: &[u8], now_ns: u64) -> Result<(), Refusal> {
        is_capture(data, 0)?;
        if self.pool.is_none() || matches!(self.flow, Flow::Reading { .. }) {
            return Err(Refusal::Invalid);
        }
        if self.flow == Flow::Still {
            self.flow = Flow::Streaming(Clock { since_ns: now_ns, next: 0 });
        }
        Ok(())
    }

    fn stop(&mut self, data: &[u8]) -> Result<(), Refusal> {
        is_capture(data, 0)?;
        if matches!(self.flow, Flow::Reading { .. }) {
            return Err(Refusal::Busy);
        }
        self.flow = Flow::Still;
        if let Some(pool) = &mut self.pool {
            pool.queued.clear();
            pool.done.clear();
        }
        Ok(())
    }
}

fn is_capture(data: &[u8], at: usize) -> Result<(), Refusal> {
    if data.word(at) == TYPE_CAPTURE { Ok(()) } else { Err(Refusal::Invalid) }
}

fn describe(device: &Device, data: &mut [u8]) {
    let can = capability::CAPTURE | capability::STREAMING | capability::READ_WRITE;
    data.clear_from(0);
    data.put_text(at::capability::DRIVER, 16, DRIVER);
    data.put_text(at::capability::CARD, 32, &device.name);
    data.put_text(at::capability::BUS_INFO, 32, &format!("platform:tombolo-{}", device.name));
    data.put_word(at::capability::VERSION, VERSION);
    data.put_word(at::capability::CAPABILITIES, can | capability::DEVICE);
    data.put_word(at::capability::DEVICE_CAPABILITIES, can);
}

fn enumerate_formats(device: &Device, data: &mut [u8]) -> Result<(), Refusal> {
    is_capture(data, at::format_description::TYPE)?;
    let format = device.format(data.word(at::format_description::INDEX)).ok_or(Refusal::Invalid)?;
    data.clear_from(at::format_description::TYPE + 4);
    data.put_text(at::format_description::DESCRIPTION, 32, format.description());
    data.put_word(at::format_description::PIXEL_FORMAT, format.fourcc());
    Ok(())
}

fn enumerate_sizes(device: &Device, data: &mut [u8]) -> Result<(), Refusal> {
    device.has_format(data.word(at::frame_size::PIXEL_FORMAT)).ok_or(Refusal::Invalid)?;
    let (width, height) = device.size(data.word(at::frame_size::INDEX)).ok_or(Refusal::Invalid)?;
    data.clear_from(at::frame_size::TYPE);
    data.put_word(at::frame_size::TYPE, DISCRETE);
    data.put_word(at::frame_size::WIDTH, width);
    data.put_word(at::frame_size::HEIGHT, height);
    Ok(())
}

fn enumerate_intervals(device: &Device, data: &mut [u8]) -> Result<(), Refusal> {
    let format = device.has_format(data.word(at::frame_interval::PIXEL_FORMAT)).ok_or(Refusal::Invalid)?;
    let (width, height) = (data.word(at::frame_interval::WIDTH), data.word(at::frame_interval::HEIGHT));
    if !device.shows(Picture { format, width, height }) {
        return Err(Refusal::Invalid);
    }
    let rate = device.rate(data.word(at::frame_interval::INDEX)).ok_or(Refusal::Invalid)?;
    data.clear_from(at::frame_interval::TYPE);
    data.put_word(at::frame_interval::TYPE, DISCRETE);
    data.put_word(at::frame_interval::NUMERATOR, 1);
    data.put_word(at::frame_interval::DENOMINATOR, rate);
    Ok(())
}

fn enumerate_inputs(data: &mut [u8]) -> Result<(), Refusal> {
    if data.word(at::input::INDEX) != 0 {
        return Err(Refusal::Invalid);
    }
    data.clear_from(at::input::NAME);
    data.put_text(at::input::NAME, 32, INPUT);
    data.put_word(at::input::TYPE, INPUT_CAMERA);
    Ok(())
}

fn wanted_picture(device: &Device, data: &[u8]) -> Result<Picture, Refusal> {
    is_capture(data, at::format::TYPE)?;
    let (width, height) = (data.word(at::format::WIDTH), data.word(at::format::HEIGHT));
    Ok(device.nearest(data.word(at::format::PIXEL_FORMAT), width, height))
}

fn put_picture(picture: Picture, data: &mut [u8]) {
    data.clear_from(at::format::WIDTH);
    data.put_word(at::format::WIDTH, picture.width);
    data.put_word(at::format::HEIGHT, picture.height);
    data.put_word(at::format::PIXEL_FORMAT, picture.format.fourcc());
    data.put_word(at::format::FIELD, FIELD_NONE);
    data.put_word(at::format::BYTES_PER_LINE, picture.line_bytes());
    data.put_word(at::format::SIZE_IMAGE, picture.bytes());
    data.put_word(at::format::COLORSPACE, COLORSPACE);
}

fn put_interval(interval: Interval, data: &mut [u8]) {
    data.clear_from(at::stream_parameters::CAPABILITY);
    data.put_word(at::stream_parameters::CAPABILITY, TIME_PER_FRAME);
    data.put_word(at::stream_parameters::NUMERATOR, interval.numerator);
    data.put_word(at::stream_parameters::DENOMINATOR, interval.denominator);
    data.put_word(at::stream_parameters::READ_BUFFERS, 1);
}

fn query_control(data: &mut [u8]) -> Result<(), Refusal> {
    let id = data.word(at::query_control::ID);
    let found = if id & control::NEXT != 0 {
        id & !control::NEXT < control::BRIGHTNESS
    } else {
        id == control::BRIGHTNESS
    };
    if !found {
        return Err(Refusal::Invalid);
    }
    data.clear_from(0);
    data.put_word(at::query_control::ID, control::BRIGHTNESS);
    data.put_word(at::query_control::TYPE, control::INTEGER);
    data.put_text(at::query_control::NAME, 32, "Brightness");
    data.put_word(at::query_control::MINIMUM, 0);
    data.put_word(at::query_control::MAXIMUM, u32::from(u8::MAX));
    data.put_word(at::query_control::STEP, 1);
    data.put_word(at::query_control::DEFAULT, u32::from(BRIGHTNESS_USUAL));
    data.put_word(at::query_control::FLAGS, control::SLIDER);
    Ok(())
}

fn put_buffer(pool: &Pool, index: u32, (flags, bytes): (u32, u32), data: &mut [u8]) {
    data.clear_from(0);
    data.put_word(at::buffer::INDEX, index);
    data.put_word(at::buffer::TYPE, TYPE_CAPTURE);
    data.put_word(at::buffer::BYTES_USED, if flags & buffer_flags::DONE != 0 { bytes } else { 0 });
    // Whether the program has mapped it only the kernel knows; it must, to use it.
    data.put_word(at::buffer::FLAGS, flags | buffer_flags::MAPPED | buffer_flags::MONOTONIC);
    data.put_word(at::buffer::FIELD, FIELD_NONE);
    data.put_word(at::buffer::MEMORY, MEMORY_MMAP);
    data.put_word(at::buffer::OFFSET, pool.offset(index));
    data.put_word(at::buffer::LENGTH, pool.stride);
}
