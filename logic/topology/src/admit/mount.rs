//! The rules of bind mounts.

use super::Context;
use crate::diagnostic::Code;
use crate::file::{self, DomainForm};
use crate::look::Found;
use crate::model::Mount;
use crate::read::Span;
use crate::suggest::quoted;

/// Places in a domain that belong to Tombolo or to the kernel, and why nothing can be mounted
/// there.
pub(super) const RESERVED: &[(&str, &str)] = &[
    ("/proc", "the kernel's own files are there"),
    ("/sys", "the kernel's own files are there"),
    ("/dev", "the domain's devices are there"),
    ("/srv", "the services are there"),
    ("/run/tombolo", "the domain's control socket is there"),
    ("/run/systemd/resolve", "the socket for libnss-resolve is there"),
    ("/etc/resolv.conf", "Tombolo writes it"),
];

/// The mounts of a container.
pub(super) fn mounts(form: &DomainForm, cx: &mut Context<'_, '_>) -> Vec<Mount> {
    let mut mounts: Vec<(Mount, Span)> = Vec::new();
    for item in form.mounts.value().map_or(&[][..], |items| items.0.as_slice()) {
        let mount = &item.value;
        let target = mount.target.given().map(|at| (at.value.0.clone(), &at.span));
        let source = mount.source.given().map(|at| {
            let source = file::on_node(cx.base, &at.value.0);
            cx.must_be_there(&source, &at.span, &[Found::Directory, Found::File, Found::Other], "file");
            source
        });
        let (Some(source), Some((target, span))) = (source, target) else { continue };
        refuse_reserved(&target, span, cx);
        if let Some((_, first)) = mounts.iter().find(|(mount, _)| mount.target == target) {
            let message = format!("{} has a mount already", quoted(&target.to_string_lossy()));
            let help = format!("the first one is on {}; leave one of them out", cx.out.line_of(first));
            cx.out.error(Code::Duplicate, span, message).help(help);
        }
        let read_only = mount.read_only.value().copied().unwrap_or(true);
        mounts.push((Mount { source, target, read_only }, span.clone()));
    }
    mounts.into_iter().map(|(mount, _)| mount).collect()
}

/// Refuses a target that hides something which a domain can't do without.
pub(super) fn refuse_reserved(target: &std::path::Path, span: &Span, cx: &mut Context<'_, '_>) {
    let covers = |(place, _): &&(&str, &str)| {
        target.starts_with(place) || std::path::Path::new(place).starts_with(target)
    };
    let Some((place, why)) = RESERVED.iter().find(covers) else { return };
    // `/etc` as a whole may be somebody's own; the file in it is bound over it.
    if *place == "/etc/resolv.conf" && target != std::path::Path::new(place) {
        return;
    }
    let target = target.to_string_lossy();
    let message = if target == *place {
        format!("nothing can be mounted over `{place}`: {why}")
    } else {
        format!("{} can't be a mount: it would hide or change `{place}`; {why}", quoted(&target))
    };
    let help = if target == "/" {
        "the whole tree is the root: root = { directory = \"...\" }"
    } else {
        "choose another target"
    };
    cx.out.error(Code::ReservedPath, span, message).help(help);
}
