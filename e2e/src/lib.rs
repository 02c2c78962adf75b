//! Tests that run the real thing: containers, name servers, faults.
