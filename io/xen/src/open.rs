//! The opener's half.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use channel::Mapped;
use rustix::event::{PollFd, PollFlags, Timespec};
use sys::region::Region;
use sys::xen::event::Port;
use sys::xen::grant::{Notice, map};
use wire::ring;
use wire::xen as layout;

use crate::bell::bells;
use crate::life::{self, Life, Watched};
use crate::store::Store;
use crate::{End, OpenError};

/// How long an offerer takes at most from the first thing that it lets go of to the last, its
/// directory: what its kernel does in one go.
const GOING: Duration = Duration::from_secs(1);

/// Opens the channel that domain `offerer` offers to this one by a name, and waits for it until
/// `deadline` (`None`: as long as it takes).
///
/// # Errors
/// See [`OpenError`].
pub fn open(offerer: u16, name: &str, deadline: Option<Instant>) -> Result<End, OpenError> {
    if !layout::is_name(name) {
        return Err(OpenError::Name { name: name.to_owned() });
    }
    if offerer > layout::DOMAIN_MAX {
        return Err(OpenError::Domain { domain: offerer });
    }
    let mut store = Store::open()?;
    let own = store.domain()?;
    if own == offerer {
        return Err(OpenError::SameDomain { domain: own });
    }
    let theirs = layout::offer_path(offerer, own, name);
    store.watch(&theirs)?;
    loop {
        if let Some(text) = store.read(&theirs)?
            && let Some(claim) = Claim::of(offerer, &text)?
            && let Some(parts) = claim.take(offerer, deadline)?
        {
            return parts.come(own, offerer, name, store, theirs);
        }
        if !wait(&mut store, deadline)? {
            return Err(OpenError::NotOffered { domain: offerer, name: name.to_owned() });
        }
    }
}

/// Waits until something has changed at the offer; false: the time is over.
fn wait(store: &mut Store, deadline: Option<Instant>) -> Result<bool, OpenError> {
    loop {
        // First: an offerer that changes its offer all the time does not keep us.
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(false);
        }
        if store.has_changed()? {
            return Ok(true);
        }
        poll(store, left)?;
    }
}

/// Waits until there is something to read, or the time is over; may return early.
fn poll(descriptor: &impl AsFd, left: Option<Duration>) -> Result<(), OpenError> {
    let timeout = left
        .map(|left| Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() });
    match rustix::event::poll(&mut [PollFd::new(descriptor, PollFlags::IN)], timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(OpenError::System { action: "wait for the other domain", source: error.into() }),
    }
}

/// An offer that is ours: nobody else can bind its *life* any more.
struct Claim {
    offer: layout::Offer,
    life: Port,
}

impl Claim {
    /// Claims what is offered; `None` where its offerer has gone or somebody else was first.
    fn of(offerer: u16, text: &[u8]) -> Result<Option<Self>, OpenError> {
        let bad = |source| OpenError::BadOffer { domain: offerer, source };
        let offer = layout::Offer::parse(text).map_err(bad)?;
        match Port::bind(offerer, offer.life) {
            Ok(life) => Ok(Some(Self { offer, life })),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Err(OpenError::System { action: "bind an event channel (module xen-evtchn)", source })
            }
            // The hypervisor's word for all that.
            Err(_) => Ok(None),
        }
    }

    /// Binds and maps all of it; `None` where its offerer has gone meanwhile.
    fn take(self, offerer: u16, deadline: Option<Instant>) -> Result<Option<Parts>, OpenError> {
        let Self { offer, life } = self;
        let found = match map(offerer, &[offer.directory], None) {
            Ok(found) => found,
            // What is granted no more can't be told from what never was.
            Err(source) if source.kind() == io::ErrorKind::InvalidInput => return Ok(None),
            Err(source) => {
                let action = "map the channel's directory (module xen-gntdev)";
                return Err(OpenError::System { action, source });
            }
        };
        if !is_of(&found, &offer) {
            return Ok(None);
        }
        let references = references(offerer, &found)?;
        // As long as it is mapped, the same number is the same page.
        let notice = Notice { offset: layout::end(1) + layout::END_ALIVE, port: &life };
        let again = |source| OpenError::System { action: "map the channel's directory", source };
        let directory = map(offerer, &[offer.directory], Some(notice)).map_err(again)?;
        let taken = (|| {
            let (data, room) = (Port::bind(offerer, offer.data)?, Port::bind(offerer, offer.room)?);
            Ok((data, room, map(offerer, &references, None)?))
        })();
        match taken {
            // What was granted may be granted again, to another channel of ours.
            Ok(_) if !is_of(&directory, &offer) => Ok(None),
            Ok((data, room, region)) => Ok(Some(Parts { offer, life, directory, data, room, region })),
            Err(_) if is_going(&directory, &life, deadline)? => Ok(None),
            Err(source) => {
                Err(OpenError::System { action: "bind and map what the other domain offers", source })
            }
        }
    }
}

