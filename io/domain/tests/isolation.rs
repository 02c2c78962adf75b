//! The abilities and the view of a container. Each test asks from inside, with ordinary programs.

mod ground;

use domain::{DomainSpec, Ending, Kind, Mount, Network};
use ground::{Ground, ground};

fn asked(ground: &Ground, spec: &DomainSpec) -> String {
    domain::remove_logs(&ground.layout, "dc", &spec.name).expect("remove logs");
    let exit = ground.run(spec);
    let output = ground.output(&spec.name);
    assert_eq!(exit.ending, Ending::Code(0), "{output}");
    output
}

#[test]
fn no_privileges() {
    let Some(ground) = ground() else { return };
    let script = "grep -E '^(Cap|NoNewPrivs|Seccomp):?' /proc/self/status; id -u; cat /proc/self/uid_map";
    let output = asked(&ground, &ground.shell("d", script));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(output.contains(&format!("{set}:\t0000000000000000")), "{output}");
    }
    assert!(output.contains("NoNewPrivs:\t1") && output.contains("Seccomp:\t2"), "{output}");
}

#[test]
fn named_capabilities_reach_a_user_other_than_root() {
    let Some(ground) = ground() else { return };
    for kind in [Kind::Container, Kind::Process] {
        let mut spec = ground.shell("d", "id -u; id -g; grep -E '^(Cap|NoNewPrivs)' /proc/self/status");
        spec.kind = kind;
        spec.user = Some("65534:65534".into());
        spec.capabilities = vec!["CAP_NET_BIND_SERVICE".into()];
        let output = asked(&ground, &spec);
        assert!(output.starts_with("65534\n65534\n"), "{output}");
        for set in ["CapEff", "CapBnd", "CapAmb"] {
            assert!(output.contains(&format!("{set}:\t0000000000000400")), "{kind:?}: {output}");
        }
        assert!(output.contains("NoNewPrivs:\t1"), "{output}");
    }
}

#[test]
fn only_lo_and_it_is_up() {
    let Some(ground) = ground() else { return };
    let output = asked(
        &ground,
        &ground.shell("d", "ls /sys/class/net; busybox ip addr show lo; cat /proc/net/route | wc -l"),
    );
    assert!(output.starts_with("lo\n"), "{output}");
    assert!(output.contains("UP") && output.contains("127.0.0.1/8"), "{output}");
    let mut spec = ground.shell("d", "readlink /proc/self/ns/net");
    let own = asked(&ground, &spec);
    spec.network = Network::Host;
    let hosts = asked(&ground, &spec);
    let here = std::fs::read_link("/proc/self/ns/net").expect("ns");
    assert!(hosts.trim() == here.to_str().expect("text") && own != hosts, "{own} {hosts} {here:?}");
}

#[test]
fn its_own_namespaces() {
    let Some(ground) = ground() else { return };
    let script = "for n in pid mnt ipc uts net cgroup; do readlink /proc/self/ns/$n; done; echo $$; hostname; ls /proc | grep -c '^[0-9]'";
    let mut spec = ground.shell("d", script);
    spec.hostname = Some("island".into());
    let output = asked(&ground, &spec);
    let lines: Vec<&str> = output.lines().collect();
    for (line, name) in lines.iter().zip(["pid", "mnt", "ipc", "uts", "net", "cgroup"]) {
        let here = std::fs::read_link(format!("/proc/self/ns/{name}")).expect("ns");
        assert_ne!(*line, here.to_str().expect("text"));
    }
    assert_eq!(lines[6..8], ["1", "island"]);
    assert!(lines[8].parse::<u32>().expect("a number") < 6, "{output}");
}

#[test]
fn a_read_only_root_without_secrets() {
    let Some(ground) = ground() else { return };
    let script = "for f in /x /usr/x /etc/x /srv/x /run/tombolo/x /var/x; do if touch $f 2>/dev/null; then echo WROTE $f; fi; done
        for d in /tmp /run /home /var/tmp /dev/shm; do touch $d/x || echo CANNOT $d; done
        ls -A /etc /root /home; cat /etc/shadow /etc/gshadow 2>&1; ls /etc/ssh /etc/ssl/private 2>&1; cat /etc/machine-id 2>&1
        ls -A /dev | tr '\\n' ' '; echo; ls -A /srv; mount";
    let output = asked(&ground, &ground.shell("d", script));
    assert!(!output.contains("WROTE") && !output.contains("CANNOT"), "{output}");
    for absent in ["/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/ssl/private", "/etc/machine-id"] {
        assert!(
            output.lines().any(|l| l.contains(absent) && l.contains("No such file")),
            "{absent}: {output}"
        );
    }
    for device in ["sda", "vda", "kmsg", "mem", "fuse", "kvm"] {
        assert!(!output.lines().any(|l| l.split(' ').any(|w| w == device)), "{device}: {output}");
    }
    let run_dir = ground.layout.run_dir.to_str().expect("text");
    assert!(!output.contains(run_dir), "the host's paths show: {output}");
}

