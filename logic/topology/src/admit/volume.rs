//! The rules of volumes.

use std::path::PathBuf;

use super::{Context, keys, mount};
use crate::bounds::{VOLUME_SERIAL_BYTES_MAX, VOLUME_STEP_BYTES};
use crate::diagnostic::Code;
use crate::file::{self, DomainForm, VolumeAtForm, VolumeForm};
use crate::model::{DiskFormat, DomainKind, VolumeMount, VolumeStore};
use crate::name::Name;
use crate::read::{Entry, Span};
use crate::suggest::quoted;

/// Where a container finds volumes of which the file does not say where.
const FOLDER: &str = "/run/volumes";

/// The volumes of a domain.
pub(super) fn volumes(
    domain: &Name,
    kind: DomainKind,
    form: &DomainForm,
    cx: &mut Context<'_, '_>,
) -> Vec<VolumeMount> {
    let mut volumes: Vec<VolumeMount> = Vec::new();
    let entries = form.volumes.value().map_or(&[][..], |named| named.0.as_slice());
    if let (Some(first), true) = (entries.first(), form.kind.value() == Some(&DomainKind::Process)) {
        let message = "this can't be for a process domain, which sees the node's own files";
        cx.out.error(Code::WrongKind, &first.key.span, message).help("take kind = \"container\" or \"vm\"");
        return volumes;
    }
    let is_alone = |entry: &Entry<VolumeAtForm>| {
        let form = cx.form.volume.value().and_then(|volumes| volumes.get(entry.key.value.as_str()));
        let form = form.and_then(|entry| entry.value.as_ref()).map(|at| &at.value);
        form.is_none_or(|form| form.replicas.value().is_none_or(|replicas| replicas.0 == 1))
    };
    if entries.iter().any(is_alone)
        && let Some(at) =
            form.restart.value().and_then(|restart| restart.elsewhere.given()).filter(|at| at.value)
    {
        cx.out
            .error(
                Code::Conflict,
                &at.span,
                "a volume with one replica is on one node, and so is the domain that has it",
            )
            .help("give the volume `replicas = 2`, or leave `elsewhere` out");
    }
    for entry in entries {
        let Some(volume) = admitted(domain, kind, entry, cx) else { continue };
        if let Some(at) = &volume.at {
            refuse_taken(at, &entry.key.span, &volumes, form, cx);
        }
        volumes.push(volume);
    }
    volumes.sort_by(|a, b| a.name.cmp(&b.name));
    volumes
}

fn admitted(
    domain: &Name,
    kind: DomainKind,
    entry: &Entry<VolumeAtForm>,
    cx: &mut Context<'_, '_>,
) -> Option<VolumeMount> {
    let span = &entry.key.span;
    let name = file::check_name(&entry.key.value, span, &mut cx.out)?;
    let form = cx.volume_called(name.as_str(), span)?;
    refuse_second_user(domain, &name, span, cx);
    let place = entry.value.as_ref()?.value.at.given();
    let vm = kind == DomainKind::Vm;
    if vm && let Some(at) = place {
        cx.out
            .error(Code::WrongKind, &at.span, "this can't be for a vm: a volume is a disk of the machine")
            .help("leave it out: the guest finds the disk by its serial number, which is the volume's name");
    }
    if vm && name.as_str().len() > VOLUME_SERIAL_BYTES_MAX {
        let message = format!("the name of a machine's volume has at most {VOLUME_SERIAL_BYTES_MAX} bytes");
        cx.out
            .error(Code::BadName, span, message)
            .help("it is the serial number of the disk, which is not longer");
    }
    let default = || PathBuf::from(format!("{FOLDER}/{name}"));
    let at = (!vm).then(|| place.map_or_else(default, |at| at.value.0.clone()));
    Some(VolumeMount {
        replicas: replicas(form, cx),
        at,
        bytes: size(form, cx),
        format: form.format.value().copied().unwrap_or(DiskFormat::Raw),
        store: form.store.value().copied().unwrap_or(VolumeStore::File),
        name,
    })
}

fn replicas(form: &VolumeForm, cx: &mut Context<'_, '_>) -> u8 {
    let Some(at) = form.replicas.given() else { return 1 };
    if at.value.0 > 1 && form.store.value() == Some(&VolumeStore::Memory) {
        cx.out
            .error(
                Code::Conflict,
                &at.span,
                "what is in memory is gone with a node's power, however many nodes have it",
            )
            .help("leave `store` out: a replica is a file");
    }
    u8::try_from(at.value.0).unwrap_or(1)
}

fn size(form: &VolumeForm, cx: &mut Context<'_, '_>) -> u64 {
    let Some(at) = form.size.given() else { return 0 };
    let bytes = at.value.0;
    if !bytes.is_multiple_of(VOLUME_STEP_BYTES) {
        let message =
            format!("a volume has whole sectors of {VOLUME_STEP_BYTES} bytes, and {bytes} is no multiple");
        cx.out.error(Code::OutOfRange, &at.span, message).help("write it in KiB, MiB or GiB");
    }
    bytes
}

/// A volume that two domains write to is damaged by both.
fn refuse_second_user(domain: &Name, volume: &Name, span: &Span, cx: &mut Context<'_, '_>) {
    let Some(domains) = cx.form.domain.value() else { return };
    let uses =
        |form: &DomainForm| form.volumes.value().is_some_and(|named| named.get(volume.as_str()).is_some());
    let users = domains.0.iter().filter(|entry| entry.value.as_ref().is_some_and(|at| uses(&at.value)));
    let Some(first) = users.map(|entry| entry.key.value.as_str()).next() else { return };
    if first != domain.as_str() {
        let message = format!("`{first}` has this volume: both would write to it");
        cx.out.error(Code::Conflict, span, message).help("give each domain volumes of its own");
    }
}

fn refuse_taken(
    at: &std::path::Path,
    span: &Span,
    others: &[VolumeMount],
    form: &DomainForm,
    cx: &mut Context<'_, '_>,
) {
    mount::refuse_reserved(at, span, cx);
    let mounts = form.mounts.value().map_or(&[][..], |items| items.0.as_slice());
    let mut mounted =
        mounts.iter().filter_map(|item| item.value.target.given()).map(|target| target.value.0.as_path());
    let mut volumes = others.iter().filter_map(|other| other.at.as_deref());
    if mounted.any(|other| other == at) || volumes.any(|other| other == at) {
        let message = format!("something else is at {} already", quoted(&at.to_string_lossy()));
        cx.out.error(Code::Duplicate, span, message).help("choose another place: at = \"/run/volumes/...\"");
    }
}

/// A volume that no domain has is a mistake; what it held before stays where it is.
pub(super) fn refuse_unused(cx: &mut Context<'_, '_>) {
    let form = cx.form;
    let (Some(volumes), Some(domains)) = (form.volume.value(), form.domain.value()) else { return };
    for entry in &volumes.0 {
        let name = entry.key.value.as_str();
        let uses = |form: &DomainForm| form.volumes.is_broken() || keys(&form.volumes).contains(&name);
        let is_used = domains.0.iter().any(|domain| domain.value.as_ref().is_none_or(|at| uses(&at.value)));
        if !is_used {
            cx.out
                .error(Code::Conflict, &entry.key.span, "no domain has this volume")
                .help("name it in a domain, volumes = { NAME = {} }, or leave it out: what it holds is kept until `tombolo volume rm`");
        }
    }
}
