//! Filters: a small expression over the fields of an event, which is JSON, CBOR, or lies as the
//! channel declares. The cost of each is bounded when it is installed.
//!
//! ```text
//! either     = both *( "||" both )
//! both       = one *( "&&" one )
//! one        = "!" one / "(" either ")" / "has" "(" path ")" / operand [ relation operand / "in" "[" literals "]" ]
//! relation   = "==" / "!=" / "<" / "<=" / ">" / ">="
//! operand    = path / literal
//! literal    = number / string / "true" / "false" / "null"
//! path       = name *( "." name )              ; a name that is none of the words above
//! ```

mod cbor;
mod format;
mod parse;
mod scan;

pub use format::{Format, FormatError, Layout};
pub use scan::Fields;

use scan::Value;
use thiserror::Error;
use wire::events::{FILTER_BYTES_MAX, FILTER_FIELDS_MAX, FILTER_NODES_MAX};

/// Tables, lists and parentheses within each other that a filter may have: what a person writes has
/// three.
const DEPTH_MAX: usize = 16;

/// Why a text is no filter. `at` is the byte at which it is noticed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FilterError {
    /// Longer than [`FILTER_BYTES_MAX`].
    #[error("a filter has {FILTER_BYTES_MAX} bytes at the most; this one has {0}")]
    Long(usize),
    /// More comparisons and connections than [`FILTER_NODES_MAX`].
    #[error("a filter has {FILTER_NODES_MAX} parts at the most: its cost is bounded")]
    Costly,
    /// More different fields than [`FILTER_FIELDS_MAX`].
    #[error("a filter looks at {FILTER_FIELDS_MAX} fields at the most")]
    Fields,
    /// Too deep.
    #[error("more than {DEPTH_MAX} parentheses within each other")]
    Deep,
    /// Something else was expected.
    #[error("at byte {at}: {expected} was expected, and there is {found}")]
    Unexpected {
        /// Where.
        at: usize,
        /// The form that would have been right.
        expected: &'static str,
        /// The text that is there.
        found: String,
    },
    /// A string without its end, or with an escape that JSON does not know.
    #[error("at byte {0}: this string does not end, or has an escape that JSON does not know")]
    Text(usize),
    /// A number that is none.
    #[error("at byte {0}: this is no number")]
    Number(usize),
}

/// How two values stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq)]
enum Operand {
    /// The field of this number in [`Filter::fields`].
    Field(usize),
    Literal(Literal),
}

/// A value in the text of a filter.
#[derive(Debug, Clone, PartialEq)]
enum Literal {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
}

/// One part of a filter; others are named by their place.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    Either(usize, usize),
    Both(usize, usize),
    Not(usize),
    Has(usize),
    /// True where the value is `true`.
    Holds(Operand),
    Compare(Operand, Relation, Operand),
    Among(Operand, Vec<Literal>),
}

/// A filter: it lets an event through or not, and does nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    text: String,
    fields: Vec<Vec<String>>,
    parts: Vec<Part>,
    root: usize,
}

