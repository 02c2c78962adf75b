//! Numbers of certificates.

use crate::error::TrustError;
use std::fmt;

/// Longest serial, in hexadecimal digits (RFC 5280: 20 bytes).
const MAX_SERIAL_DIGITS: usize = 40;

/// The number of a certificate, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(String);

impl Serial {
    /// Reads what [`fmt::Display`] wrote.
    ///
    /// # Errors
    /// [`TrustError::Garbage`].
    pub fn parse(text: &str) -> Result<Self, TrustError> {
        let good = (2..=MAX_SERIAL_DIGITS).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if good {
            return Ok(Self(text.to_owned()));
        }
        let why = "it is not in hexadecimal digits".into();
        Err(TrustError::Garbage { what: "the number of a certificate".into(), why })
    }

    /// Its bytes, the highest first.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let even = if self.0.len().is_multiple_of(2) { self.0.clone() } else { format!("0{}", self.0) };
        let pairs = even.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or_default());
        // A serial has nothing but hexadecimal digits.
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap_or_default()).collect()
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
