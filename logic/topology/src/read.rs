//! From TOML to the file's own form: types, known keys, bounds. The meaning of the values together
//! is `admit`'s.
//!
//! A form says three things at once: how it is read, how it is refused, and its JSON schema. So the
//! schema can't promise what the reader refuses.

use std::ops::Range;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Code, Report};
use crate::suggest;

/// Bytes of the file.
pub(crate) type Span = Range<usize>;

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Span,
}

/// One key of a table.
#[derive(Clone, Debug, Default)]
pub(crate) enum Field<T> {
    /// The file doesn't say.
    #[default]
    Absent,
    /// The file says something impossible, which has been reported. Rules that depend on it keep
    /// silent.
    Broken,
    /// The file says this.
    Given(At<T>),
}

impl<T> Field<T> {
    pub(crate) fn given(&self) -> Option<&At<T>> {
        match self {
            Self::Given(at) => Some(at),
            _ => None,
        }
    }

    pub(crate) fn value(&self) -> Option<&T> {
        self.given().map(|at| &at.value)
    }

    pub(crate) fn map<U>(self, to: impl FnOnce(T) -> U) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::Broken => Field::Broken,
            Self::Given(At { value, span }) => Field::Given(At { value: to(value), span }),
        }
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    pub(crate) fn is_broken(&self) -> bool {
        matches!(self, Self::Broken)
    }
}

/// Something that a file can say.
pub(crate) trait Form: JsonSchema + Sized {
    /// The pattern, for the schema, of keys that the file chooses for such a thing.
    const KEYS: &str = crate::name::NAME_PATTERN;
    /// Whether somebody may have written a list of these as one line with spaces.
    const WORDS: bool = false;
    /// Whether a list says each of these once; who admits the list reports it.
    const ONCE: bool = false;

    /// Reads it; `None` when it has been reported.
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self>;
}

/// Returns a person's name for this type of value.
pub(crate) fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Reports a value of the wrong type.
pub(crate) fn wrong_type<T>(
    expected: &str,
    value: &DeValue<'_>,
    span: &Span,
    out: &mut Report<'_>,
) -> Option<T> {
    out.error(Code::WrongType, span, format!("expected {expected}, found {}", type_name(value)));
    None
}

/// The table's keys, or a report that it is none.
pub(crate) fn table<'v, 'i>(
    value: &'v DeValue<'i>,
    what: &str,
    span: &Span,
    out: &mut Report<'_>,
) -> Option<&'v DeTable<'i>> {
    match value {
        DeValue::Table(table) => Some(table),
        other => {
            out.error(
                Code::WrongType,
                span,
                format!("expected a table ({what}), found {}", type_name(other)),
            )
            .help(suggest::as_table(what));
            None
        }
    }
}

/// Reports every key of `table` that is none of `known`. The result are the keys that were meant:
/// they are not missing, too.
pub(crate) fn unknown_keys(
    table: &DeTable<'_>,
    known: &[&'static str],
    what: &str,
    out: &mut Report<'_>,
) -> Vec<&'static str> {
    let mut meant = Vec::new();
    for key in table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
        let word = key.get_ref().as_ref();
        let message = format!("{} is no key of {what}", suggest::quoted(word));
        let (key_meant, help) = suggest::key(what, word, known);
        out.error(Code::UnknownKey, &key.span(), message).help(help);
        meant.extend(key_meant);
    }
    meant
}

/// Reads one key of a table.
pub(crate) fn field<T: Form>(
    table: &DeTable<'_>,
    key: &str,
    meant: &[&str],
    out: &mut Report<'_>,
) -> Field<T> {
    let Some(value) = table.get(key) else {
        return if meant.contains(&key) { Field::Broken } else { Field::Absent };
    };
    match T::read(value.get_ref(), &value.span(), out) {
        Some(read) => Field::Given(At { value: read, span: value.span() }),
        None => Field::Broken,
    }
}

/// Reads one key without which there is no sense.
pub(crate) fn required<T: Form>(
    table: &DeTable<'_>,
    key: &str,
    (what, span): (&str, &Span),
    meant: &[&str],
    out: &mut Report<'_>,
) -> Field<T> {
    let read = field(table, key, meant, out);
    if !read.is_absent() {
        return read;
    }
    out.error(Code::MissingKey, span, format!("`{key}` is missing: {what} must have it"))
        .help(suggest::example(what, key));
    Field::Broken
}

/// Something whose form depends on what stands beside it in the same table.
pub(crate) trait Beside: JsonSchema + Sized {
    /// Reads the key of `table`, whose other keys decide what can be there.
    fn read(
        table: &DeTable<'_>,
        key: &str,
        of: (&str, &Span),
        meant: &[&str],
        out: &mut Report<'_>,
    ) -> Field<Self>;
}

/// A list whose items are all of one form. Whether there are at least `MIN` of them is for who
/// admits the list to report: that message can say what for.
#[derive(Clone, Debug)]
pub(crate) struct Items<T, const MAX: usize, const MIN: usize = 0>(pub(crate) Vec<At<T>>);

