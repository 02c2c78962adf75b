//! The faults of etcd, and their remedies.

use etcd_client::Error;
use std::fmt;

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Nobody answers there.
    Gone,
    /// It takes too long.
    Slow,
    /// It has no leader: a majority of its members is gone.
    NoLeader,
    /// Something else that another endpoint may not have.
    Other,
    /// The settings can't be.
    Settings,
    /// Its certificate or ours is refused.
    Tls,
    /// We may not read or write there.
    ReadOnly,
    /// It has no room.
    Full,
    /// The value that is put is too large for it.
    TooLarge,
    /// It is too old.
    Old,
    /// It is not where it was: restored from a backup, or another one.
    WentBack,
    /// Its members are not to be changed now.
    Members,
    /// The lease is gone.
    Lease,
}

impl Trouble {
    /// Whether another endpoint may do better.
    pub(crate) fn is_of_endpoint(self) -> bool {
        matches!(self, Self::Gone | Self::Slow | Self::NoLeader | Self::Other)
    }

    /// Whether a write may have been made nevertheless.
    pub(crate) fn may_have_done_it(self) -> bool {
        matches!(self, Self::Gone | Self::Slow | Self::NoLeader | Self::Other)
    }

    /// Whether it may pass by itself: nothing is known to be wrong with what was asked.
    #[must_use]
    pub fn may_pass(self) -> bool {
        self.is_of_endpoint() || self == Self::Full
    }

    fn what_to_do(self) -> &'static str {
        match self {
            Self::Gone => {
                "is it running, and the network between? `etcdctl endpoint health`; it is tried again"
            }
            Self::Slow => {
                "look at its disk and load (`etcdctl check perf`), or at the network between; it is tried again"
            }
            Self::NoLeader => {
                "start its other members (`etcdctl endpoint status --cluster`), or mend the network between them"
            }
            Self::Other => "see its log",
            Self::Settings => "see `tombolo node init --help`",
            Self::Tls => "give the authority that signed its certificate, and a certificate that it accepts",
            Self::ReadOnly => {
                "grant this user read and write below the prefix (`etcdctl role grant-permission`)"
            }
            Self::Full => {
                "make room: `etcdctl compact`, `etcdctl defrag`, then `etcdctl alarm disarm`, or raise --quota-backend-bytes"
            }
            Self::TooLarge => "raise etcd's --max-request-bytes (8388608 is enough for every topology)",
            Self::Old => "3.4 or later is needed",
            Self::WentBack => {
                "it was restored from a backup, or is another etcd: see that what it holds is what you want, then restart the daemon on \
                 each node"
            }
            Self::Members => {
                "all of its members must be up and in step: `tombolo node etcd` says which are; it is tried again"
            }
            Self::Lease => "this node was too late to keep it alive; it takes another by itself",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Gone => "can't be reached",
            Self::Slow => "does not answer in time",
            Self::NoLeader => "has no leader",
            Self::Other => "failed",
            Self::Settings => "can't be used so",
            Self::Tls => "can't be spoken to by TLS",
            Self::ReadOnly => "does not let us",
            Self::Full => "is full",
            Self::TooLarge => "takes no value so large",
            Self::Old => "is too old",
            Self::WentBack => "is not where it was",
            Self::Members => "does not change its members now",
            Self::Lease => "has ended our lease",
        }
    }
}

/// A fault, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdError {
    /// The kind of fault.
    pub trouble: Trouble,
    /// The endpoints concerned, if there are any.
    pub endpoints: Vec<String>,
    /// The message of etcd or of the network.
    pub said: String,
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd at {} {}", self.endpoints.join(", "), self.trouble.what())?;
        if !self.said.is_empty() {
            write!(f, " ({})", self.said)?;
        }
        write!(f, ": {}", self.trouble.what_to_do())
    }
}

impl std::error::Error for EtcdError {}

impl EtcdError {
    pub(crate) fn new(trouble: Trouble, endpoints: &[String], said: String) -> Self {
        Self { trouble, endpoints: endpoints.to_vec(), said }
    }

    /// Of what one endpoint and another say: what tells more.
    pub(crate) fn worse(one: Option<Self>, other: Self) -> Self {
        let Some(one) = one else { return other };
        let mut endpoints = one.endpoints.clone();
        endpoints.extend(other.endpoints.iter().filter(|e| !one.endpoints.contains(e)).cloned());
        let said = if one.trouble >= other.trouble { one } else { other };
        Self { endpoints, ..said }
    }

    pub(crate) fn of(endpoints: &[String], error: &Error) -> Self {
        let (trouble, said) = match error {
            Error::GRpcStatus(status) => {
                let said = with_causes(status);
                (of_status(status.code() as i32, status.message(), &said), status.message().to_owned())
            }
            Error::TransportError(error) => {
                let said = with_causes(error);
                (of_transport(&said), said)
            }
            Error::InvalidArgs(_) | Error::InvalidUri(_) => (Trouble::Settings, error.to_string()),
            other => (Trouble::Other, other.to_string()),
        };
        Self::new(trouble, endpoints, said)
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The messages of etcd on a refused change of its members.
const MEMBERS: [&str; 4] =
    ["in sync with leader", "re-configuration failed", "unhealthy cluster", "too many learner members"];

/// By gRPC's code and etcd's words (`api/v3rpc/rpctypes` of its sources names them).
fn of_status(code: i32, message: &str, all: &str) -> Trouble {
    let says = |words: &str| message.contains(words);
    if says("database space exceeded") {
        return Trouble::Full;
    }
    if says("request is too large") || says("message larger than max") || says("length too large") {
        return Trouble::TooLarge;
    }
    if says("requested lease not found") {
        return Trouble::Lease;
    }
    if MEMBERS.iter().any(|words| says(words)) {
        return Trouble::Members;
    }
    if says("no leader") || says("leader changed") || says("lost raft") {
        return Trouble::NoLeader;
    }
    match code {
        // Deadline exceeded.
        4 => Trouble::Slow,
        // Permission denied, unauthenticated.
        7 | 16 => Trouble::ReadOnly,
        _ if says("user name is empty") || says("permission denied") || says("not supported for learner") => {
            Trouble::ReadOnly
        }
        _ if says("request timed out") => Trouble::NoLeader,
        // Unavailable, or cancelled by a connection that ended: what the network says stands in the
        // causes.
        14 | 1 => of_transport(all),
        _ => Trouble::Other,
    }
}

fn of_transport(said: &str) -> Trouble {
    let tls = [
        "certificate",
        "handshake",
        "UnknownIssuer",
        "InvalidCertificate",
        "AlertReceived",
        "BadCertificate",
    ];
    if tls.iter().any(|word| said.contains(word)) { Trouble::Tls } else { Trouble::Gone }
}
