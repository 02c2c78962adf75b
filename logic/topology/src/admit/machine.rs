//! The rules of a virtual machine.

use std::path::PathBuf;

use super::Context;
use crate::bounds::*;
use crate::diagnostic::Code;
use crate::file::{self, DiskForm, DomainForm, MachineForm, RootForm};
use crate::look::Found;
use crate::model::{Accel, Disk, DiskFormat, DiskHolds, Domain, DomainKind, Limits, Machine, MachineKernel};
use crate::read::{At, Field, Span};
use crate::scalar::{Filled, size_text};

/// Memory is given to a guest in such pieces.
const MEMORY_STEP: u64 = 1 << 20;

/// The machine of a domain of kind `vm`; `None` for others, which can't have one.
pub(super) fn machine(kind: DomainKind, form: &DomainForm, cx: &mut Context<'_, '_>) -> Option<Machine> {
    if kind != DomainKind::Vm {
        if let Field::Given(at) = &form.machine
            && !form.kind.is_broken()
        {
            cx.out
                .error(Code::WrongKind, &at.span, format!("a {} has no machine of its own", kind.as_str()))
                .help("leave it out, or take kind = \"vm\"; limits = { cpu = 0.5, memory = \"64MiB\" } bounds any domain");
        }
        return None;
    }
    let absent = MachineForm::default();
    let machine = form.machine.value().unwrap_or(&absent);
    let disk = machine.disk.value().map(|disk| self::disk(disk, cx));
    let kernel = kernel(machine, disk.as_ref(), cx);
    Some(Machine {
        cpus: machine.cpus.value().map_or(MACHINE_CPUS_DEFAULT, |count| count.0),
        memory_bytes: memory(machine, cx),
        accel: machine.accel.value().copied().unwrap_or(Accel::Auto),
        append: append(machine, &kernel, cx),
        boot_timeout_ms: machine.boot_timeout.value().map_or(MACHINE_BOOT_MS_DEFAULT, |millis| millis.0),
        kernel,
        disk,
    })
}

fn memory(machine: &MachineForm, cx: &mut Context<'_, '_>) -> u64 {
    let Some(at) = machine.memory.given() else { return MACHINE_MEMORY_DEFAULT };
    let bytes = at.value.0;
    if !bytes.is_multiple_of(MEMORY_STEP) {
        let near = bytes.next_multiple_of(MEMORY_STEP);
        cx.out
            .error(Code::OutOfRange, &at.span, "a machine's memory is a whole number of MiB")
            .help(format!("did you mean \"{}\"?", size_text(near)));
    }
    bytes
}

fn disk(form: &DiskForm, cx: &mut Context<'_, '_>) -> Disk {
    let path = form.path.given().map(|at| on_node(at, &[Found::File, Found::Other], "disk image", cx));
    Disk {
        path: path.unwrap_or_default(),
        format: form.format.value().copied().unwrap_or(DiskFormat::Raw),
        read_only: form.read_only.value().copied().unwrap_or(false),
        holds: form.holds.value().copied().unwrap_or(DiskHolds::Root),
    }
}

fn on_node(at: &At<Filled>, wanted: &[Found], words: &str, cx: &mut Context<'_, '_>) -> PathBuf {
    let path = file::on_node(cx.base, &at.value.0);
    cx.must_be_there(&path, &at.span, wanted, words);
    path
}

/// Returns the source of the boot: files, a kernel that the node prepares, or the disk.
fn kernel(machine: &MachineForm, disk: Option<&Disk>, cx: &mut Context<'_, '_>) -> MachineKernel {
    let system = disk.is_some_and(|disk| disk.holds == DiskHolds::System);
    match (&machine.kernel, &machine.initramfs) {
        (Field::Given(kernel), Field::Given(initramfs)) => MachineKernel::Files {
            kernel: on_node(kernel, &[Found::File], "file, as a kernel with an initramfs of its own is", cx),
            initramfs: Some(on_node(initramfs, &[Found::File], "file", cx)),
        },
        (Field::Given(kernel), Field::Absent) => alone(kernel, system, cx),
        (Field::Absent, Field::Given(initramfs)) => {
            cx.out
                .error(Code::MissingKey, &initramfs.span, "an initramfs needs the `kernel` that it was made for")
                .help("add kernel = \"path\", or leave both out: the node makes a small system of a kernel that it has");
            MachineKernel::Built { directory: None }
        }
        (Field::Absent, Field::Absent) if system => MachineKernel::Disk,
        _ => MachineKernel::Built { directory: None },
    }
}

/// A kernel without an initramfs: a package to build from, or the kernel of a system on the disk.
fn alone(kernel: &At<Filled>, system: bool, cx: &mut Context<'_, '_>) -> MachineKernel {
    let path = file::on_node(cx.base, &kernel.value.0);
    if system {
        cx.must_be_there(&path, &kernel.span, &[Found::File], "file, as the kernel of a system on a disk is");
        return MachineKernel::Files { kernel: path, initramfs: None };
    }
    if cx.node.look(&path) == Found::File {
        cx.out
            .error(Code::MissingKey, &kernel.span, "a kernel that is a file needs an `initramfs`")
            .help(
                "add initramfs = \"path\" (`tombolo image build` makes one); or name the root directory of a kernel \
                 package, of which the node makes both",
            );
    } else {
        cx.must_be_there(&path, &kernel.span, &[Found::Directory], "file or directory");
    }
    MachineKernel::Built { directory: Some(path) }
}

