//! Plans: many subjects in many surroundings, measured by the core of the bench, judged, and
//! reported.
//!
//! A [`plan::Plan`] comes from a TOML file ([`file`]) or a preset ([`presets`]). [`run`] measures
//! it and writes each repetition down ([`record`]). [`analysis`] says what the launches support,
//! [`page`] shows it, and [`compare`] holds two runs against each other. Workers, transports,
//! histograms and estimates are those of `bench` and `statistics`; here is nothing that measures.

pub mod adapter;
pub mod analysis;
pub mod compare;
mod container;
pub mod file;
pub mod page;
pub mod plan;
pub mod presets;
pub mod record;
pub mod run;
mod stage;
pub mod subject;
mod svg;
