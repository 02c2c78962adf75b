//! The end-to-end tests: real containers, a real name server, the release binary.

mod channels;
mod endpoint_bed;
mod endpoint_faults;
mod endpoint_machines;
mod endpoint_pages;
mod endpoints;
mod faults;
mod guest;
mod hostile;
mod languages;
mod machine_channels;
mod machine_conformance;
mod machine_disks;
mod machine_outcomes;
mod machine_quickstart;
mod machine_services;
mod machines;
mod missing;
mod quickstart;
mod roots;
mod views;
