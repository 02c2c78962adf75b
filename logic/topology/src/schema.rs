//! The file's JSON schema, for editors and other programs.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::file::TopologyForm;

/// The JSON schema (draft 2020-12) of a topology file, made from the types that read it.
///
/// It knows types, keys, words, patterns and bounds of counts. It doesn't know what values mean together: which names
/// exist, which keys exclude each other, how long a duration is. [`crate::parse`] does.
#[must_use]
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<TopologyForm>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), json!("Tombolo topology file"));
        root.insert("x-tombolo-version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
    }
    schema
}
