//! The parts that this node lacks for a domain of a file: an image's tag, a user, a program, a
//! mount that fits.

use domain::{DomainSpec, Kind, Layout, ProgramError, Prospect, Unpack};
use image_store::Store;
use topology::{Domain, DomainKind, IdOrName, Lack, Part, Program, Ready, Root, User};

/// A user and group as they are looked up in a root.
pub(crate) fn user_text(user: &User) -> String {
    let word = |id: &IdOrName| match id {
        IdOrName::Id(id) => id.to_string(),
        IdOrName::Name(name) => name.clone(),
    };
    let group = user.group.as_ref().map_or(String::new(), |group| format!(":{}", word(group)));
    word(&user.user) + &group
}

/// A root as the machinery of domains on this node wants it.
pub(crate) fn root(layout: &Layout, root: &Root) -> domain::Root {
    match root {
        Root::Host => domain::Root::Host,
        Root::Directory { path } => domain::Root::Directory(path.clone()),
        Root::Image { path, tag } => domain::Root::Image { path: path.clone(), tag: tag.clone() },
        // By its digest: the name may mean another image by now.
        Root::Pulled { reference, digest } => domain::Root::Image {
            path: Store::new(&layout.state_dir).folder().to_owned(),
            tag: Some(digest.clone().unwrap_or_else(|| reference.clone())),
        },
    }
}

/// The digest of the image that a reference of a file names in the store of this node; `None`: who
/// asks may not look there.
pub(crate) fn image(store: &Store, reference: &str) -> Result<Option<String>, Lack> {
    let lacking = |message: String, help: Option<String>| Lack { part: Part::Root, message, help };
    let whole = image_store::reference(reference).map_err(|error| {
        lacking(error.to_string(), Some("a path of an image layout begins with / or ./".into()))
    })?;
    match store.find(&whole) {
        Ok(Some(image)) => Ok(Some(image.digest)),
        Ok(None) => Err(lacking(
            format!("this node has no image {reference}"),
            Some(format!(
                "get it: `tombolo image pull {reference}`, or `tombolo image import ARCHIVE --name {reference}`; a path of an image layout begins with / or ./"
            )),
        )),
        Err(image_store::Error::Io { source, .. })
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            Ok(None)
        }
        Err(error) => Err(lacking(error.to_string(), error.help())),
    }
}

/// Returns the parts that this node lacks for a domain. Of a machine, whose files are in its guest,
/// nothing is looked at.
pub(crate) fn lacks(layout: &Layout, domain: &Domain, unpack: Unpack) -> Vec<Lack> {
    // Who may not look into the store has not looked.
    if matches!(domain.root, Root::Pulled { digest: None, .. }) {
        return Vec::new();
    }
    let spec = match domain.kind {
        DomainKind::Vm => return Vec::new(),
        DomainKind::Process => seen_by(layout, Kind::Process, domain),
        DomainKind::Container => seen_by(layout, Kind::Container, domain),
    };
    let prospect = match Prospect::of(layout, &spec, unpack) {
        Ok(prospect) => prospect,
        Err(error) => return vec![of_image(error)],
    };
    let mut lacks = Vec::new();
    for index in prospect.unfit_mounts() {
        let message = "the one is a directory and the other a file: nothing can be mounted there".to_owned();
        lacks.push(Lack { part: Part::Mount(*index), message, help: Some("choose another target".into()) });
    }
    let identity = match prospect.identity(spec.user.as_deref()) {
        Ok(identity) => identity,
        Err(error) => {
            lacks.push(of_user(&error, spec.user.is_some()));
            None
        }
    };
    let looks_for = |command: &[String], part| match prospect.program(&spec, command, identity.as_ref()) {
        Ok(()) => None,
        Err(error) => Some(of_program(&error, part, &domain.root)),
    };
    // A server is our own binary, which is put into each domain.
    if !matches!(domain.program, Program::Server(_)) {
        lacks.extend(looks_for(&spec.command, Part::Command));
    }
    if let Ready::Command(command) = &domain.ready {
        lacks.extend(looks_for(command, Part::Ready));
    }
    if let Some(health) = &domain.health {
        lacks.extend(looks_for(&health.command, Part::Health));
    }
    lacks
}

/// As much of the specification as decides what is seen.
fn seen_by(layout: &Layout, kind: Kind, domain: &Domain) -> DomainSpec {
    let mut spec = DomainSpec::new("", domain.name.as_str(), kind, &[]);
    if let Program::Command(words) = &domain.program {
        spec.command.clone_from(words);
    }
    spec.root = root(layout, &domain.root);
    spec.writable = domain.writable;
    spec.environment = domain.environment.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    spec.user = domain.user.as_ref().map(user_text);
    spec.workdir.clone_from(&domain.workdir);
    spec.capabilities.clone_from(&domain.capabilities);
    let mount = |mount: &topology::Mount| domain::Mount {
        source: mount.source.clone(),
        target: mount.target.clone(),
        read_only: mount.read_only,
    };
    spec.mounts = domain.mounts.iter().map(mount).collect();
    spec
}

fn of_image(error: domain::Error) -> Lack {
    use domain::ImageError;
    let part = match &error {
        domain::Error::Image { source: ImageError::NoSuchTag { .. } | ImageError::Ambiguous(_), .. } => {
            Part::Tag
        }
        _ => Part::Root,
    };
    Lack { part, message: super::said(error), help: None }
}

fn of_user(error: &domain::Error, is_of_the_file: bool) -> Lack {
    let mut message = error.to_string();
    if let Some(rest) = message.strip_prefix("domain specification: ") {
        message = rest.to_owned();
    }
    if !is_of_the_file {
        message = format!("the image's own {message}");
    }
    let help = "`user` of the domain takes a name of its root's /etc/passwd, or a number";
    Lack { part: Part::User, message, help: Some(help.into()) }
}

fn of_program(error: &ProgramError, part: Part, root: &Root) -> Lack {
    let help = match (error, root) {
        (ProgramError::Nothing, _) => "add command = [\"program\", \"argument\"]",
        (ProgramError::NotExecutable { .. }, _) => {
            "name a program, or give the file its permission: chmod +x"
        }
        (_, Root::Host) => {
            "the root \"host\" has what is in the node's /usr; other files of the node take a mount"
        }
        _ => "a path starts at the domain's own root",
    };
    Lack { part, message: error.to_string(), help: Some(help.into()) }
}