impl<T: Form, const MAX: usize, const MIN: usize> Form for Items<T, MAX, MIN> {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let DeValue::Array(array) = value else {
            out.error(Code::WrongType, span, format!("expected a list, found {}", type_name(value)))
                .help(suggest::as_list(value, T::WORDS));
            return None;
        };
        if array.len() > MAX {
            out.error(
                Code::TooMany,
                span,
                format!("at most {MAX} entries can be here, these are {}", array.len()),
            );
            return None;
        }
        let read = |item: &Spanned<DeValue<'_>>| {
            T::read(item.get_ref(), &item.span(), out).map(|value| At { value, span: item.span() })
        };
        let items: Vec<Option<At<T>>> = array.iter().map(read).collect();
        items.into_iter().collect::<Option<Vec<_>>>().map(Self)
    }
}

impl<T: Form, const MAX: usize, const MIN: usize> JsonSchema for Items<T, MAX, MIN> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Items{MIN}{MAX}{}", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = schemars::json_schema!({
            "type": "array", "maxItems": MAX, "items": generator.subschema_for::<T>()
        });
        if MIN > 0 {
            schema.insert("minItems".into(), MIN.into());
        }
        if T::ONCE {
            schema.insert("uniqueItems".into(), true.into());
        }
        schema
    }
}

/// A table whose keys the file chooses, in the order of the file.
#[derive(Clone, Debug)]
pub(crate) struct Named<T, const MAX: usize>(pub(crate) Vec<Entry<T>>);

/// One entry of a [`Named`] table.
#[derive(Clone, Debug)]
pub(crate) struct Entry<T> {
    pub(crate) key: At<String>,
    /// `None` when it has been reported.
    pub(crate) value: Option<At<T>>,
}

impl<T, const MAX: usize> Named<T, MAX> {
    pub(crate) fn get(&self, key: &str) -> Option<&Entry<T>> {
        self.0.iter().find(|entry| entry.key.value == key)
    }
}

impl<T: Form, const MAX: usize> Form for Named<T, MAX> {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let table = table(value, "names and what they stand for", span, out)?;
        if table.len() > MAX {
            out.error(
                Code::TooMany,
                span,
                format!("at most {MAX} entries can be here, these are {}", table.len()),
            );
            return None;
        }
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let read = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| Entry {
            key: At { value: str::to_owned(AsRef::<str>::as_ref(key.get_ref())), span: key.span() },
            value: T::read(value.get_ref(), &value.span(), out)
                .map(|read| At { value: read, span: value.span() }),
        };
        Some(Self(entries.into_iter().map(read).collect()))
    }
}

impl<T: Form, const MAX: usize> JsonSchema for Named<T, MAX> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Named{MAX}{}", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "type": "object", "maxProperties": MAX, "propertyNames": { "pattern": T::KEYS },
            "additionalProperties": generator.subschema_for::<T>()
        })
    }
}

/// Declares a table of the file: its keys, their forms, what they mean, and which must be there
/// (`required`), may be (`optional`), depend on others (`beside`), or have a default.
macro_rules! table_form {
    ($( #[doc = $doc:literal] )+ $name:ident as $what:literal {
        $( $( #[doc = $field_doc:literal] )+ $field:ident : $type:ty => $need:tt, )*
    }) => {
        $( #[doc = $doc] )+
        #[derive(Clone, Debug, Default)]
        pub(crate) struct $name {
            $( $( #[doc = $field_doc] )+ pub(crate) $field: $crate::read::Field<$type>, )*
        }

        impl $crate::read::Form for $name {
            fn read(
                value: &toml::de::DeValue<'_>,
                span: &$crate::read::Span,
                out: &mut $crate::diagnostic::Report<'_>,
            ) -> Option<Self> {
                let table = $crate::read::table(value, $what, span, out)?;
                let meant = $crate::read::unknown_keys(table, &[$( stringify!($field) ),*], $what, out);
                Some(Self {
                    $( $field: $crate::read::table_form!(@read $need, table, stringify!($field), ($what, span), &meant, out), )*
                })
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).trim_end_matches("Form").trim_end_matches("Table").into()
            }
            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let mut properties = serde_json::Map::new();
                let needs = [$( (stringify!($field), stringify!($need)) ),*];
                let required: Vec<_> = needs.iter().filter(|(_, need)| *need == "required").map(|(key, _)| key).collect();
                $(
                    let mut schema = generator.subschema_for::<$type>();
                    let text = [$( $field_doc.trim() ),+].join(" ");
                    schema.insert("description".into(), text.into());
                    $crate::read::table_form!(@note $need, schema);
                    properties.insert(stringify!($field).into(), schema.to_value());
                )*
                let description = [$( $doc.trim() ),+].join(" ");
                schemars::json_schema!({
                    "type": "object",
                    "description": description,
                    "properties": properties,
                    "required": required,
                    "additionalProperties": false,
                })
            }
        }
    };
    (@read required, $table:ident, $key:expr, $what:expr, $meant:expr, $out:ident) => {
        $crate::read::required($table, $key, $what, $meant, $out)
    };
    (@read beside, $table:ident, $key:expr, $what:expr, $meant:expr, $out:ident) => {
        $crate::read::Beside::read($table, $key, $what, $meant, $out)
    };
    (@read $other:tt, $table:ident, $key:expr, $what:expr, $meant:expr, $out:ident) => {
        $crate::read::field($table, $key, $meant, $out)
    };
    (@note required, $schema:ident) => {};
    (@note optional, $schema:ident) => {};
    (@note beside, $schema:ident) => {};
    (@note $default:tt, $schema:ident) => {
        $schema.insert("default".into(), serde_json::json!($default));
    };
}
pub(crate) use table_form;
