//! The directory service: names in, answers out.
