//! The names of services, as domains can have them.

use crate::Report;
use crate::tree::Entry;
use std::collections::BTreeMap;
use topology::Name;

/// Domains by the names of their services.
pub(crate) struct Names(BTreeMap<String, String>);

impl Names {
    /// Finds a name for each service.
    pub fn of(services: &[Entry], report: &mut Report) -> Self {
        let mut names = BTreeMap::new();
        for entry in services {
            let key = format!("services.{}", entry.key);
            match fitting(&entry.key) {
                None => report.refuse(
                    entry.line,
                    &key,
                    "a domain's name has small letters, digits and hyphens, 32 at the most: rename it",
                ),
                Some(name) if names.values().any(|taken| *taken == name) => {
                    report.refuse(
                        entry.line,
                        &key,
                        &format!("another service would be called {name}, too: rename it"),
                    );
                }
                Some(name) => {
                    if name != entry.key {
                        report.note(entry.line, &key, &format!("the domain is called {name}"));
                    }
                    names.insert(entry.key.clone(), name);
                }
            }
        }
        Self(names)
    }

    pub fn get(&self, service: &str) -> Option<&str> {
        self.0.get(service).map(String::as_str)
    }
}

/// The name itself, or one that differs by capitals, `_` and `.` alone.
pub(crate) fn fitting(text: &str) -> Option<String> {
    let name = text.to_ascii_lowercase().replace(['_', '.'], "-");
    Name::parse(&name).ok().map(|name| name.as_str().to_owned())
}
