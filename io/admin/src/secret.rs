//! Secrets, in the admin protocol.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A secret: an element of `GET /v1/secrets`. Its value is told by no request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRow {
    /// Its distributed container.
    pub dc: String,
    /// Its name there.
    pub secret: String,
    /// How often it was set.
    pub revision: u64,
    /// Bytes of its value.
    pub bytes: u64,
    /// When it was set last, in milliseconds since 1970.
    pub at_ms: u64,
    /// The nodes that had its value when it was set; none of a node that is alone.
    pub nodes: Vec<String>,
    /// The domains that read it, by the files that are up.
    pub domains: Vec<String>,
}

/// `POST /v1/secrets/set`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretSetRequest {
    /// Its distributed container.
    pub dc: String,
    /// Its name there.
    pub secret: String,
    /// Its value, from now on.
    pub value: SecretValue,
}

/// `POST /v1/secrets/remove`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRemoveRequest {
    /// Its distributed container.
    pub dc: String,
    /// Its name there.
    pub secret: String,
}

/// The value of a secret; in JSON a string in base64. It is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(pub Vec<u8>);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretValue({} bytes)", self.0.len())
    }
}

impl Serialize for SecretValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for SecretValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The text itself stays out of the error.
        STANDARD.decode(text).map(Self).map_err(|_| serde::de::Error::custom("the value is no base64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_goes_through_json_and_is_not_printed() {
        let value = SecretValue(vec![0, 255, b'p', b'w']);
        let text = serde_json::to_string(&value).unwrap();
        assert_eq!(serde_json::from_str::<SecretValue>(&text).unwrap(), value);
        assert_eq!(format!("{value:?}"), "SecretValue(4 bytes)");
        let error = serde_json::from_str::<SecretValue>("\"!hunter2\"").unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
