//! Desired and actual state of a node: a trait and its embedded implementation.
