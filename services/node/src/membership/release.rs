//! The releases of the program that understand each other: those that differ by one at the most.

use admin::{Code, Problem};

/// Protocols of the peer API that this release speaks, the newest first (ALPN). A release that adds
/// one keeps the one before.
pub(crate) const PROTOCOLS: &[&[u8]] = &[b"tombolo-peer/1"];
/// The header by which a caller says its release.
pub(crate) const RELEASE_HEADER: &str = "tombolo-release";
/// This one.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// A release as a number that grows by one with each: before 1.0 each minor version is one,
/// afterwards each major one.
fn number(release: &str) -> Option<u64> {
    let mut parts = release.split('.').map(str::parse::<u64>);
    match (parts.next()?.ok()?, parts.next()?.ok()?) {
        (0, minor) => Some(minor),
        (major, _) => Some(major.saturating_add(1_000)),
    }
}

/// Refuses a release that is too far from this one.
pub(crate) fn check(theirs: &str, who: &str) -> Result<(), Problem> {
    between(RELEASE, theirs, who)
}

fn between(ours: &str, theirs: &str, who: &str) -> Result<(), Problem> {
    let distance = number(ours).zip(number(theirs)).map(|(ours, theirs)| ours.abs_diff(theirs));
    if distance.is_some_and(|distance| distance <= 1) {
        return Ok(());
    }
    let theirs: String = theirs.chars().take(32).filter(|c| !c.is_control()).collect();
    Err(Problem::new(
        Code::Refused,
        format!("{who} has release {theirs:?} of tombolo, and this node {ours}: they may differ by one release at the most"),
    )
    .help("bring the older one up to date, one release at a time"))
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn one_release_apart_is_understood_and_two_are_refused() {
        for theirs in ["0.4.0", "0.5.9", "0.6.1"] {
            between("0.5.0", theirs, "it").unwrap();
        }
        for theirs in ["0.3.9", "0.7.0", "1.0.0", "", "x", "0", "0.x", "99999999999999999999.1"] {
            let refusal = between("0.5.0", theirs, "node b").unwrap_err();
            assert!(refusal.message.contains("node b") && refusal.help.is_some(), "{refusal}");
        }
        between("2.9.0", "3.0.0", "it").unwrap();
        between("2.9.0", "4.0.0", "it").unwrap_err();
    }
}
