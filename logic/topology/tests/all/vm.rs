//! A virtual machine as the file says it, and as it is admitted.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::{Path, PathBuf};

use topology::{
    Accel, Disk, DiskFormat, DiskHolds, Domain, DomainKind, Found, Machine, MachineKernel, Network, Program,
    Ready, plan,
};

const MIB: u64 = 1 << 20;

fn domain(body: &str) -> Domain {
    let text = format!("name = \"demo\"\n[domain.edge]\nkind = \"vm\"\n{body}");
    let node = |path: &Path| match path.extension().and_then(|extension| extension.to_str()) {
        Some("file") => Found::File,
        _ => Found::Directory,
    };
    let topology = topology::admit(&text, "x.toml", Path::new("/base"), &node);
    topology.unwrap_or_else(|error| panic!("{error}")).domains.remove(0)
}

fn machine(body: &str) -> Machine {
    domain(&format!("machine = {body}\n")).machine.unwrap()
}

#[test]
fn where_nothing_is_said_a_small_machine_is_made_and_bounded() {
    let domain = domain("");
    assert_eq!(domain.kind, DomainKind::Vm);
    assert_eq!(domain.program, Program::Nothing, "only `tombolo exec` runs something");
    assert_eq!((domain.network, domain.hostname.as_deref()), (Network::None, Some("edge")));
    assert_eq!(
        (domain.ready, domain.ready_timeout_ms, domain.stop.timeout_ms),
        (Ready::Started, 60_000, 10_000)
    );
    assert_eq!(domain.limits.memory_bytes, Some(512 * MIB), "the guest's memory and QEMU's");
    let machine = domain.machine.unwrap();
    let expected = Machine {
        cpus: 1,
        memory_bytes: 256 * MIB,
        accel: Accel::Auto,
        kernel: MachineKernel::Built { directory: None },
        append: String::new(),
        boot_timeout_ms: 120_000,
        disk: None,
    };
    assert_eq!(machine, expected);
}

#[test]
fn how_long_it_may_be_silent_is_its_own_time() {
    let quick = domain("machine = { boot_timeout = \"2s\" }\n");
    assert_eq!((quick.machine.unwrap().boot_timeout_ms, quick.ready_timeout_ms), (2_000, 60_000));
    let refused = |time: &str| {
        let text = format!(
            "name = \"demo\"\n[domain.edge]\nkind = \"vm\"\nmachine = {{ boot_timeout = \"{time}\" }}\n"
        );
        topology::parse(&text, "x.toml", Path::new("/base")).unwrap_err().to_string()
    };
    for time in ["0s", "999ms", "61m"] {
        let said = refused(time);
        assert!(said.contains("x.toml:4:") && said.contains("1s") && said.contains("1h"), "{said}");
    }
}

#[test]
fn a_machine_that_was_admitted_before_has_the_time_of_before() {
    let mut text = serde_json::to_value(machine("{}")).unwrap();
    text.as_object_mut().unwrap().remove("boot_timeout_ms");
    assert_eq!(serde_json::from_value::<Machine>(text).unwrap(), machine("{}"));
}

#[test]
fn what_boots_follows_from_what_is_named() {
    let files = machine("{ kernel = \"k.file\", initramfs = \"i.file\" }");
    let kernel = PathBuf::from("/base/k.file");
    assert_eq!(
        files.kernel,
        MachineKernel::Files { kernel: kernel.clone(), initramfs: Some("/base/i.file".into()) }
    );
    assert_eq!(
        machine("{ kernel = \"package\" }").kernel,
        MachineKernel::Built { directory: Some("/base/package".into()) }
    );
    let system = "disk = { path = \"d.file\", format = \"raw\", holds = \"system\" }";
    assert_eq!(machine(&format!("{{ {system} }}")).kernel, MachineKernel::Disk);
    assert_eq!(
        machine(&format!("{{ kernel = \"k.file\", {system} }}")).kernel,
        MachineKernel::Files { kernel, initramfs: None }
    );
    let disk = machine("{ disk = { path = \"d.file\", format = \"qcow2\" } }");
    let expected = Disk {
        path: "/base/d.file".into(),
        format: DiskFormat::Qcow2,
        read_only: false,
        holds: DiskHolds::Root,
    };
    assert_eq!((disk.kernel, disk.disk), (MachineKernel::Built { directory: None }, Some(expected)));
}

#[test]
fn a_guest_has_the_entrances_of_its_own_loopback_whatever_its_network() {
    for network in ["none", "host"] {
        let text = format!(
            "name = \"demo\"\n[domain.edge]\nkind = \"vm\"\nnetwork = \"{network}\"\nservices = {{ dns = \"/srv/dns\" }}\n\
             resolv = {{ search = [\"example\"] }}\n[domain.r]\nkind = \"vm\"\nnetwork = \"host\"\n[service.dns]\n\
             kind = \"directory\"\ndomain = \"r\"\nallow = [{{ domains = [\"edge\"], verbs = [\"resolve\"] }}]\n\
             settings = {{ upstream = [\"192.0.2.53\"] }}\n"
        );
        let topology = topology::parse(&text, "x.toml", Path::new("/base")).unwrap_or_else(|e| panic!("{e}"));
        let mount = &topology.domain("edge").unwrap().services[0];
        assert!(mount.stub && mount.resolve, "{network}");
        let server = topology.domain("r").unwrap();
        assert_eq!((&server.ready, server.ready_timeout_ms), (&Ready::Registered, 60_000));
        assert!(matches!(server.program, Program::Server(_)));
    }
}

#[test]
fn a_time_alone_says_how_long_a_machine_may_take_to_boot() {
    let domain = domain("ready = { timeout = \"5m\" }\n");
    assert_eq!((domain.ready, domain.ready_timeout_ms), (Ready::Started, 300_000));
}

#[test]
fn another_machine_is_a_restart_and_another_limit_is_not() {
    let topology = |body: &str| {
        let text = format!("name = \"demo\"\n[domain.edge]\nkind = \"vm\"\n{body}");
        topology::parse(&text, "x.toml", Path::new("/base")).unwrap()
    };
    let before = topology("");
    let written_out = topology("machine = { cpus = 1, memory = \"256MiB\" }\n");
    assert!(plan(Some(&before), &written_out).is_empty());
    let bigger = topology("machine = { memory = \"512MiB\" }\n");
    assert_eq!(plan(Some(&before), &bigger).to_string(), "restart edge: `machine`, `limits` changed\n");
    let bounded = topology("limits = { cpu = 0.5 }\n");
    assert_eq!(plan(Some(&before), &bounded).to_string(), "update edge while it runs: `limits` changed\n");
}

#[test]
fn what_would_start_says_what_machine_it_is() {
    let text = "name = \"demo\"\n[domain.edge]\nkind = \"vm\"\nnetwork = \"host\"\nmachine = { cpus = 2, accel = \"tcg\", \
                disk = { path = \"d\", format = \"raw\", read_only = true } }\n";
    let topology = topology::parse(text, "x.toml", Path::new("/base")).unwrap();
    let shown = topology::explain(&topology).to_string();
    for line in [
        "edge (vm)",
        "runs     nothing but what `tombolo exec` starts, as the guest's root",
        "files    those of the disk",
        "machine  2 processors, 256MiB, emulated",
        "machine  boots a small system with a kernel that the node has",
        "machine  disk /base/d (raw), read-only",
        "network  outwards, by the node's",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
}
