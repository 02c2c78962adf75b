//! The parameters handed to a frontend at its start by its parent: the daemon on a node, the agent
//! in a guest.
//!
//! A frontend's standard input is its private control socket. The first packet on it is the
//! [`Launch`], with the descriptors that it serves; so nothing has to be inherited by number, and
//! the frontend does nothing before that packet.

use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use thiserror::Error;

/// Longest launch packet, in bytes.
const MAX_LAUNCH_BYTES: usize = 16 * 1024;
/// Most descriptors of a launch: the FUSE session, the ledger, the sockets of the entrances, the
/// file for the next life.
const MAX_LAUNCH_DESCRIPTORS: usize = 8;

/// Descriptors of the native entrances, those that the domain has.
#[derive(Debug, Default)]
pub struct Entrances {
    /// The DNS stub's UDP socket, bound.
    pub stub_udp: Option<OwnedFd>,
    /// The DNS stub's TCP socket, listening.
    pub stub_tcp: Option<OwnedFd>,
    /// The resolver's socket, listening.
    pub resolve: Option<OwnedFd>,
    /// The socket for clients of 9P, listening.
    pub ninep: Option<OwnedFd>,
}

impl Entrances {
    /// Those that are there, in an order that is always the same.
    fn list(&self) -> Vec<(Entrance, &OwnedFd)> {
        let all = [
            (Entrance::StubUdp, &self.stub_udp),
            (Entrance::StubTcp, &self.stub_tcp),
            (Entrance::Resolve, &self.resolve),
            (Entrance::Ninep, &self.ninep),
        ];
        all.into_iter().filter_map(|(entrance, descriptor)| Some((entrance, descriptor.as_ref()?))).collect()
    }

    /// Their descriptors, in that order.
    pub fn descriptors(&self) -> impl Iterator<Item = &OwnedFd> {
        self.list().into_iter().map(|(_, descriptor)| descriptor)
    }
}

/// The parameters of a frontend's start.
#[derive(Debug)]
pub struct Launch {
    /// The FUSE session.
    pub fuse: OwnedFd,
    /// Where it keeps what a successor needs.
    pub ledger: OwnedFd,
    /// Sockets of the native entrances.
    pub entrances: Entrances,
    /// The private control socket of the entrances.
    pub entrance_control: OwnedFd,
    /// The file that one incarnation of the domain leaves for the next one.
    pub handover: Option<OwnedFd>,
    /// The rest.
    pub order: LaunchOrder,
}

/// The part of a frontend's start parameters that is text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchOrder {
    /// The distributed container.
    pub dc: String,
    /// The domain.
    pub domain: String,
    /// Whether it takes over from one that ended.
    pub successor: bool,
    /// The optional descriptors that follow the fixed ones, in this order: [`send_launch`] fills it
    /// in.
    #[serde(default)]
    entrances: Vec<Entrance>,
    /// Whether the file for the next life is the last of them: [`send_launch`] says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    handover: bool,
    /// The service that the stub asks.
    pub stub_service: Option<String>,
    /// The service that the resolver socket asks.
    pub resolve_service: Option<String>,
    /// Suffixes for short names, for the resolver socket.
    pub search: Vec<String>,
}

impl LaunchOrder {
    /// The order of a domain's first frontend, without entrances.
    #[must_use]
    pub fn new(dc: &str, domain: &str) -> Self {
        Self {
            dc: dc.to_owned(),
            domain: domain.to_owned(),
            successor: false,
            entrances: Vec::new(),
            handover: false,
            stub_service: None,
            resolve_service: None,
            search: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Entrance {
    StubUdp,
    StubTcp,
    Resolve,
    Ninep,
}

/// Why a process that was started as a frontend is none.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// Its standard input is no control socket.
    #[error(
        "a frontend is started by the daemon or a guest's agent, not by hand: its standard input must be its control socket ({0})"
    )]
    Socket(io::Error),
    /// The received order makes no sense.
    #[error("the order is not understood: {0}")]
    Order(String),
}

