//! The bytes that another party sees: layouts, codecs, versions. No I/O.

pub mod camera;
pub mod control;
pub mod coordination;
pub mod cover;
pub mod directory;
pub mod events;
pub mod files;
pub mod grants;
pub mod guest;
pub mod ipc;
pub mod lane;
pub mod link;
pub mod loan;
pub mod location;
pub mod meeting;
pub mod movement;
pub mod nbd;
pub mod ninep;
pub mod proxy;
pub mod remote;
pub mod replica;
pub mod ring;
pub mod service;
pub mod socket;
pub mod v4l2;
pub mod xen;