#[test]
fn dangerous_calls_are_refused_and_ordinary_programs_run() {
    let Some(ground) = ground() else { return };
    let script = "unshare -U true 2>&1 | head -1; mount -t tmpfs t /mnt 2>&1 | head -1; dmesg 2>&1 | head -1
        busybox true && echo busybox; bash -c 'echo bash <(echo x)' ; getent hosts localhost
        /usr/bin/python3 -c '
import socket, select, os, threading, asyncio, subprocess, mmap
a, b = socket.socketpair(); e = select.epoll(); e.register(a); b.send(b\"x\"); assert e.poll(5)
os.memfd_create(\"m\"); t = threading.Thread(target=lambda: None); t.start(); t.join()
asyncio.run(asyncio.sleep(0)); subprocess.run([\"true\"], check=True)
try: socket.socket(38, socket.SOCK_SEQPACKET)
except OSError as error: print(\"AF_ALG\", error.errno)
print(\"python\")'";
    let output = asked(&ground, &ground.shell("d", script));
    assert!(
        output.contains("busybox\n") && output.contains("bash /dev/fd/") && output.contains("python\n"),
        "{output}"
    );
    assert!(output.contains("unshare failed: Operation not permitted"), "{output}");
    assert!(output.contains("AF_ALG 1\n") && output.contains("localhost"), "{output}");
}

#[test]
fn our_own_binary_runs_inside() {
    let Some(ground) = ground() else { return };
    let output =
        asked(&ground, &ground.shell("d", "/run/tombolo/tombolo 2>&1; test $? = 2 && ls /run/tombolo"));
    assert!(output.contains("usage: domain-roles") && output.ends_with("tombolo\n"), "{output}");
}

#[test]
fn mounts_are_what_they_say() {
    let Some(ground) = ground() else { return };
    let (shared, readable) = (ground.dir.path().join("shared"), ground.dir.path().join("readable"));
    for dir in [&shared, &readable] {
        std::fs::create_dir(dir).expect("create");
        std::fs::write(dir.join("f"), "content\n").expect("write");
    }
    for kind in [Kind::Container, Kind::Process] {
        let at = ground.dir.path().join(format!("target-{kind:?}"));
        let (one, two) = (at.join("rw"), at.join("ro"));
        if kind == Kind::Process {
            std::fs::create_dir_all(&one).expect("create");
            std::fs::create_dir_all(&two).expect("create");
        }
        let script = format!(
            "cat {0}/f {1}/f && echo new > {0}/from-inside && ! echo new 2>/dev/null > {1}/from-inside && rm {0}/from-inside",
            one.display(),
            two.display()
        );
        let mut spec = ground.shell("d", &script);
        spec.kind = kind;
        spec.mounts = vec![
            Mount { source: shared.clone(), target: one.clone(), read_only: false },
            Mount { source: readable.clone(), target: two.clone(), read_only: true },
        ];
        assert_eq!(asked(&ground, &spec), "content\ncontent\n");
    }
}

#[test]
fn a_process_domain_has_the_machines_view_and_its_own_mounts() {
    let Some(ground) = ground() else { return };
    let script = "readlink /proc/self/ns/pid /proc/self/ns/net /proc/self/ns/mnt; echo $TOMBOLO_CONTROL; cat /etc/resolv.conf; grep CapEff /proc/self/status";
    let mut spec = ground.shell("d", script);
    spec.kind = Kind::Process;
    spec.resolv_conf = Some("nameserver 192.0.2.1\n".into());
    let output = asked(&ground, &spec);
    let here = |n: &str| {
        std::fs::read_link(format!("/proc/self/ns/{n}")).expect("ns").to_string_lossy().into_owned()
    };
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..2], [here("pid"), here("net")]);
    assert_ne!(lines[2], here("mnt"));
    assert!(lines[3].ends_with("/dc/dc/d/inside/control.sock"), "{output}");
    assert_eq!(lines[4], "nameserver 192.0.2.1");
    assert_eq!(lines[5], "CapEff:\t0000000000000000");
    assert!(
        !std::fs::read_to_string("/etc/resolv.conf").expect("resolv.conf").contains("192.0.2.1"),
        "it leaked"
    );
}

#[test]
fn names_users_and_resolv_conf() {
    let Some(ground) = ground() else { return };
    let mut spec = ground.shell(
        "d",
        "cat /etc/resolv.conf /etc/hosts; grep ^hosts: /etc/nsswitch.conf; id -un; echo $HOME $X; pwd; touch /tmp/x /var/tmp/x && echo takes; touch /run/x 2>&1 || true",
    );
    spec.resolv_conf = Some("nameserver 127.0.0.53\n".into());
    spec.environment = vec![("X".into(), "y z".into())];
    spec.user = Some("nobody".into());
    spec.workdir = Some("/tmp".into());
    let output = asked(&ground, &spec);
    for wanted in [
        "nameserver 127.0.0.53\n",
        "127.0.1.1 d\n",
        "hosts: files ",
        "\nnobody\n",
        " y z\n",
        "\n/tmp\ntakes\n",
        "denied\n",
    ] {
        assert!(output.contains(wanted), "{wanted:?}: {output}");
    }
}
