//! Helpers that tests of this crate share.

use crate::order::{Accel, MachineOrder};
use wire::guest::Boot;

/// A machine of two processors and 128 MiB, without disk and network.
pub(crate) fn order() -> MachineOrder {
    MachineOrder {
        qemu: "/usr/bin/qemu-system-x86_64".into(),
        accel: Accel::Tcg,
        cpus: 2,
        memory_bytes: 128 << 20,
        kernel: Some("/run/machine/kernel".into()),
        initramfs: Some("/run/machine/initramfs".into()),
        append: String::new(),
        disk: None,
        volumes: Vec::new(),
        user_network: false,
        boot_ms: crate::order::BOOT_MS,
        shutdown_ms: 5000,
        boot: Boot {
            version: wire::guest::VERSION,
            dc: "shop".into(),
            domain: "edge".into(),
            hostname: "edge".into(),
            command: vec!["true".into()],
            environment: Vec::new(),
            user: None,
            workdir: None,
            services: false,
            resolv_conf: None,
            stub: false,
            resolve: false,
            network: None,
            root: None,
        },
    }
}
