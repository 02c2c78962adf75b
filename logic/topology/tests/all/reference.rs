//! The reference page names every key with its default and its bounds, and every error.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::Path;

use serde_json::Value;
use topology::Code;

const PAGE: &str = include_str!("../../../../docs/topology.md");

/// The lines below the heading `name`, up to the next heading.
fn section(name: &str) -> Vec<&'static str> {
    let is_heading = |line: &&str| line.starts_with('#');
    let mut lines =
        PAGE.lines().skip_while(|line| !is_heading(line) || line.trim_start_matches('#').trim() != name);
    assert!(lines.next().is_some(), "docs/topology.md has no heading `{name}`");
    lines.take_while(|line| !is_heading(line)).collect()
}

/// The tables of the file with their names: the file's own, and those that it refers to.
fn tables(schema: &Value) -> Vec<(String, &Value)> {
    let definitions = schema["$defs"].as_object().unwrap();
    let mut tables: Vec<_> = definitions.iter().map(|(name, table)| (name.clone(), table)).collect();
    tables.push(("Topology".to_owned(), schema));
    tables
}

#[test]
fn every_key_has_its_row() {
    let schema = topology::schema();
    let tables = tables(&schema);
    assert!(tables.len() > 10);
    for (name, table) in tables {
        let section = section(&name);
        let properties = table["properties"].as_object().unwrap();
        for (key, property) in properties {
            let row = section.iter().find(|line| line.starts_with(&format!("| `{key}` |")));
            let row =
                row.unwrap_or_else(|| panic!("section {name} of docs/topology.md has no row for `{key}`"));
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            check_default(&name, key, table, property, cells[3]);
            check_bounds(&name, key, property, cells[4]);
        }
        let rows = section.iter().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, properties.len(), "section {name} has a row for a key that there isn't");
    }
}

fn check_default(name: &str, key: &str, table: &Value, property: &Value, cell: &str) {
    let required = table["required"].as_array().is_some_and(|keys| keys.iter().any(|other| other == key));
    assert_eq!(required, cell == "must be there", "{name}.{key}: {cell}");
    if let Some(default) = property.get("default") {
        assert_eq!(cell, format!("`{default}`"), "{name}.{key}");
    }
}

fn check_bounds(name: &str, key: &str, property: &Value, cell: &str) {
    let bounds = [("minimum", "maximum"), ("minItems", "maxItems"), ("minProperties", "maxProperties")];
    for (min, max) in bounds {
        if let Some(max) = property.get(max) {
            let (low, high) =
                cell.split_once(" to ").unwrap_or_else(|| panic!("{name}.{key} has no bounds: {cell}"));
            let low_wanted = property.get(min).and_then(Value::as_f64).unwrap_or(low.parse().unwrap());
            assert_eq!(
                (low.parse(), high.parse()),
                (Ok(low_wanted), Ok(max.as_f64().unwrap())),
                "{name}.{key}"
            );
        }
    }
    if let Some(range) = property.get("$comment") {
        assert_eq!(Some(cell), range.as_str(), "{name}.{key}");
    }
}

#[test]
fn every_error_has_its_row() {
    let section = section("Errors");
    let rows: Vec<&str> =
        section.iter().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(rows, codes);
}

#[test]
fn the_examples_of_the_page_are_toml_and_the_first_is_whole() {
    let blocks: Vec<&str> =
        PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() > 3);
    for block in &blocks {
        toml::from_str::<Value>(block).unwrap_or_else(|error| panic!("{error}\n{block}"));
    }
    topology::parse(blocks[0], "topology.md", Path::new("/base")).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_message_of_the_page_is_a_message() {
    let message = include_str!("../broken/domain-unknown-key.txt");
    let shown = message.split("\n\n").next().unwrap();
    assert!(PAGE.contains(shown), "docs/topology.md shows another message than:\n{shown}");
}
