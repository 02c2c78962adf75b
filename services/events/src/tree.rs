//! The tree: a folder for each channel, and its files.

use crate::service::{Events, Open, ROOT};
use crate::session_table::Link;
use crate::sessions::{node_of, number_of_node};
use rustix::io::Errno;
use session::{Context, ReplyTo};
use wire::events::file;
use wire::service::{Behaviour, Change, ENTRY_BYTES, Entry, Kind, List, Node, OWNER_NONE, Operation};

/// The files of a channel.
const FILES: [(&str, u32, Behaviour); 5] = [
    ("pub", file::PUB, Behaviour::Stream),
    ("sub", file::SUB, Behaviour::Stream),
    ("ctl", file::CTL, Behaviour::Control),
    ("stats", file::STATS, Behaviour::Text),
    ("last", file::LAST, Behaviour::Text),
];
const NS: u64 = 1_000_000_000;

impl Events {
    /// A question about names, or a change of them.
    pub(crate) fn take_tree(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        kind: Kind,
        payload: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let link = *self.links.get(&to.link).ok_or(Errno::ACCESS)?;
        match kind {
            Kind::Lookup => self.look_up(link, to.file, payload).map(|node| node.encode().to_vec()),
            // Sizes and times may be set, to no effect: `echo x > ctl` is no error.
            Kind::Stat | Kind::Set => self.node(link, to.file).map(|node| node.encode().to_vec()),
            Kind::List => {
                let list = List::decode(payload).map_err(|_| Errno::INVAL)?;
                self.list(link, to.file, list)
            }
            Kind::Change => {
                let change = Change::decode(payload).map_err(|_| Errno::INVAL)?;
                self.change(ctx, link, to, &change)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn open_of(&self, serial: u32) -> Result<&Open, Errno> {
        self.channels.get(&serial).ok_or(Errno::STALE)
    }

    fn look_up(&self, link: Link, folder: u32, name: &[u8]) -> Result<Node, Errno> {
        if folder == ROOT {
            let &serial = self.names.get(name).ok_or(Errno::NOENT)?;
            return self.node(link, number_of_node(serial, file::FOLDER));
        }
        let (serial, which) = node_of(folder).ok_or(Errno::NOENT)?;
        if which != file::FOLDER {
            return Err(Errno::NOTDIR);
        }
        let found = FILES.iter().find(|(known, ..)| known.as_bytes() == name).ok_or(Errno::NOENT)?;
        self.node(link, number_of_node(serial, found.1))
    }

    fn node(&self, link: Link, number: u32) -> Result<Node, Errno> {
        let node = |behaviour, mode, changed_ns: u64| Node {
            number,
            behaviour,
            idempotent: true,
            mode,
            links: if behaviour == Behaviour::Folder { 2 } else { 1 },
            size: 0,
            changed: (changed_ns / NS, u32::try_from(changed_ns % NS).unwrap_or(0)),
            owner: (OWNER_NONE, OWNER_NONE),
        };
        let Some((serial, which)) = node_of(number) else { return Ok(node(Behaviour::Folder, 0o755, 0)) };
        let open = self.open_of(serial)?;
        if which == file::FOLDER {
            return Ok(node(Behaviour::Folder, 0o755, open.changed_ns));
        }
        let (.., behaviour) = FILES.iter().find(|(_, known, _)| *known == which).ok_or(Errno::NOENT)?;
        Ok(node(*behaviour, mode_of(link, which), open.changed_ns))
    }

    fn list(&self, link: Link, folder: u32, list: List) -> Result<Vec<u8>, Errno> {
        let mut answer = Vec::new();
        let mut add = |node: Node, place: u64, name: &[u8]| {
            let fits = answer.len() + ENTRY_BYTES + name.len() <= list.bytes as usize;
            if fits {
                Entry { node, place, name }.append(&mut answer);
            }
            fits
        };
        if folder == ROOT {
            let after = u32::try_from(list.after).unwrap_or(u32::MAX).saturating_add(1);
            for (&serial, open) in self.channels.range(after..) {
                let node = self.node(link, number_of_node(serial, file::FOLDER))?;
                if !add(node, u64::from(serial), open.channel.name()) {
                    break;
                }
            }
            return Ok(answer);
        }
        let (serial, which) =
            node_of(folder).filter(|(_, which)| *which == file::FOLDER).ok_or(Errno::NOTDIR)?;
        debug_assert_eq!(which, file::FOLDER, "filtered");
        for (name, which, _) in FILES.iter().filter(|(_, which, _)| u64::from(*which) > list.after) {
            let node = self.node(link, number_of_node(serial, *which))?;
            if !add(node, u64::from(*which), name.as_bytes()) {
                break;
            }
        }
        Ok(answer)
    }

    fn change(
        &mut self,
        ctx: &mut dyn Context,
        link: Link,
        to: ReplyTo,
        change: &Change<'_>,
    ) -> Result<Vec<u8>, Errno> {
        if !link.manages {
            return Err(Errno::ACCESS);
        }
        match change.operation {
            Operation::MakeFolder if to.file == ROOT => {
                let serial = self.make(change.name, link.owner, &self.settings.made.clone())?;
                Ok(self.node(link, number_of_node(serial, file::FOLDER))?.encode().to_vec())
            }
            Operation::RemoveFolder if to.file == ROOT => {
                let &serial = self.names.get(change.name).ok_or(Errno::NOENT)?;
                // What the file names, and what another domain has made, is not this one's to
                // remove.
                if self.open_of(serial)?.channel.owner() != link.owner {
                    return Err(Errno::PERM);
                }
                self.remove(ctx, serial);
                Ok(Vec::new())
            }
            _ => Err(Errno::PERM),
        }
    }
}

/// The mode of a file: a domain that may not use one sees that it is there, and nothing more.
fn mode_of(link: Link, which: u32) -> u16 {
    match which {
        file::PUB if link.publishes => 0o222,
        file::SUB if link.subscribes => 0o666,
        file::CTL if link.manages => 0o644,
        file::CTL | file::STATS => 0o444,
        file::LAST if link.subscribes => 0o444,
        _ => 0,
    }
}
