//! The offerer's half.

use std::io;
use std::sync::atomic::Ordering;

use channel::{Config, Mapped};
use sys::xen::event::Port;
use wire::ring;
use wire::xen as layout;

use crate::bell::bells;
use crate::granted::{self, Given, Lack};
use crate::life::{self, Life, Watched};
use crate::store::Store;
use crate::{End, OfferError};

/// Offers a channel to domain `opener`, by a name that is its own between the two. Returns our end
/// at once: what is sent before the other has come waits in the ring. An earlier offer of this name
/// that nobody has opened is replaced. Of `config`, `huge_pages` and `apart` mean nothing here.
///
/// # Errors
/// See [`OfferError`].
pub fn offer(opener: u16, name: &str, config: &Config) -> Result<End, OfferError> {
    check(opener, name, config)?;
    let mut store = Store::open()?;
    let own = store.domain()?;
    if own == opener {
        return Err(OfferError::SameDomain { domain: own });
    }
    let system = |action| move |source| OfferError::System { action, source };
    let port = || Port::offer(opener).map_err(system("make an event channel (module xen-evtchn)"));
    let (data, room, life) = (port()?, port()?, port()?);
    let pages = ring::region_bytes(config.ring_bytes) / layout::PAGE_BYTES as u64;
    let pages =
        usize::try_from(pages).map_err(|_| OfferError::RingBytes { ring_bytes: config.ring_bytes })?;
    let granted = granted::give(opener, pages, &life).map_err(|lack| match lack {
        Lack::Share(pages) => OfferError::Share { domain: opener, pages },
        Lack::System(source) => OfferError::System {
            action: "grant memory to the other domain (module xen-gntalloc; its parameter `limit`)",
            source,
        },
    })?;
    channel::write_header(&granted.region, &Config { apart: true, ..*config }).map_err(OfferError::Header)?;
    let mark = mark().map_err(system("get random bits"))?;
    fill(&granted, mark);

    let theirs = layout::open_path(own, opener, name);
    store.watch(&theirs)?;
    let text = layout::Offer {
        directory: granted.directory_reference,
        data: data.number(),
        room: room.number(),
        life: life.number(),
        mark,
    }
    .to_string();
    let path = layout::offer_path(own, opener, name);
    store.publish(&path, &text, own, opener)?;

    let watched = Watched {
        side: 0,
        directory: granted.directory,
        notice: Some(granted.notice),
        port: life,
        store,
        theirs,
        ours: (path, text),
    };
    let (life, hears) = Life::watch(watched).map_err(system("start the thread that watches the peer"))?;
    let (data, room) = bells(life, data, room);
    Ok(Mapped { side: 0, region: granted.region, data, room, life: hears })
}

fn check(opener: u16, name: &str, config: &Config) -> Result<(), OfferError> {
    if !layout::is_name(name) {
        return Err(OfferError::Name { name: name.to_owned() });
    }
    if opener > layout::DOMAIN_MAX {
        return Err(OfferError::Domain { domain: opener });
    }
    let ring_bytes = config.ring_bytes;
    if !ring::is_ring_bytes(ring_bytes.into()) || ring_bytes > layout::RING_BYTES_MAX {
        return Err(OfferError::RingBytes { ring_bytes });
    }
    Ok(())
}

/// Writes what the opener looks for, and that we are there.
fn fill(granted: &Given, mark: u64) {
    let directory = &granted.directory;
    for (offset, value) in [
        (layout::OFFSET_MAGIC, layout::MAGIC),
        (layout::OFFSET_VERSION, layout::VERSION),
        (layout::OFFSET_PAGES, granted.references.len() as u64),
        (layout::OFFSET_MARK, mark),
    ] {
        directory.store_u64(offset, value, Ordering::Relaxed);
    }
    let references: Vec<u8> =
        granted.references.iter().flat_map(|reference| reference.to_le_bytes()).collect();
    directory.copy_in(layout::OFFSET_REFERENCES, &references);
    life::come(directory, 0);
}

fn mark() -> io::Result<u64> {
    let mut bits = [0; 8];
    // So few come at once, or not at all.
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bits))
}
