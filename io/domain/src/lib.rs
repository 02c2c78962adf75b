//! Domains of kind process and container: creation, supervision, logs, exec, clean-up.
