//! The frontend of a domain: its services as files, by a FUSE session of our own.
