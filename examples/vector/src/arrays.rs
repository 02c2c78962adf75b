//! Orders, and what they do with elements of each kind.

use service::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Most elements of all orders of a batch: some hundredths of a second of work, while which nobody
/// else is served.
pub const MAX_ELEMENTS: usize = 1 << 20;
/// Bytes that are read and written at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A kind of elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    F32,
    F64,
    I64,
}

/// One order: `add f64 A B OUT N`, `scale f64 A FACTOR OUT N`, `sum f64 A N`, `dot f64 A B N`;
/// places are bytes from the start of the memory.
pub struct Order {
    operation: String,
    places: Vec<u64>,
    factor: Option<String>,
    pub count: usize,
}

/// An element in the memory, in the machine's own order of bytes.
pub trait Element: Copy + PartialOrd {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, into: &mut Vec<u8>);
    fn parse(text: &str) -> Option<Self>;
    fn shown(self) -> String;
    /// `None`: this kind has no such operation.
    fn combine(operation: &str, one: Self, other: Self) -> Option<Self>;
    /// Sums have more bits than elements, where there are some.
    fn add_up(sum: &mut Sum, one: Self, other: Self);
}

/// A sum so far: with compensation (Neumaier), or modulo 2^64.
#[derive(Default)]
pub struct Sum {
    float: f64,
    rest: f64,
    integer: i64,
}

impl Sum {
    fn add(&mut self, value: f64) {
        let sum = self.float + value;
        let lost = if self.float.abs() >= value.abs() {
            (self.float - sum) + value
        } else {
            (value - sum) + self.float
        };
        self.float = sum;
        if lost.is_finite() {
            self.rest += lost;
        }
    }
}

macro_rules! float {
    ($float:ty) => {
        impl Element for $float {
            const BYTES: usize = size_of::<Self>();
            fn read(bytes: &[u8]) -> Self {
                bytes.try_into().map_or(0.0, Self::from_ne_bytes)
            }
            fn write(self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_ne_bytes());
            }
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            fn shown(self) -> String {
                format!("{self:e}")
            }
            fn combine(operation: &str, one: Self, other: Self) -> Option<Self> {
                Some(match operation {
                    "add" => one + other,
                    "sub" => one - other,
                    "mul" => one * other,
                    "div" => one / other,
                    _ => return None,
                })
            }
            fn add_up(sum: &mut Sum, one: Self, other: Self) {
                sum.add(f64::from(one) * f64::from(other));
            }
        }
    };
}
float!(f32);
float!(f64);

impl Element for i64 {
    const BYTES: usize = 8;
    fn read(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(0, Self::from_ne_bytes)
    }
    fn write(self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.to_ne_bytes());
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn shown(self) -> String {
        self.to_string()
    }
    fn combine(operation: &str, one: Self, other: Self) -> Option<Self> {
        Some(match operation {
            "add" => one.wrapping_add(other),
            "sub" => one.wrapping_sub(other),
            "mul" => one.wrapping_mul(other),
            _ => return None,
        })
    }
    fn add_up(sum: &mut Sum, one: Self, other: Self) {
        sum.integer = sum.integer.wrapping_add(one.wrapping_mul(other));
    }
}

impl Order {
    /// An order of its line.
    pub fn of(line: &str) -> Option<(Self, Kind)> {
        let words: Vec<&str> = line.split(' ').collect();
        let (operation, kind) = (*words.first()?, *words.get(1)?);
        let kind = match kind {
            "f32" => Kind::F32,
            "f64" => Kind::F64,
            "i64" => Kind::I64,
            _ => return None,
        };
        let (count, places) = words.get(2..)?.split_last()?;
        let count = count.parse().ok().filter(|count| (1..=MAX_ELEMENTS).contains(count))?;
        let (places, factor) = match (operation, places) {
            ("add" | "sub" | "mul" | "div", [_, _, _]) | ("dot", [_, _]) | ("sum" | "min" | "max", [_]) => {
                (places.to_vec(), None)
            }
            ("scale", [from, factor, to]) => (vec![*from, *to], Some((*factor).to_owned())),
            _ => return None,
        };
        let places = places.into_iter().map(|place| place.parse().ok()).collect::<Option<_>>()?;
        Some((Self { operation: operation.to_owned(), places, factor, count }, kind))
    }
}

/// Does an order; `ok`, or the number that it comes to.
pub fn run<T: Element>(order: &Order, memory: &File) -> Result<String, Errno> {
    let Order { operation, places, factor, count } = order;
    let size = memory.metadata().map_err(|_| Errno::IO)?.len();
    let bytes = (*count as u64) * T::BYTES as u64;
    // Whatever the order says, it leads nowhere but into the memory.
    let is_inside = |place: &u64| {
        place.is_multiple_of(T::BYTES as u64) && place.checked_add(bytes).is_some_and(|end| end <= size)
    };
    if !places.iter().all(is_inside) {
        return Err(Errno::FAULT);
    }
    let factor = factor.as_deref().map(|text| T::parse(text).ok_or(Errno::INVAL)).transpose()?;
    let (mut sum, mut least, mut most) = (Sum::default(), None::<T>, None::<T>);
    let at_once = PIECE_BYTES / T::BYTES;
    for begun in (0..*count).step_by(at_once) {
        let number = at_once.min(count - begun);
        let at = |place: u64| place + (begun * T::BYTES) as u64;
        let read = |place: u64| {
            let mut piece = vec![0; number * T::BYTES];
            memory.read_exact_at(&mut piece, at(place)).map_err(|_| Errno::IO)?;
            Ok(piece)
        };
        let one = read(places[0])?;
        let other = if places.len() > 1 && factor.is_none() { read(places[1])? } else { Vec::new() };
        let mut out = Vec::with_capacity(one.len());
        for (index, element) in one.chunks_exact(T::BYTES).map(T::read).enumerate() {
            let beside =
                || other.get(index * T::BYTES..(index + 1) * T::BYTES).map(T::read).ok_or(Errno::INVAL);
            match operation.as_str() {
                "sum" | "min" | "max" => {
                    if let Some(unit) = T::parse("1") {
                        T::add_up(&mut sum, element, unit);
                    }
                    if least.is_none_or(|least| element < least) {
                        least = Some(element);
                    }
                    if most.is_none_or(|most| element > most) {
                        most = Some(element);
                    }
                }
                "dot" => T::add_up(&mut sum, element, beside()?),
                "scale" => T::combine("mul", element, factor.ok_or(Errno::INVAL)?)
                    .ok_or(Errno::INVAL)?
                    .write(&mut out),
                operation => {
                    T::combine(operation, element, beside()?).ok_or(Errno::OPNOTSUPP)?.write(&mut out)
                }
            }
        }
        if !out.is_empty() {
            let into = *places.last().ok_or(Errno::INVAL)?;
            memory.write_all_at(&out, at(into)).map_err(|_| Errno::IO)?;
        }
    }
    let is_integer = T::parse("0.5").is_none();
    Ok(match operation.as_str() {
        "sum" | "dot" if is_integer => sum.integer.to_string(),
        "sum" | "dot" => format!("{:e}", sum.float + sum.rest),
        "min" => least.map_or_else(|| "-".to_owned(), T::shown),
        "max" => most.map_or_else(|| "-".to_owned(), T::shown),
        _ => "ok".to_owned(),
    })
}
