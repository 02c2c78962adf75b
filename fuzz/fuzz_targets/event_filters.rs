//! The text of a filter that a subscriber installs, and an event that a publisher writes: a NUL is
//! between the two. What must hold: no panic, a cost within the bound, the same filter from the
//! same text, and an answer that does not depend on who else has a filter.
#![cfg_attr(feature = "fuzzing", no_main)]

use publication::{Fields, Filter, Format};
use wire::events::{FILTER_BYTES_MAX, FILTER_NODES_MAX};

fuzz::target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |&byte| byte == 0);
    let (text, event) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(filter) = Filter::parse(text) else { return };
    assert!(filter.cost() <= FILTER_NODES_MAX && filter.text().len() <= FILTER_BYTES_MAX);
    assert_eq!(Filter::parse(filter.text()).as_ref(), Ok(&filter));
    let layout = Format::parse("layout a.b:i16@0 c:f32be@2 d:text[4]@6").expect("it is a format");
    for format in [Format::Json, Format::Cbor, layout] {
        let alone = filter.passes_event(&format, event);
        if let Ok(other) = Filter::parse("a.b == 1 || has(c)") {
            let fields = Fields::read(&format, event, &[&other, &filter]);
            assert_eq!(filter.passes(&fields), alone);
        }
    }
});
