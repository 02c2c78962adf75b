//! The etcd that a cluster stands on: whether strangers can write into it, and, where it is the
//! cluster's own, the member of it that this node has.
//!
//! `io/registry` speaks to etcd; membership and placement keep their records there. Nothing here
//! knows of nodes other than this one.

mod keeper;
mod program;
mod protection;
mod room;
mod server;

pub(crate) use keeper::{Keeper, Seen};
pub(crate) use program::{
    ADVICE as PROGRAM_ADVICE, RESTORER_ADVICE, find as program, find_restorer as restorer,
};
pub(crate) use protection::{ADVICE, host_of, unprotected};
pub(crate) use room::{Record, Room, client_url, has_ports, peer_url};
pub(crate) use server::{Ground, sweep};
pub use server::{SERVER_ROLE, server_main};
