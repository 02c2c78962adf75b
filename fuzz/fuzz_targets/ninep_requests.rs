//! Requests of 9P clients. There is no panic; a message that is understood is understood in one way
//! only: by its own number, size and tag, with names that lie within it, and neither a longer nor a
//! shorter one begins with it.
#![cfg_attr(feature = "fuzzing", no_main)]

use wire::ninep::{HEAD_BYTES, Qid, Reply, Request, WALK_MAX, put_entry, size};

/// The most bytes of a message here.
const MESSAGE_BYTES: u32 = 8192;

fuzz::target!(|bytes: &[u8]| {
    let Some(&first) = bytes.first_chunk::<4>() else { return };
    if let Ok(size) = size(first, MESSAGE_BYTES) {
        assert!((HEAD_BYTES..=MESSAGE_BYTES as usize).contains(&size));
    }
    let Ok((tag, request)) = Request::decode(bytes) else { return };
    assert_eq!(size(first, u32::MAX), Ok(bytes.len()));
    assert_eq!(bytes.get(5..7), Some(&tag.to_le_bytes()[..]));
    for other in [[bytes, &[0]].concat(), bytes[..bytes.len() - 1].to_vec()] {
        assert!(Request::decode(&other).is_err());
    }
    match request {
        Request::Walk { names, .. } => {
            assert!(names.len() <= WALK_MAX);
            assert!(names.iter().all(|name| within(bytes, name)));
        }
        Request::Write { data, .. } => assert!(within(bytes, data)),
        Request::Create { name, .. } | Request::Unlinkat { name, .. } => {
            assert!(within(bytes, name));
            listed(name);
        }
        _ => {}
    }
});

/// Whether a field is a part of its message.
fn within(message: &[u8], field: &[u8]) -> bool {
    message.as_ptr_range().start <= field.as_ptr() && field.as_ptr_range().end <= message.as_ptr_range().end
}

/// An answer that lists a name has it whole or not at all, and says its own size.
fn listed(name: &[u8]) {
    let qid = Qid { folder: false, link: false, path: 1 };
    let mut listing = Vec::new();
    let whole = put_entry(&mut listing, 256, qid, 1, name);
    assert_eq!(whole, listing.ends_with(name) && !listing.is_empty());
    assert!(listing.len() <= 256);
    let mut out = Vec::new();
    Reply::Readdir(listing).encode(1, &mut out);
    assert_eq!(out.first_chunk::<4>().map(|size| u32::from_le_bytes(*size) as usize), Some(out.len()));
}
