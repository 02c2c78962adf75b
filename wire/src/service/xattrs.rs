//! Extended attributes of the nodes of a tree, as setxattr(2) and listxattr(2) know them.

use super::{DecodeError, MAX_XATTR_ANSWER_BYTES, MAX_XATTR_NAME_BYTES, XATTR_CHANGE_BYTES};

/// The operation of an [`XattrChange`]. The discriminant is the byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum XattrOperation {
    /// Sets the value, whether there is one or not.
    Set = 0,
    /// Sets the value, or gives `EEXIST` where there is one.
    Create = 1,
    /// Sets the value, or gives `ENODATA` where there is none.
    Replace = 2,
    /// Removes the attribute, or gives `ENODATA`.
    Remove = 3,
}

/// A change of one extended attribute. 4 bytes: operation 0, reserved 1, length of the name 2 (2
/// bytes); then the name and the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XattrChange<'a> {
    /// The operation.
    pub operation: XattrOperation,
    /// The name, namespace included.
    pub name: &'a [u8],
    /// The value; of a removal, empty.
    pub value: &'a [u8],
}

/// Whether bytes can be the name of an extended attribute: not empty, not too long, no NUL.
#[must_use]
pub fn is_xattr_name(name: &[u8]) -> bool {
    (1..=MAX_XATTR_NAME_BYTES).contains(&name.len()) && !name.contains(&0)
}

/// Whether bytes are a list of such names, each with a NUL behind it.
#[must_use]
pub fn are_xattr_names(bytes: &[u8]) -> bool {
    let Some((last, names)) = bytes.split_last() else { return true };
    *last == 0 && bytes.len() <= MAX_XATTR_ANSWER_BYTES && names.split(|&byte| byte == 0).all(is_xattr_name)
}

impl<'a> XattrChange<'a> {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.operation as u8, 0];
        bytes.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(self.name);
        bytes.extend_from_slice(self.value);
        bytes
    }

    /// The change in exactly these bytes.
    ///
    /// # Errors
    /// [`DecodeError::Payload`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let Some((head, rest)) = bytes.split_first_chunk::<XATTR_CHANGE_BYTES>() else {
            return Err(DecodeError::Payload("length"));
        };
        let operation = match head[0] {
            0 => XattrOperation::Set,
            1 => XattrOperation::Create,
            2 => XattrOperation::Replace,
            3 => XattrOperation::Remove,
            _ => return Err(DecodeError::Payload("operation")),
        };
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (name, value) = rest.split_at_checked(length).ok_or(DecodeError::Payload("length of a name"))?;
        if head[1] != 0 || !is_xattr_name(name) {
            return Err(DecodeError::Payload("name"));
        }
        if operation == XattrOperation::Remove && !value.is_empty() {
            return Err(DecodeError::Payload("value"));
        }
        Ok(Self { operation, name, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_change_survives_the_wire_and_nonsense_is_refused() {
        let set = XattrChange { operation: XattrOperation::Replace, name: b"user.a", value: b"v\0" };
        assert_eq!(XattrChange::decode(&set.encode()), Ok(set));
        let gone = XattrChange { operation: XattrOperation::Remove, name: b"user.a", value: b"v" };
        assert!(XattrChange::decode(&gone.encode()).is_err());
        for name in [&b""[..], b"user.\0", &[b'x'; MAX_XATTR_NAME_BYTES + 1]] {
            assert!(XattrChange::decode(&XattrChange { name, ..set }.encode()).is_err(), "{name:?}");
        }
        assert!(are_xattr_names(b"") && are_xattr_names(b"user.a\0user.b\0"));
        for list in [&b"user.a"[..], b"\0", b"user.a\0\0"] {
            assert!(!are_xattr_names(list), "{list:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_change_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(change) = XattrChange::decode(&bytes) {
                prop_assert_eq!(change.encode(), bytes);
            }
        }
    }
}
