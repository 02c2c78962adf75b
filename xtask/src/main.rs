//! Chores of the repository that want a program.
fn main() {}
