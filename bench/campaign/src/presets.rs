//! Plans that come with the program.

use crate::file;
use crate::plan::Plan;
use topology::Diagnostics;

/// Their names and texts.
pub const ALL: [(&str, &str); 3] = [
    ("quick", include_str!("../presets/quick.toml")),
    ("papers", include_str!("../presets/papers.toml")),
    ("full", include_str!("../presets/full.toml")),
];

/// The text of a preset.
#[must_use]
pub fn text(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A preset as a plan; `None` where there is none of this name, or it is refused.
#[must_use]
pub fn read(name: &str) -> Option<Plan> {
    text(name).and_then(|text| refused_or(name, text).ok())
}

fn refused_or(name: &str, text: &str) -> Result<Plan, Diagnostics> {
    file::read(text, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_preset_is_a_plan_with_its_own_name() {
        for (name, text) in ALL {
            let plan = refused_or(name, text).unwrap_or_else(|refused| panic!("{refused}"));
            assert_eq!(plan.name, name);
        }
        assert_eq!(read("qick"), None);
    }

    #[test]
    fn quick_takes_about_two_minutes() {
        let length = read("quick").expect("a preset").length();
        assert!((Duration::from_secs(80)..Duration::from_secs(140)).contains(&length), "{length:?}");
    }
}