/// Whether a page is the directory of this offer, of which nobody has been end 1 yet. Numbers of
/// grants are used again: it may be anything else that was granted to us.
fn is_of(page: &Region, offer: &layout::Offer) -> bool {
    page.load_u64(layout::OFFSET_MARK, Ordering::Acquire) == offer.mark
        && life::is_alive(page, 0)
        && page.load_u64(layout::end(1) + layout::END_CAME, Ordering::Acquire) == 0
}

/// Whether the offerer is gone. Of what it lets go of, the directory may be the last.
fn is_going(directory: &Region, life: &Port, deadline: Option<Instant>) -> Result<bool, OpenError> {
    let until = Instant::now() + GOING;
    let until = deadline.map_or(until, |deadline| until.min(deadline));
    while life::is_alive(directory, 0) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        poll(life, Some(left))?;
        let _rung = life.listen();
    }
    Ok(true)
}

/// All that makes our end.
struct Parts {
    offer: layout::Offer,
    life: Port,
    directory: Region,
    data: Port,
    room: Port,
    region: Region,
}

impl Parts {
    /// Tells the offerer that the channel is open.
    fn come(
        self,
        own: u16,
        offerer: u16,
        name: &str,
        mut store: Store,
        theirs: String,
    ) -> Result<End, OpenError> {
        let Self { offer, life, directory, data, room, region } = self;
        let system = |action| move |source| OpenError::System { action, source };
        let path = layout::open_path(offerer, own, name);
        let text = offer.directory.to_string();
        store.publish(&path, &text, own, offerer)?;
        life::come(&directory, 1);
        life.ring().map_err(system("tell the offerer that the channel is open"))?;
        let watched =
            Watched { side: 1, directory, notice: None, port: life, store, theirs, ours: (path, text) };
        let (life, hears) = Life::watch(watched).map_err(system("start the thread that watches the peer"))?;
        let (data, room) = bells(life, data, room);
        Ok(Mapped { side: 1, region, data, room, life: hears })
    }
}

/// The references of the region, copied out once and checked.
fn references(offerer: u16, directory: &Region) -> Result<Vec<u32>, OpenError> {
    let bad = |field, found| Err(OpenError::BadDirectory { domain: offerer, field, found });
    let word = |offset| directory.load_u64(offset, Ordering::Acquire);
    match word(layout::OFFSET_MAGIC) {
        layout::MAGIC => {}
        found => return bad("magic", found),
    }
    match word(layout::OFFSET_VERSION) {
        layout::VERSION => {}
        found => return bad("version", found),
    }
    let found = word(layout::OFFSET_PAGES);
    let Some(pages) = pages(found) else { return bad("number of pages", found) };
    let mut bytes = vec![0; 4 * pages];
    directory.copy_out(layout::OFFSET_REFERENCES, &mut bytes);
    Ok(bytes.as_chunks::<4>().0.iter().map(|reference| u32::from_le_bytes(*reference)).collect())
}

/// The number of pages, if a region has so many.
fn pages(alleged: u64) -> Option<usize> {
    let pages = usize::try_from(alleged).ok().filter(|&pages| pages <= layout::REFERENCES_MAX)?;
    let ring_bytes = pages.checked_sub(1)? * layout::PAGE_BYTES / 2;
    let exact = ring_bytes * 2 + layout::PAGE_BYTES == pages * layout::PAGE_BYTES;
    (exact && ring::is_ring_bytes(ring_bytes as u64)).then_some(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regions_have_a_number_of_pages() {
        for ring_pages in [1, 2, 4, 64, 256] {
            assert_eq!(pages(1 + 2 * ring_pages), Some(1 + 2 * ring_pages as usize));
        }
        for bad in [0, 1, 2, 4, 6, 7, 11, 512, 514, 1025, u64::MAX] {
            assert_eq!(pages(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_no_name_or_domain_is_refused_before_anything_is_touched() {
        assert!(matches!(open(0, "a/b", None), Err(OpenError::Name { .. })));
        assert!(matches!(open(0x7ff0, "a", None), Err(OpenError::Domain { .. })));
        let config = channel::Config::default();
        assert!(matches!(crate::offer(0, "", &config), Err(crate::OfferError::Name { .. })));
        assert!(matches!(crate::offer(0xffff, "a", &config), Err(crate::OfferError::Domain { .. })));
        let large = channel::Config { ring_bytes: 2 << 20, ..config };
        assert!(matches!(crate::offer(0, "a", &large), Err(crate::OfferError::RingBytes { .. })));
    }
}
