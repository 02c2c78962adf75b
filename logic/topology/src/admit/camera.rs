//! The rules of cameras, and of the memory that services have with the domains that mount them.

use super::Context;
use crate::bounds::{
    CAMERA_MEMORY_DEFAULT, CAMERA_SESSIONS_DEFAULT, FRAME_RATE_DEFAULT, FRAME_SIZE_DEFAULT,
    MEMORIES_PER_DOMAIN_MAX,
};
use crate::diagnostic::Code;
use crate::file::{CameraForm, CamerasForm, ServiceForm};
use crate::model::{Camera, CameraSettings, FrameFormat, ServiceKind};
use crate::name::Name;
use crate::read::{At, Field};

/// A file of the service that is not a camera's: what all of them can do.
const TAKEN: [&str; 2] = ["cameras", "state"];

/// The settings of a camera service.
pub(super) fn settings(form: &CamerasForm, cx: &mut Context<'_, '_>) -> CameraSettings {
    let mut cameras: Vec<Camera> = Vec::new();
    for item in form.cameras.value().map_or(&[][..], |items| items.0.as_slice()) {
        let Some(camera) = camera(&item.value) else { continue };
        if let Field::Given(name) = &item.value.name {
            if cameras.iter().any(|other| other.name == camera.name) {
                let message = format!("there is a camera called `{}` already", camera.name);
                cx.out.error(Code::Duplicate, &name.span, message).help("give each camera a name of its own");
            }
            if TAKEN.contains(&camera.name.as_str()) {
                let message = format!("`{}` is a file of every camera service", camera.name);
                cx.out.error(Code::Conflict, &name.span, message).help("give the camera another name");
            }
        }
        cameras.push(camera);
    }
    let sessions_per_domain =
        form.sessions_per_domain.value().map_or(CAMERA_SESSIONS_DEFAULT, |count| count.0);
    CameraSettings { cameras, sessions_per_domain }
}

fn camera(form: &CameraForm) -> Option<Camera> {
    let (width, height) = form.size.value().map_or(FRAME_SIZE_DEFAULT, |size| (size.0, size.1));
    Some(Camera {
        name: form.name.value()?.clone(),
        file: form.file.value().map(|file| file.0.clone()),
        format: form.format.value().copied().unwrap_or(FrameFormat::Yuyv),
        width,
        height,
        rate: form.rate.value().map_or(FRAME_RATE_DEFAULT, |count| count.0),
    })
}

/// The memory that each domain that mounts a service has with its server, in bytes.
pub(super) fn memory(
    name: &At<Name>,
    form: &ServiceForm,
    kind: Option<ServiceKind>,
    cx: &mut Context<'_, '_>,
) -> u64 {
    match (&form.memory, kind) {
        (Field::Given(at), Some(kind)) if !kind.has_memory() => {
            let message = format!("`{}` is a {}: its files are not mapped", name.value, kind.as_str());
            cx.out.error(Code::WrongKind, &at.span, message).help("leave `memory` out");
            0
        }
        // The kernel maps whole pages.
        (Field::Given(at), _) => at.value.0.next_multiple_of(4096),
        (_, Some(ServiceKind::Camera)) => CAMERA_MEMORY_DEFAULT,
        _ => 0,
    }
}

/// Refuses a mount that gives a domain memory with more services than it can have.
pub(super) fn refuse_too_many(key: &At<String>, count: usize, cx: &mut Context<'_, '_>) {
    if count == MEMORIES_PER_DOMAIN_MAX + 1 {
        let message = format!("a domain has memory with {MEMORIES_PER_DOMAIN_MAX} services at the most");
        cx.out
            .error(Code::TooMany, &key.span, message)
            .help("mount it elsewhere, or put the cameras of two services into one");
    }
}

/// Whether a service has memory with those who mount it, by the file.
pub(super) fn has_memory(service: &str, cx: &Context<'_, '_>) -> bool {
    let Some(form) = cx.service_form(service) else { return false };
    let camera = form.kind.value() == Some(&ServiceKind::Camera);
    camera || matches!(form.memory, Field::Given(_))
}
