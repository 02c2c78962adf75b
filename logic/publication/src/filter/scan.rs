//! The fields of an event that filters look at: the event is read once for all of them, and only
//! these are kept.

use super::{Filter, Format, cbor};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// The value of a field. Lists and objects have none that could be compared, and are
/// [`Value::Other`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'e> {
    Null,
    Bool(bool),
    Number(f64),
    Text(Cow<'e, str>),
    Other,
}

impl Value<'_> {
    fn lent(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(value) => Value::Number(*value),
            Self::Text(text) => Value::Text(Cow::Borrowed(text)),
            Self::Other => Value::Other,
        }
    }
}

/// The fields of one event.
#[derive(Debug, Default)]
pub struct Fields<'e> {
    found: Vec<(&'e [String], Value<'e>)>,
    is_readable: bool,
}

impl<'e> Fields<'e> {
    /// Reads those fields of an event that these filters look at. An event that is not of its
    /// channel's format has none, or of a layout those for which it is long enough.
    #[must_use]
    pub fn read(format: &Format, event: &'e [u8], filters: &[&'e Filter]) -> Self {
        let mut wanted: Vec<&'e [String]> = Vec::new();
        for filter in filters {
            for path in filter.fields() {
                if !wanted.contains(&path.as_slice()) {
                    wanted.push(path);
                }
            }
        }
        match format {
            Format::Json => Self::read_json(event, &wanted),
            Format::Cbor => cbor::read(event, &wanted)
                .map_or_else(Self::default, |found| Self { found, is_readable: true }),
            Format::Layout(layout) => {
                let found = wanted.into_iter().filter_map(|path| Some((path, layout.value(path, event)?)));
                Self { found: found.collect(), is_readable: layout.fits(event) }
            }
        }
    }

    fn read_json(event: &'e [u8], wanted: &[&'e [String]]) -> Self {
        let mut fields = Self::default();
        let mut from = serde_json::Deserializer::from_slice(event);
        let seed =
            Within { wanted, depth: 0, found: &mut fields.found, is_object: Some(&mut fields.is_readable) };
        let read = seed.deserialize(&mut from).and_then(|_| from.end());
        if read.is_err() || !fields.is_readable {
            return Self::default();
        }
        fields
    }

    /// Whether the event was of its channel's format.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.is_readable
    }

    pub(super) fn get(&self, path: &[String]) -> Option<Value<'_>> {
        // The last of two fields of one name counts, as in most readers of JSON.
        self.found.iter().rev().find(|(found, _)| *found == path).map(|(_, value)| value.lent())
    }
}

/// A value at some depth, of which these paths begin with the names that led to it.
struct Within<'w, 'e> {
    wanted: &'w [&'e [String]],
    depth: usize,
    found: &'w mut Vec<(&'e [String], Value<'e>)>,
    is_object: Option<&'w mut bool>,
}

impl<'e> Within<'_, 'e> {
    /// The path that ends here, if one does.
    fn here(&self) -> Option<&'e [String]> {
        self.wanted.iter().copied().find(|path| path.len() == self.depth)
    }

    fn keep(self, value: Value<'e>) {
        if let Some(path) = self.here().filter(|path| !path.is_empty()) {
            self.found.push((path, value));
        }
    }
}

impl<'e> DeserializeSeed<'e> for Within<'_, 'e> {
    type Value = ();

    fn deserialize<D: Deserializer<'e>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'e> Visitor<'e> for Within<'_, 'e> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.keep(Value::Null);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.keep(Value::Bool(value));
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers are compared as JSON's readers do: as f64")]
    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.keep(Value::Number(value as f64));
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "as above")]
    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.keep(Value::Number(value as f64));
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.keep(Value::Number(value));
        Ok(())
    }

    fn visit_borrowed_str<E>(self, text: &'e str) -> Result<(), E> {
        self.keep(Value::Text(Cow::Borrowed(text)));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.keep(Value::Text(Cow::Owned(text.to_owned())));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'e>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        self.keep(Value::Other);
        Ok(())
    }

    fn visit_map<A: MapAccess<'e>>(self, mut entries: A) -> Result<(), A::Error> {
        let Within { wanted, depth, found, is_object } = self;
        if let Some(is_object) = is_object {
            *is_object = true;
        }
        if let Some(path) = wanted.iter().copied().find(|path| path.len() == depth && depth > 0) {
            found.push((path, Value::Other));
        }
        let mut below = Vec::new();
        while let Some(name) = entries.next_key::<Cow<'e, str>>()? {
            below.clear();
            let leads = |path: &&&[String]| path.get(depth).is_some_and(|step| *step == name);
            below.extend(wanted.iter().filter(leads));
            if below.is_empty() {
                entries.next_value::<IgnoredAny>()?;
            } else {
                let seed = Within { wanted: &below, depth: depth + 1, found: &mut *found, is_object: None };
                entries.next_value_seed(seed)?;
            }
        }
        Ok(())
    }
}
