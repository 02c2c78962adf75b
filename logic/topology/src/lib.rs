//! The topology file: parsing, validation, admission and the plan that follows from it.
