//! One binary, many roles.
fn main() {}