/// Takes the launch from the private control socket.
///
/// # Errors
/// [`LaunchError`].
pub fn receive_launch(socket: impl AsFd) -> Result<Launch, LaunchError> {
    let mut bytes = vec![0; MAX_LAUNCH_BYTES];
    let (length, descriptors) =
        sys::descriptors::receive_with_descriptors(&socket, &mut bytes, MAX_LAUNCH_DESCRIPTORS)
            .map_err(LaunchError::Socket)?;
    let text = bytes.get(..length).unwrap_or(&bytes);
    let order: LaunchOrder = serde_json::from_slice(text).map_err(|e| LaunchError::Order(e.to_string()))?;
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| LaunchError::Order("a descriptor is missing".into()));
    let (fuse, ledger, entrance_control) = (next()?, next()?, next()?);
    let mut entrances = Entrances::default();
    for entrance in &order.entrances {
        let place = match entrance {
            Entrance::StubUdp => &mut entrances.stub_udp,
            Entrance::StubTcp => &mut entrances.stub_tcp,
            Entrance::Resolve => &mut entrances.resolve,
            Entrance::Ninep => &mut entrances.ninep,
        };
        *place = Some(next()?);
    }
    let handover = if order.handover { Some(next()?) } else { None };
    Ok(Launch { fuse, ledger, entrances, entrance_control, handover, order })
}

/// The descriptors of a launch, as they stay with whoever starts the frontend.
#[derive(Debug, Clone, Copy)]
pub struct Handed<'a> {
    /// The FUSE session.
    pub fuse: BorrowedFd<'a>,
    /// Where it keeps what a successor needs.
    pub ledger: BorrowedFd<'a>,
    /// The private control socket of the entrances.
    pub entrance_control: BorrowedFd<'a>,
    /// Sockets of the native entrances.
    pub entrances: &'a Entrances,
    /// The file that one incarnation of the domain leaves for the next one.
    pub handover: Option<BorrowedFd<'a>>,
}

/// Sends a launch to a frontend's private control socket.
///
/// # Errors
/// Of the socket.
pub fn send_launch(socket: impl AsFd, mut order: LaunchOrder, handed: Handed<'_>) -> io::Result<()> {
    let optional = handed.entrances.list();
    order.entrances = optional.iter().map(|(entrance, _)| *entrance).collect();
    order.handover = handed.handover.is_some();
    let mut descriptors = vec![handed.fuse, handed.ledger, handed.entrance_control];
    descriptors.extend(optional.iter().map(|(_, descriptor)| descriptor.as_fd()));
    descriptors.extend(handed.handover);
    sys::descriptors::send_with_descriptors(socket, &serde_json::to_vec(&order)?, &descriptors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> OwnedFd {
        rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    fn name_of(descriptor: &OwnedFd) -> String {
        let link =
            std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(descriptor)));
        link.unwrap().to_string_lossy().into_owned()
    }

    #[test]
    fn a_launch_arrives_with_each_descriptor_in_its_place() {
        let entrances =
            Entrances { stub_tcp: Some(file("tcp")), resolve: Some(file("resolve")), ..Entrances::default() };
        let (fuse, ledger, control) = (file("fuse"), file("ledger"), file("control"));
        let handover = file("handover");
        let handed = Handed {
            fuse: fuse.as_fd(),
            ledger: ledger.as_fd(),
            entrance_control: control.as_fd(),
            entrances: &entrances,
            handover: Some(handover.as_fd()),
        };
        let (ours, theirs) = sys::descriptors::socket_pair().unwrap();
        let order = LaunchOrder { successor: true, ..LaunchOrder::new("shop", "web") };
        send_launch(&ours, order, handed).unwrap();
        let launch = receive_launch(&theirs).unwrap();
        assert!(
            launch.order.successor && launch.order.domain == "web" && launch.entrances.stub_udp.is_none()
        );
        for (descriptor, name) in [
            (&launch.fuse, "fuse"),
            (&launch.ledger, "ledger"),
            (&launch.entrance_control, "control"),
            (launch.entrances.stub_tcp.as_ref().unwrap(), "tcp"),
            (launch.entrances.resolve.as_ref().unwrap(), "resolve"),
            (launch.handover.as_ref().unwrap(), "handover"),
        ] {
            assert!(name_of(descriptor).contains(name), "{} is not {name}", name_of(descriptor));
        }
    }

    #[test]
    fn an_order_without_its_descriptors_or_without_sense_is_refused() {
        let (ours, theirs) = sys::descriptors::socket_pair().unwrap();
        sys::descriptors::send_with_descriptors(&ours, b"{}", &[]).unwrap();
        assert!(matches!(receive_launch(&theirs), Err(LaunchError::Order(_))));
        let order = b"{\"dc\":\"a\",\"domain\":\"b\",\"successor\":false,\"entrances\":[],\"search\":[]}";
        sys::descriptors::send_with_descriptors(&ours, order, &[ours.as_fd()]).unwrap();
        let refusal = receive_launch(&theirs).unwrap_err().to_string();
        assert!(refusal.contains("a descriptor is missing"), "{refusal}");
        assert!(matches!(receive_launch(std::io::stdin()), Err(LaunchError::Socket(_))));
    }
}