impl Filter {
    /// Reads the text of a filter.
    ///
    /// # Errors
    /// [`FilterError`], with the place and with what would have been right.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let text = text.trim();
        if text.len() > FILTER_BYTES_MAX {
            return Err(FilterError::Long(text.len()));
        }
        let (fields, parts, root) = parse::parse(text)?;
        Ok(Self { text: text.to_owned(), fields, parts, root })
    }

    /// Its text: two filters of one text are one.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns its cost for each event, in parts that are looked at once, each; the event's bytes
    /// are read once beside.
    #[must_use]
    pub fn cost(&self) -> usize {
        let among = |part: &Part| match part {
            Part::Among(_, literals) => literals.len(),
            _ => 1,
        };
        self.parts.iter().map(among).sum()
    }

    /// The paths of the fields that it looks at.
    pub(crate) fn fields(&self) -> &[Vec<String>] {
        &self.fields
    }

    /// Whether an event with these fields passes.
    #[must_use]
    pub fn passes(&self, fields: &Fields<'_>) -> bool {
        self.holds(self.root, fields)
    }

    /// Whether an event of this format and these bytes passes: for filters that are alone.
    #[must_use]
    pub fn passes_event(&self, format: &Format, event: &[u8]) -> bool {
        self.passes(&Fields::read(format, event, &[self]))
    }

    /// The same for JSON.
    #[must_use]
    pub fn passes_bytes(&self, event: &[u8]) -> bool {
        self.passes_event(&Format::Json, event)
    }

    // As deep as the text was: bounded when it was parsed.
    fn holds(&self, at: usize, fields: &Fields<'_>) -> bool {
        match self.parts.get(at) {
            None => false,
            Some(Part::Either(one, other)) => self.holds(*one, fields) || self.holds(*other, fields),
            Some(Part::Both(one, other)) => self.holds(*one, fields) && self.holds(*other, fields),
            Some(Part::Not(one)) => !self.holds(*one, fields),
            Some(Part::Has(field)) => self.value(*field, fields).is_some(),
            Some(Part::Holds(operand)) => matches!(self.operand(operand, fields), Some(Value::Bool(true))),
            Some(Part::Compare(one, relation, other)) => {
                match (self.operand(one, fields), self.operand(other, fields)) {
                    (Some(one), Some(other)) => compare(&one, *relation, &other),
                    // What is not there stands in no relation to anything.
                    _ => false,
                }
            }
            Some(Part::Among(operand, literals)) => self.operand(operand, fields).is_some_and(|value| {
                literals.iter().any(|literal| compare(&value, Relation::Equal, &literal.value()))
            }),
        }
    }

    fn value<'v>(&self, field: usize, fields: &'v Fields<'_>) -> Option<Value<'v>> {
        fields.get(self.fields.get(field)?)
    }

    fn operand<'v>(&'v self, operand: &'v Operand, fields: &'v Fields<'_>) -> Option<Value<'v>> {
        match operand {
            Operand::Field(field) => self.value(*field, fields),
            Operand::Literal(literal) => Some(literal.value()),
        }
    }
}

impl Literal {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(value) => Value::Number(*value),
            Self::Text(text) => Value::Text(text.as_str().into()),
        }
    }
}

