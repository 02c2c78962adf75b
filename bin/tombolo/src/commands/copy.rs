//! `tombolo cp`: files into a domain, or out of it.

use super::look::encoded;
use super::{client, wait};
use crate::cli::{CpArgs, PlaceArgs};
use admin::Entry;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use terminal::Failure;

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side {
    Here(PathBuf),
    In { domain: String, path: String },
}

/// Copies. In the domain our own binary reads or writes, as the domain's user and with nothing that
/// the domain lacks; wherever the domain is, it is reached as by `exec`.
pub fn run(place: &PlaceArgs, arguments: &CpArgs) -> Result<(), Failure> {
    match (side(&arguments.from), side(&arguments.to)) {
        (Side::Here(from), Side::In { domain, path }) => {
            let mut command = inside(place, &domain, "in", &path, true)?;
            let mut child = command.stdin(Stdio::piped()).spawn()?;
            let packed = child.stdin.take().map(|to| domain::pack(&from, to));
            finished(child.wait()?, packed.unwrap_or(Ok(())))
        }
        (Side::In { domain, path }, Side::Here(to)) => {
            let mut command = inside(place, &domain, "out", &path, false)?;
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
            let unpacked = child.stdout.take().map(|from| domain::unpack(from, &to));
            finished(child.wait()?, unpacked.unwrap_or(Ok(())))
        }
        (Side::In { .. }, Side::In { .. }) => {
            Err(Failure::misuse("both sides are in domains").help("copy it here first, and then there"))
        }
        (Side::Here(_), Side::Here(_)) => {
            Err(Failure::misuse("neither side is in a domain")
                .help("name one as DOMAIN:PATH, as web:/etc/hosts"))
        }
    }
}

/// `DOMAIN:PATH`, or a path here: what has a slash before the colon is a path, unless the slash is
/// between a distributed container and its domain.
fn side(text: &str) -> Side {
    match text.split_once(':') {
        Some((domain, path))
            if !domain.is_empty() && !domain.starts_with(['/', '.']) && domain.matches('/').count() <= 1 =>
        {
            Side::In { domain: domain.to_owned(), path: path.to_owned() }
        }
        _ => Side::Here(PathBuf::from(text)),
    }
}

/// The command that copies at the domain's side.
fn inside(
    place: &PlaceArgs,
    domain: &str,
    direction: &str,
    path: &str,
    interactive: bool,
) -> Result<Command, Failure> {
    if !Path::new(path).is_absolute() {
        let help = format!("as {domain}:/{path}");
        return Err(Failure::misuse("a path in a domain starts with a slash").help(help));
    }
    let entry: Entry = wait(client(place)?.get(&format!("domains/{}/entry", encoded(domain))))??;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--run-dir").arg(&place.run_dir).arg("--state-dir").arg(&place.state_dir).arg("exec");
    if interactive {
        command.arg("-i");
    }
    command.args([domain, "--", &entry.program, domain::COPY_ROLE, direction, path]);
    Ok(command)
}

/// Ends the command. The complaints of the domain's side stand on the standard error already.
fn finished(status: std::process::ExitStatus, ours: domain::Result<()>) -> Result<(), Failure> {
    if !status.success() {
        return Err(Failure::silent());
    }
    ours.map_err(|error| Failure::new(terminal::with_causes(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_in_a_domain_if_it_names_one() {
        let inside = |domain: &str, path: &str| Side::In { domain: domain.into(), path: path.into() };
        assert_eq!(side("web:/etc/hosts"), inside("web", "/etc/hosts"));
        assert_eq!(side("shop/web:/a:b"), inside("shop/web", "/a:b"));
        for here in ["a", "./a:b", "/a:b", "a/b/c:d", ":/x"] {
            assert_eq!(side(here), Side::Here(here.into()), "{here}");
        }
    }
}