fn append(machine: &MachineForm, kernel: &MachineKernel, cx: &mut Context<'_, '_>) -> String {
    let Some(at) = machine.append.given() else { return String::new() };
    let text = &at.value.0;
    if *kernel == MachineKernel::Disk {
        cx.out
            .error(Code::Conflict, &at.span, "a disk that boots by itself has its own kernel command line")
            .help("leave it out, or give the `kernel` that shall boot");
    } else if text.len() > APPEND_BYTES_MAX {
        let message = format!("this text has {} bytes; at most {APPEND_BYTES_MAX} can be here", text.len());
        cx.out.error(Code::BadText, &at.span, message);
    } else if text.chars().any(char::is_control) {
        cx.out.error(
            Code::BadText,
            &at.span,
            "a kernel command line is one line, without control characters",
        );
    }
    text.clone()
}

/// A guest has a file tree, a kernel and privileges of its own: keys about those of a container
/// would promise what is not so.
pub(super) fn refuse_container_keys(form: &DomainForm, cx: &mut Context<'_, '_>) {
    let given_root = form.root.given().filter(|at| !matches!(at.value, RootForm::Host)).map(|at| &at.span);
    let keys: [(Option<&Span>, &str, &str); 9] = [
        (
            given_root,
            "a guest's file tree is its initramfs or its disk",
            "machine = { disk = { path = \"...\", format = \"raw\" } } holds a file tree",
        ),
        (
            form.writable.given().map(|at| &at.span),
            "a guest's file tree is its initramfs, which is in its memory, or its disk",
            "leave it out; a disk is writable unless its `read_only` says otherwise",
        ),
        (
            form.layer.given().map(|at| &at.span),
            "a guest's file tree is its initramfs, which is in its memory, or its disk",
            "leave it out; `memory` in its `machine` bounds the one, the disk's size the other",
        ),
        (
            form.userns.given().filter(|at| at.value).map(|at| &at.span),
            "a guest has users of its own kernel",
            "leave it out",
        ),
        (
            form.mounts.given().map(|at| &at.span),
            "a guest sees no files of the node",
            "leave it out; a disk holds files, and services are files as well",
        ),
        (
            form.secrets.given().map(|at| &at.span),
            "a guest is given no secrets yet",
            "leave it out; a domain of kind \"container\" is given secrets, and can serve the guest",
        ),
        (
            form.capabilities.given().map(|at| &at.span),
            "a guest's program has all capabilities, of the guest's kernel",
            "leave it out, or say who the program is: user = \"nobody\"",
        ),
        (
            form.nine_p.given().filter(|at| at.value).map(|at| &at.span),
            "a guest's /srv is served inside it, where no socket of the node is",
            "leave it out; programs of the guest have /srv as files",
        ),
        (
            form.ready.value().and_then(|ready| ready.tcp.given()).map(|at| &at.span),
            "nobody can connect to a guest from the node's network",
            "ask inside the guest: ready = { command = [\"test\", \"-e\", \"/tmp/up\"] }",
        ),
    ];
    for (span, why, help) in keys {
        if let Some(span) = span {
            cx.out.error(Code::WrongKind, span, format!("this can't be for a vm: {why}")).help(help);
        }
    }
}

/// A disk that two guests write to is damaged by both.
pub(super) fn refuse_shared_disks(domains: &[Domain], cx: &mut Context<'_, '_>) {
    let disks: Vec<(&Domain, &Disk)> =
        domains.iter().filter_map(|domain| Some((domain, domain.machine.as_ref()?.disk.as_ref()?))).collect();
    for (index, (domain, disk)) in disks.iter().enumerate() {
        let before = disks.iter().take(index);
        let shared =
            |(_, other): &&(&Domain, &Disk)| other.path == disk.path && !(other.read_only && disk.read_only);
        let Some((first, _)) = before.into_iter().find(shared) else { continue };
        let form = cx.domain_form(&domain.name).and_then(|form| form.machine.value());
        let Some(at) = form.and_then(|machine| machine.disk.value()).and_then(|disk| disk.path.given())
        else {
            continue;
        };
        let message = format!("`{}` has this disk, and one of the two writes to it", first.name);
        cx.out
            .error(Code::Conflict, &at.span, message)
            .help("give each its own, or let both only read it: read_only = true");
    }
}

/// Limits hold QEMU, whose memory is the guest's and some: without a limit in the file there is one
/// all the same.
pub(super) fn limits(
    machine: &Machine,
    form: &DomainForm,
    limits: Limits,
    cx: &mut Context<'_, '_>,
) -> Limits {
    let given = form.limits.value();
    let guest = machine.memory_bytes;
    if let Some(at) = given.and_then(|limits| limits.memory.given())
        && at.value.0 < guest.saturating_add(MACHINE_OVERHEAD_MIN)
    {
        let message = format!(
            "a limit of {} does not hold a machine of {}: QEMU itself needs {} beside",
            size_text(at.value.0),
            size_text(guest),
            size_text(MACHINE_OVERHEAD_MIN)
        );
        let help = format!(
            "take at least \"{}\", or less `memory` in `machine`; where nothing is said, the limit is {}",
            size_text(guest + MACHINE_OVERHEAD_MIN),
            size_text(guest + MACHINE_OVERHEAD_DEFAULT)
        );
        cx.out.error(Code::Conflict, &at.span, message).help(help);
    }
    if let Some(at) = given.and_then(|limits| limits.pids.given())
        && at.value.0 < MACHINE_PIDS_MIN
    {
        let message =
            format!("{} threads are too few for QEMU, which has up to {MACHINE_PIDS_MIN}", at.value.0);
        cx.out
            .error(Code::Conflict, &at.span, message)
            .help("leave it out: processes of the guest are its own kernel's, and don't count");
    }
    let memory_bytes = limits.memory_bytes.unwrap_or(guest.saturating_add(MACHINE_OVERHEAD_DEFAULT));
    Limits { memory_bytes: Some(memory_bytes), ..limits }
}