/// Values of two kinds are unequal, and neither is less.
fn compare(one: &Value<'_>, relation: Relation, other: &Value<'_>) -> bool {
    use std::cmp::Ordering;
    let order = match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.partial_cmp(other),
        (Value::Text(one), Value::Text(other)) => Some(one.cmp(other)),
        (Value::Bool(one), Value::Bool(other)) => {
            (relation == Relation::Equal || relation == Relation::Unequal).then(|| one.cmp(other))
        }
        (Value::Null, Value::Null) => Some(Ordering::Equal),
        _ => None,
    };
    match relation {
        Relation::Equal => order == Some(Ordering::Equal),
        Relation::Unequal => order != Some(Ordering::Equal),
        Relation::Less => order == Some(Ordering::Less),
        Relation::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Relation::Greater => order == Some(Ordering::Greater),
        Relation::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVENT: &[u8] =
        br#"{"temperature": 31.5, "zone": "b", "on": true, "none": null, "at": {"x": 3, "y": {"z": "q\"\u00e9"}}, "list": [1]}"#;

    #[test]
    fn expressions_say_what_they_look_like() {
        let passes = [
            "temperature > 30 && zone == \"b\"",
            "temperature >= 31.5 && temperature <= 31.5 && !(temperature < 31.5)",
            "zone in [\"a\", \"b\"] || false",
            "on",
            "!off",
            "on == true && none == null",
            "at.x == 3 && at.y.z == \"q\\\"\u{e9}\"",
            "has(at.y) && has(none) && !has(nothing)",
            "zone != 3 && zone != \"a\"",
            "3 < temperature",
            "true || temperature == \"hot\"",
        ];
        for text in passes {
            assert!(Filter::parse(text).unwrap().passes_bytes(EVENT), "{text}");
        }
        let stops = [
            "temperature > 32",
            "zone",
            "nothing == null",
            "nothing != 3",
            "zone < 3",
            "zone > \"b\"",
            "list == 1",
            "at == 3",
            "temperature == \"31.5\"",
            "on > false",
        ];
        for text in stops {
            assert!(!Filter::parse(text).unwrap().passes_bytes(EVENT), "{text}");
        }
        let any = Filter::parse("!has(x)").unwrap();
        for event in [&b""[..], b"no json", b"[1]", b"{\"x\"", b"{\"y\": 1} rest", b"\xff"] {
            assert!(any.passes_bytes(event), "no fields: {event:?}");
        }
    }

    #[test]
    fn what_is_no_filter_is_refused_with_its_place() {
        let refused = |text: &str| Filter::parse(text).unwrap_err().to_string();
        assert_eq!(
            refused("temperature >"),
            "at byte 13: a field or a value was expected, and there is the end"
        );
        assert_eq!(refused("a = 3"), "at byte 2: a relation, as `==` was expected, and there is `=`");
        assert_eq!(refused("(a > 3"), "at byte 6: `)` was expected, and there is the end");
        assert_eq!(refused("a > 3 b"), "at byte 6: the end, `&&` or `||` was expected, and there is `b`");
        assert!(refused("").contains("a field or a value was expected"));
        assert!(refused("a == \"x").contains("this string does not end"));
        assert!(refused("a == 1e").contains("no number"));
        assert!(refused("a in []").contains("was expected"));
        assert!(matches!(Filter::parse(&"(".repeat(100)), Err(FilterError::Deep)));
        assert!(matches!(Filter::parse(&"!".repeat(100)), Err(FilterError::Deep)));
        assert!(matches!(Filter::parse(&"x".repeat(600)), Err(FilterError::Long(600))));
        let many = (0..17).map(|n| format!("f{n}")).collect::<Vec<_>>().join("||");
        assert_eq!(Filter::parse(&many), Err(FilterError::Fields));
        let costly = vec!["a"; 90].join("||");
        assert_eq!(Filter::parse(&costly), Err(FilterError::Costly));
    }

    #[test]
    fn what_it_costs_is_known_beforehand() {
        assert_eq!(Filter::parse("a").unwrap().cost(), 1);
        assert_eq!(Filter::parse("a > 3 && zone in [1, 2, 3]").unwrap().cost(), 5);
    }

    #[test]
    fn events_that_are_bombs_are_read_within_bounds() {
        let filter = Filter::parse("a.a.a == 1").unwrap();
        let deep = [b"{\"a\":".repeat(20_000), b"1".to_vec()].concat();
        assert!(!filter.passes_bytes(&deep));
        assert!(!filter.passes_bytes(&b"[".repeat(60_000)));
        let twice = Filter::parse("a == 2").unwrap();
        assert!(twice.passes_bytes(br#"{"a": 1, "a": 2}"#), "the last of two fields of one name counts");
    }

    proptest! {
        #[test]
        fn no_text_and_no_event_break_it(text in "[a-c0-9.()!&|<>=\" \\[\\],]{0,40}", event in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(filter) = Filter::parse(&text) {
                let _passes = filter.passes_bytes(&event);
                prop_assert!(filter.cost() <= FILTER_NODES_MAX);
                prop_assert_eq!(Filter::parse(filter.text()), Ok(filter));
            }
        }

        #[test]
        fn it_agrees_with_plain_code(temperature in -50_f64..50.0, zone in "[a-c]", wet in any::<bool>()) {
            let event = serde_json::json!({ "zone": zone, "temperature": temperature, "wet": wet }).to_string();
            let filter = Filter::parse("temperature > 30 && zone == \"b\" || !wet && temperature <= 0").unwrap();
            let plain = temperature > 30.0 && zone == "b" || !wet && temperature <= 0.0;
            prop_assert_eq!(filter.passes_bytes(event.as_bytes()), plain);
        }
    }
}
