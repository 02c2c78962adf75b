//! The kernel and the hypervisor: the only room where `unsafe` may live.
