//! The etcd that a cluster stands on: whether a stranger can write into it.
//!
//! What speaks to etcd is `io/registry`; what is kept there is membership's and placement's.

mod protection;

pub(crate) use protection::{ADVICE, host_of, unprotected};
