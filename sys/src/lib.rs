//! The kernel and the hypervisor: the only room where `unsafe` may live.
//!
//! Thin: each function is one or two system calls with what they need to be safe, and no policy.

pub mod aside;
pub mod beneath;
mod bpf;
pub mod channel_abi;
pub mod clock;
pub mod credentials;
pub mod datagrams;
pub mod descriptors;
pub mod doorbell;
pub mod endpoint_abi;
pub mod ethernet;
pub mod eventfd;
pub mod fork;
pub mod fuse_backing;
pub mod futex;
pub mod key;
pub mod known;
#[cfg(target_arch = "x86_64")]
pub mod kvm;
pub mod membarrier;
pub mod memfd;
pub mod message_queue;
pub mod mount;
pub mod name_abi;
pub mod namespace;
pub mod packet_class;
pub mod privilege;
pub mod process;
pub mod processor;
pub mod region;
pub mod register;
pub mod resolver;
pub mod schedule;
pub mod service_abi;
pub mod signals;
pub mod socket_priority;
pub mod tap;
pub mod tipc;
pub mod tree;
pub mod unsent;
pub mod vfio;
pub mod view;
pub mod wake;
pub mod xen;
