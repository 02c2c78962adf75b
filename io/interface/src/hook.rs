//! Programs at `clsact` that see each packet which comes in by an interface, or goes out, before
//! any discipline has it. Ours are known by their name.

use super::netlink::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Netlink, attribute, attributes, four, text};
use super::traffic::{HEAD_BYTES, RTM_DELQDISC, RTM_GETQDISC, RTM_NEWQDISC, TCA_KIND, TCA_OPTIONS, head};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

// linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
pub(crate) const TC_H_CLSACT: u32 = 0xffff_fff1;
pub(crate) const CLSACT: u32 = 0xffff_0000;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
/// The flag with which the program's verdict is the action.
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
const ETH_P_ALL: u16 = 3;
/// The filter's place among others, and its name.
const PLACE: u32 = 0x7462;
pub(crate) const NAME: &str = "tombolo";

const NOENT: i32 = 2;
const NODEV: i32 = 19;
const INVAL: i32 = 22;
const NOTSUP: i32 = 95;

/// Where a program sees packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    In,
    Out,
}

impl Way {
    fn parent(self) -> u32 {
        match self {
            Self::In => 0xffff_fff2,
            Self::Out => 0xffff_fff3,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::In => "where packets come in at",
            Self::Out => "where packets go out of",
        }
    }

    fn filter(self, index: u32) -> Vec<u8> {
        head(index, 1, self.parent(), PLACE << 16 | u32::from(ETH_P_ALL.to_be()))
    }
}

/// A filter that somebody has put there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// With the number of its program.
    Ours(Option<u32>),
    Other(String),
}

/// Puts a program there, in place of one of ours, and reads back that it is the only one.
pub(crate) fn put(netlink: &Netlink, index: u32, way: Way, program: &OwnedFd) -> io::Result<()> {
    let mut body = head(index, CLSACT, TC_H_CLSACT, 0);
    attribute(&mut body, TCA_KIND, b"clsact\0");
    match netlink.ask(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &body) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(absent("clsact", error)),
    }
    let mut options = Vec::new();
    attribute(&mut options, TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
    attribute(&mut options, TCA_BPF_NAME, format!("{NAME}\0").as_bytes());
    attribute(&mut options, TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes());
    let mut body = way.filter(index);
    attribute(&mut body, TCA_KIND, b"bpf\0");
    attribute(&mut body, TCA_OPTIONS, &options);
    netlink
        .ask(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, &body)
        .map_err(|error| absent("filters by programs", error))?;
    match filters(netlink, index, way)?.as_slice() {
        [Filter::Ours(_)] => Ok(()),
        _ => Err(io::Error::other("the kernel has not the filter that was asked for")),
    }
}

/// Whether ours is there.
pub(crate) fn is_there(netlink: &Netlink, index: u32, way: Way) -> bool {
    filters(netlink, index, way).is_ok_and(|found| found.iter().any(Filter::is_ours))
}

/// Takes ours away, and the discipline of filters with the last of them.
pub(crate) fn clear(netlink: &Netlink, index: u32, way: Way) -> io::Result<()> {
    if is_there(netlink, index, way) {
        let mut body = way.filter(index);
        attribute(&mut body, TCA_KIND, b"bpf\0");
        gone(netlink.ask(RTM_DELTFILTER, 0, &body))?;
    }
    let others =
        [Way::In, Way::Out].iter().any(|way| !filters(netlink, index, *way).unwrap_or_default().is_empty());
    if !others && discipline(netlink, index)?.as_deref() == Some("clsact") {
        gone(netlink.ask(RTM_DELQDISC, 0, &head(index, CLSACT, TC_H_CLSACT, 0)))?;
    }
    Ok(())
}

/// The link is no more, or there was nothing.
pub(crate) fn gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if matches!(error.raw_os_error(), Some(NODEV | NOENT | INVAL)) => Ok(()),
        done => done,
    }
}

/// Whether somebody else looks at packets there. `begun`: a process of ours was there, so a
/// discipline without filters is its.
pub(crate) fn foreign(netlink: &Netlink, index: u32, way: Way, begun: bool, device: &str) -> io::Result<()> {
    let Some(kind) = discipline(netlink, index)? else { return Ok(()) };
    let is_clsact = kind == "clsact";
    let of = |way: Way| if is_clsact { filters(netlink, index, way) } else { Ok(Vec::new()) };
    let here = of(way)?;
    let ours = begun || here.iter().chain(&of(Way::In)?).chain(&of(Way::Out)?).any(Filter::is_ours);
    let other = here.into_iter().find_map(|filter| match filter {
        Filter::Other(what) => Some(what),
        Filter::Ours(_) => None,
    });
    let what = match other {
        Some(what) => what,
        None if is_clsact && ours => return Ok(()),
        None => kind,
    };
    let words = format!(
        "somebody else has `{what}` {} {device}, which stays (`tc qdisc show dev {device}`)",
        way.words()
    );
    Err(io::Error::new(io::ErrorKind::AlreadyExists, words))
}

/// The discipline where packets come in and go out: `clsact`, `ingress`.
pub(crate) fn discipline(netlink: &Netlink, index: u32) -> io::Result<Option<String>> {
    let all = netlink.dump(RTM_GETQDISC, &head(index, 0, 0, 0), RTM_NEWQDISC)?;
    let here = all.iter().find(|body| four(body, 4) == Some(index) && four(body, 12) == Some(TC_H_CLSACT));
    Ok(here.map(|body| word(body, HEAD_BYTES, TCA_KIND)))
}

pub(crate) fn filters(netlink: &Netlink, index: u32, way: Way) -> io::Result<Vec<Filter>> {
    let all = netlink.dump(RTM_GETTFILTER, &head(index, 0, way.parent(), 0), RTM_NEWTFILTER)?;
    let mut found = Vec::new();
    for body in all.iter().filter(|body| four(body, 4) == Some(index)) {
        let kind = word(body, HEAD_BYTES, TCA_KIND);
        let attributes_found = attributes(body.get(HEAD_BYTES..).unwrap_or_default());
        let options = attributes_found.iter().find(|(kind, _)| *kind == TCA_OPTIONS);
        // A row for the place comes before those of its filters.
        let Some((_, options)) = options else { continue };
        let name = word(options, 0, TCA_BPF_NAME);
        let id = attributes(options).iter().find(|(kind, _)| *kind == TCA_BPF_ID).map(|(_, value)| *value);
        found.push(if kind == "bpf" && name == NAME {
            Filter::Ours(id.and_then(|id| four(id, 0)))
        } else {
            Filter::Other(format!("{kind} {name}").trim().to_owned())
        });
    }
    Ok(found)
}

impl Filter {
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Ours(_))
    }
}

/// An attribute that is text, among those from `from` on.
pub(crate) fn word(body: &[u8], from: usize, wanted: u16) -> String {
    let all = attributes(body.get(from..).unwrap_or_default());
    all.iter().find(|(kind, _)| *kind == wanted).map_or(String::new(), |(_, value)| text(value))
}

/// The kernel says in several ways that it does not know something.
pub(crate) fn absent(what: &str, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(NOENT | NOTSUP) => {
            io::Error::new(io::ErrorKind::Unsupported, format!("the kernel has no {what} ({error})"))
        }
        _ => error,
    }
}
