//! Endpoints of a distributed container for programs that wait with tokio.
