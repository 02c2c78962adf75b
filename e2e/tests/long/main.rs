//! What boots a machine for minutes: `make test-long` runs it, `make test` counts it as left out.

mod guest;
mod tipc;
