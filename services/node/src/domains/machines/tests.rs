//! The file's settings of a machine, as the machine process finds them.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use super::*;
use std::os::unix::fs::PermissionsExt;
use topology::Topology;

fn layout() -> Layout {
    Layout {
        run_dir: "/r".into(),
        state_dir: "/s".into(),
        cgroup_name: "t".into(),
        program: "/usr/bin/tombolo".into(),
    }
}

fn topology(body: &str) -> Topology {
    let text = format!("name = \"shop\"\n[domain.edge]\nkind = \"vm\"\n{body}");
    topology::parse(&text, "x.toml", Path::new("/base")).unwrap()
}

fn found() -> Found {
    Found {
        qemu: "/usr/bin/qemu-system-x86_64".into(),
        accel: machine::Accel::Tcg,
        built: Some(("/s/guests/a/kernel".into(), "/s/guests/a/initramfs".into())),
    }
}

fn made(body: &str) -> (DomainSpec, MachineOrder) {
    let topology = topology(body);
    let spec = crate::domains::spec::of_domain(&layout(), &topology, &topology.domains[0], Some(&found()));
    let order: MachineOrder = serde_json::from_value(spec.machine.as_ref().unwrap().order.clone()).unwrap();
    (spec, order)
}

#[test]
fn a_small_machine_is_a_container_without_anything_that_boots_what_the_node_made() {
    let (spec, order) = made("command = [\"sh\"]\nuser = \"nobody\"\n");
    spec.check().unwrap();
    order.check().unwrap();
    assert_eq!(spec.command, ["/run/tombolo/tombolo", "machine"]);
    assert!(
        spec.capabilities.is_empty() && spec.user.is_none() && !spec.writable && !spec.machine.unwrap().kvm
    );
    assert_eq!(spec.network, target::Network::None);
    let sources: Vec<_> = spec.mounts.iter().map(|m| (m.source.to_str().unwrap(), m.read_only)).collect();
    assert_eq!(sources, [("/s/guests/a/kernel", true), ("/s/guests/a/initramfs", true)]);
    assert_eq!(order.kernel.as_deref(), Some(Path::new(KERNEL)));
    assert_eq!((order.boot.command, order.boot.user), (vec!["sh".to_owned()], Some("nobody".to_owned())));
    assert_eq!((order.boot.network, order.user_network, order.boot.root), (None, false, None));
}

#[test]
fn a_disk_and_the_network_of_the_node_reach_the_guest() {
    let (spec, order) = made(
        "network = \"host\"\nmachine = { accel = \"kvm\", disk = { path = \"d.qcow2\", format = \"qcow2\" } }\n",
    );
    assert!(spec.machine.unwrap().kvm);
    assert_eq!(spec.network, target::Network::Host, "QEMU reaches what the guest reaches");
    let disk = spec.mounts.last().unwrap();
    assert_eq!((disk.source.as_path(), disk.read_only), (Path::new("/base/d.qcow2"), false));
    assert_eq!(order.disk.unwrap().format, DiskFormat::Qcow2);
    assert_eq!(order.boot.root.unwrap().device, "/dev/vda");
    assert_eq!(order.boot.network.unwrap().gateway, "10.0.2.2");
    assert!(order.user_network && order.boot.command.is_empty());
}

#[test]
fn a_later_daemon_finds_what_the_earlier_one_found_and_so_the_same_machine() {
    for body in ["", "machine = { kernel = \"k\", initramfs = \"i\" }\n"] {
        let topology = topology(body);
        let running =
            crate::domains::spec::of_domain(&layout(), &topology, &topology.domains[0], Some(&found()));
        let again = Found::of(&running).unwrap();
        assert_eq!(
            crate::domains::spec::of_domain(&layout(), &topology, &topology.domains[0], Some(&again)),
            running
        );
    }
    let elsewhere = Found { qemu: "/opt/qemu-system-x86_64".into(), ..found() };
    let topology = topology("");
    let running =
        crate::domains::spec::of_domain(&layout(), &topology, &topology.domains[0], Some(&elsewhere));
    assert!(running.mounts.iter().any(|mount| mount.source == elsewhere.qemu));
    assert_eq!(Found::of(&running), Some(elsewhere));
    let container = DomainSpec::new("shop", "web", target::Kind::Container, &["true"]);
    assert_eq!(Found::of(&container), None);
}

#[test]
fn kvm_is_taken_where_a_guest_runs_and_refused_where_it_was_asked_for_and_does_not() {
    let bad = Err("a guest under it does not run".to_owned());
    assert_eq!(decide(Accel::Auto, &Ok(())), Ok(machine::Accel::Kvm));
    assert_eq!(decide(Accel::Auto, &bad), Ok(machine::Accel::Tcg));
    assert_eq!(decide(Accel::Tcg, &Ok(())), Ok(machine::Accel::Tcg));
    assert_eq!(decide(Accel::Kvm, &Ok(())), Ok(machine::Accel::Kvm));
    let refusal = decide(Accel::Kvm, &bad).unwrap_err();
    assert!(refusal.contains("does not run; take `accel = \"auto\"`"), "{refusal}");
}

#[test]
fn a_file_that_only_a_privileged_root_could_open_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, "").unwrap();
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o400);
    assert_eq!(check_file(&path, 0o4, "read"), Ok(()));
    let refusal = check_file(&path, 0o6, "read and written").unwrap_err();
    assert!(refusal.contains("chown root") && refusal.contains("disk"), "{refusal}");
    mode(0o600);
    assert_eq!(check_file(&path, 0o6, "read and written"), Ok(()));
}
