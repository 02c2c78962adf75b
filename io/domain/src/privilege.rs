//! Capabilities by name, and what is said of users that a root does not know.

use crate::error::{Error, Result};
use accounts::AccountsError;
use rustix::thread::CapabilitySet;

pub(crate) use accounts::{Accounts, Identity};

/// The capability of that name, with or without `CAP_`, in any case.
///
/// # Errors
/// [`Error::Specification`] for a name that is none.
pub fn capability(name: &str) -> Result<CapabilitySet> {
    let upper = name.to_ascii_uppercase();
    let plain = upper.strip_prefix("CAP_").unwrap_or(&upper);
    let known = CapabilitySet::from_name(plain).filter(|c| c.bits().count_ones() == 1);
    known.ok_or_else(|| Error::Specification(format!("capabilities: {name:?} is none; see capabilities(7)")))
}

/// The kernel's full name of it, such as `CAP_NET_RAW`.
pub(crate) fn capability_name(name: &str) -> Result<String> {
    capability(name)?;
    let upper = name.to_ascii_uppercase();
    Ok(if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") })
}

impl From<AccountsError> for Error {
    fn from(error: AccountsError) -> Self {
        match error {
            AccountsError::Unknown(_) => Self::Specification(error.to_string()),
            AccountsError::File { path, source } => {
                Self::File { what: "read the domain's", path: path.into(), source }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_by_name() {
        assert_eq!(capability("cap_net_raw").ok(), Some(CapabilitySet::NET_RAW));
        assert_eq!(capability_name("net_raw").ok().as_deref(), Some("CAP_NET_RAW"));
        assert!(capability("NET_RAW|SYS_ADMIN").is_err());
        assert!(capability("").is_err());
    }
}
