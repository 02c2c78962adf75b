//! The file's JSON schema, for editors and other programs.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::file::TopologyForm;
use crate::model::ServiceKind;

/// The JSON schema (draft 2020-12) of a topology file, made from the types that read it.
///
/// It knows types, keys, words, patterns and bounds of counts. It doesn't know what values mean
/// together: which names exist, which keys exclude each other, how long a duration is.
/// [`crate::parse`] does.
#[must_use]
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<TopologyForm>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), json!("Tombolo topology file"));
        root.insert("x-tombolo-version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
    }
    if let Some(service) = schema.pointer_mut("/$defs/Service").and_then(Value::as_object_mut) {
        let settings = |form: &str| json!({ "settings": { "$ref": format!("#/$defs/{form}") } });
        let directory = json!({ "properties": settings("Directory"), "required": ["settings"] });
        let camera = json!({ "properties": settings("Cameras"), "required": ["settings"] });
        let location = json!({ "properties": settings("Location"), "required": ["settings"] });
        let channel = json!({ "properties": settings("Channel") });
        let socket = json!({ "properties": settings("Socket"), "required": ["to"] });
        let coordination = json!({ "properties": settings("Coordination") });
        let events = json!({ "properties": settings("Events") });
        let files = json!({ "properties": settings("Files") });
        service.insert(
            "allOf".to_owned(),
            json!([
                of_kind(ServiceKind::Directory, directory),
                of_kind(ServiceKind::Channel, channel),
                of_kind(ServiceKind::Program, json!({ "properties": { "settings": { "type": "object" } } })),
                of_kind(ServiceKind::Socket, socket),
                of_kind(ServiceKind::Coordination, coordination),
                of_kind(ServiceKind::Events, events),
                of_kind(ServiceKind::Camera, camera),
                of_kind(ServiceKind::Location, location),
                of_kind(ServiceKind::Files, files),
            ]),
        );
    }
    schema
}

/// The rule for services of one kind: their settings are `then`'s, their verbs those of the kind,
/// if it has any.
fn of_kind(kind: ServiceKind, mut then: Value) -> Value {
    if let Some(verbs) = kind.verbs() {
        let verbs: Vec<&str> = verbs.iter().map(crate::model::Verb::as_str).collect();
        then["properties"]["allow"] =
            json!({ "items": { "properties": { "verbs": { "items": { "enum": verbs } } } } });
    }
    json!({
        "if": { "properties": { "kind": { "const": kind.as_str() } }, "required": ["kind"] },
        "then": then,
    })
}
