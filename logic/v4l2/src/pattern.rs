//! The test pattern: each frame is a function of its number alone, and says it. So whoever has a
//! frame can tell which it is, and whether it is whole.
//!
//! The upper half is four bands of eight blocks, white for 1 and black for 0: the 32 bits of the
//! number, the highest first. The lower half is a ramp that moves by one pixel with each frame and
//! each line. In YUYV, the colour of all pixels follows from the number, too.

use wire::camera::Format;

use crate::format::Picture;

const WHITE: u8 = 235;
const BLACK: u8 = 16;
/// Above it a block is white.
const MIDDLE: u8 = 128;
/// Brightness that changes nothing.
pub const BRIGHTNESS_USUAL: u8 = 128;
const BANDS: u32 = 4;
const BLOCKS: u32 = 8;
/// After so many pixels the ramp begins again.
const RAMP: usize = 256;

/// Draws frame `number` into `frame`, whatever that held. `brightness` is added to the ramp, less
/// [`BRIGHTNESS_USUAL`].
pub fn draw(picture: Picture, number: u32, brightness: u8, frame: &mut Vec<u8>) {
    frame.clear();
    frame.reserve(picture.bytes() as usize);
    let (width, colour) = (picture.width as usize, colour(number));
    let mut line = Vec::with_capacity(picture.line_bytes() as usize);
    let bands = picture.height / 2 / BANDS;
    for band in 0..BANDS {
        let luma = (0..width).map(|x| block(picture.width, number, band, x as u32));
        line.clear();
        put(picture.format, luma, colour, &mut line);
        for _ in 0..bands {
            frame.extend_from_slice(&line);
        }
    }
    // All lines of the ramp are parts of one.
    let mut ramp = Vec::with_capacity(2 * (width + RAMP));
    put(picture.format, (0..width + RAMP).map(|x| luma_of_ramp(x, brightness)), colour, &mut ramp);
    let pixel = picture.format.pixel_bytes() as usize;
    for y in bands * BANDS..picture.height {
        let begin = shift(number, y) * pixel;
        frame.extend_from_slice(ramp.get(begin..begin + width * pixel).unwrap_or_default());
    }
}

fn colour(number: u32) -> u8 {
    (number.wrapping_mul(3) & 0xff) as u8
}

fn block(width: u32, number: u32, band: u32, x: u32) -> u8 {
    let bit = band * BLOCKS + (x * BLOCKS / width.max(1)).min(BLOCKS - 1);
    if number >> (31 - bit) & 1 == 1 { WHITE } else { BLACK }
}

fn luma_of_ramp(x: usize, brightness: u8) -> u8 {
    ((x % RAMP) as i16 + i16::from(brightness) - i16::from(BRIGHTNESS_USUAL)).clamp(0, 255) as u8
}

/// By how many pixels a line of the ramp is moved: an even number, since two share their colour.
fn shift(number: u32, y: u32) -> usize {
    (number.wrapping_add(y) as usize * 2) % RAMP
}

fn put(format: Format, luma: impl Iterator<Item = u8>, colour: u8, into: &mut Vec<u8>) {
    match format {
        Format::Grey => into.extend(luma),
        Format::Yuyv => {
            let chroma = [colour, MIDDLE];
            into.extend(luma.zip(chroma.into_iter().cycle()).flat_map(|(y, c)| [y, c]));
        }
    }
}

/// The number of a frame, if every byte of it is as [`draw`] makes it with usual brightness.
#[must_use]
pub fn read(picture: Picture, frame: &[u8]) -> Option<u32> {
    let number = glance(picture, frame)?;
    let mut drawn = Vec::new();
    draw(picture, number, BRIGHTNESS_USUAL, &mut drawn);
    (drawn == frame).then_some(number)
}

/// The number that the blocks of a frame say, whatever else is in it: what a picture has that was
/// compressed on its way.
#[must_use]
pub fn glance(picture: Picture, frame: &[u8]) -> Option<u32> {
    let (line, pixel) = (picture.line_bytes() as usize, picture.format.pixel_bytes() as usize);
    let bands = picture.height / 2 / BANDS;
    let mut number = 0;
    for bit in 0..BANDS * BLOCKS {
        // The middle of its block.
        let y = (bit / BLOCKS) * bands + bands / 2;
        let x = (2 * (bit % BLOCKS) + 1) * picture.width / (2 * BLOCKS);
        let luma = *frame.get(y as usize * line + x as usize * pixel)?;
        number = number << 1 | u32::from(luma > MIDDLE);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn picture(format: Format, width: u32, height: u32) -> Picture {
        Picture { format, width, height }
    }

    proptest! {
        #[test]
        fn a_frame_says_its_number(
            number: u32, yuyv: bool, size in prop::sample::select(vec![(16, 16), (48, 32), (96, 64), (160, 128), (642, 38)]),
        ) {
            let format = if yuyv { Format::Yuyv } else { Format::Grey };
            let picture = picture(format, size.0, size.1);
            let mut frame = vec![7; 3];
            draw(picture, number, BRIGHTNESS_USUAL, &mut frame);
            prop_assert_eq!(frame.len(), picture.bytes() as usize);
            prop_assert_eq!(read(picture, &frame), Some(number));
        }

        #[test]
        fn a_frame_of_two_halves_is_none(number: u32, other: u32, cut in 1_usize..48 * 32 * 2) {
            prop_assume!(number % 128 != other % 128);
            let picture = picture(Format::Yuyv, 48, 32);
            let (mut one, mut two) = (Vec::new(), Vec::new());
            draw(picture, number, BRIGHTNESS_USUAL, &mut one);
            draw(picture, other, BRIGHTNESS_USUAL, &mut two);
            let torn = [&one[..cut], &two[cut..]].concat();
            if torn != one && torn != two {
                prop_assert_eq!(read(picture, &torn), None);
            }
        }
    }
}
