//! A table of which the file's reader knows nothing: what a program is told that serves a service.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

use crate::bounds::{PROGRAM_SETTINGS_BYTES_MAX, PROGRAM_SETTINGS_DEPTH_MAX};
use crate::diagnostic::{Code, Report};
use crate::read::{Form, Span, table};
use crate::scalar::inline_schema;
use crate::suggest::quoted;

/// Settings of a service of kind `program`: any table, as JSON.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramForm(pub(crate) Map<String, Value>);

impl Form for ProgramForm {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = map(table(value, "settings of a program", span, out)?, 1, out)?;
        let bytes = serde_json::to_vec(&read).map_or(usize::MAX, |json| json.len());
        if bytes > PROGRAM_SETTINGS_BYTES_MAX {
            let message = format!(
                "these settings have {bytes} bytes as JSON; a program is told {PROGRAM_SETTINGS_BYTES_MAX} at the most"
            );
            out.error(Code::TooMany, span, message)
                .help("let the program read a file, and say here which: config = \"/etc/...\"");
            return None;
        }
        Some(Self(read))
    }
}

inline_schema!(ProgramForm, |_generator| json_schema!({ "type": "object" }));

/// A table at some depth; the outermost one is at 1.
fn map(table: &DeTable<'_>, depth: usize, out: &mut Report<'_>) -> Option<Map<String, Value>> {
    let read = table.iter().map(|(key, value)| {
        let read = json(value.get_ref(), &value.span(), depth, out)?;
        Some((str::to_owned(AsRef::<str>::as_ref(key.get_ref())), read))
    });
    // All of it is read, so that everything is reported at once.
    read.collect::<Vec<_>>().into_iter().collect()
}

fn json(value: &DeValue<'_>, span: &Span, depth: usize, out: &mut Report<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::String(text.to_string())),
        DeValue::Boolean(read) => Some(Value::Bool(*read)),
        // JSON has no dates.
        DeValue::Datetime(date) => Some(Value::String(date.to_string())),
        DeValue::Integer(integer) => {
            // TOML says that integers have 64 bits with a sign.
            let read = i64::from_str_radix(integer.as_str(), integer.radix());
            read.map(Value::from).map_err(|_| out_of_range(integer.as_str(), "64 bits", span, out)).ok()
        }
        DeValue::Float(float) => {
            let read = float.as_str().parse().ok().and_then(Number::from_f64);
            if read.is_none() {
                out_of_range(float.as_str(), "JSON", span, out);
            }
            read.map(Value::Number)
        }
        DeValue::Array(_) | DeValue::Table(_) if depth >= PROGRAM_SETTINGS_DEPTH_MAX => {
            let message = format!(
                "more than {PROGRAM_SETTINGS_DEPTH_MAX} tables and lists within each other can't be here"
            );
            out.error(Code::TooMany, span, message).help("let the program read a file of its own");
            None
        }
        DeValue::Array(array) => {
            let items = array.iter().map(|item| json(item.get_ref(), &item.span(), depth + 1, out));
            items.collect::<Vec<_>>().into_iter().collect::<Option<_>>().map(Value::Array)
        }
        DeValue::Table(table) => map(table, depth + 1, out).map(Value::Object),
    }
}

fn out_of_range(number: &str, of: &str, span: &Span, out: &mut Report<'_>) {
    let message = format!("{} can't be told to a program: it is no number of {of}", quoted(number));
    out.error(Code::OutOfRange, span, message).help("write it as a text");
}
