//! Text for people and scripts: `ctl`, `stats`, `last`, and the part of the node's state tree.

use crate::service::{Events, Open};
use crate::sessions::node_of;
use publication::{Format, InstalledFilter, Overflow, Shape};
use rustix::io::Errno;
use serde_json::{Value, json};
use session::ReplyTo;
use std::fmt::Write;
use wire::events::file;
use wire::events::module::{FUEL_PER_BYTE, FUEL_PER_EVENT, MEMORY_BYTES_MAX};

/// Subscriptions that are described one by one; of more, only how many there are.
const DESCRIBED_MAX: usize = 64;
/// Bytes of the channels in the node's state tree: of the 64 KiB of a packet, in which there are
/// other services of the server, too.
const DESCRIBED_BYTES_MAX: usize = 40 * 1024;

impl Events {
    /// A text that is read, or a line that is written to `ctl`.
    pub(crate) fn take_text_request(&mut self, to: ReplyTo, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let (serial, which) = node_of(to.file).ok_or(Errno::NOENT)?;
        let link = *self.links.get(&to.link).ok_or(Errno::ACCESS)?;
        match which {
            file::CTL if !payload.is_empty() => {
                let said = self.take_ctl_line(to, serial, payload);
                if let Err((errno, reason)) = said {
                    self.note_refusal(to.link, &reason);
                    return Err(errno);
                }
                Ok(Vec::new())
            }
            file::CTL => self.channels.get(&serial).map(ctl_text).ok_or(Errno::STALE),
            file::STATS => {
                let refusal = self.tenants.get(&link.owner).map(|it| it.refusal.clone()).unwrap_or_default();
                let open = self.channels.get(&serial).ok_or(Errno::STALE)?;
                Ok(self.stats_text(open, to, &refusal))
            }
            file::LAST if link.subscribes => self.newest(serial, to.link),
            file::LAST => Err(Errno::ACCESS),
            _ => Err(Errno::INVAL),
        }
    }

    fn take_ctl_line(&mut self, to: ReplyTo, serial: u32, line: &[u8]) -> Result<(), (Errno, String)> {
        let refused = |why: &str| (Errno::INVAL, why.to_owned());
        let link = *self.links.get(&to.link).ok_or((Errno::ACCESS, String::new()))?;
        let open = self.channels.get_mut(&serial).ok_or((Errno::STALE, String::new()))?;
        let is_of_another = open.channel.owner() != 0 && open.channel.owner() != link.owner;
        if !link.manages || is_of_another {
            return Err((Errno::PERM, "the channel is another domain's".to_owned()));
        }
        let text = std::str::from_utf8(line).map_err(|_| refused("this is no text"))?;
        let (word, number) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
        if word == "format" {
            let format = Format::parse(number).map_err(|error| refused(&error.to_string()))?;
            // An event that is read otherwise has other fields, or none, and passes other filters.
            if self.given.keys().any(|(name, _)| name[..] == *open.channel.name()) {
                return Err((
                    Errno::PERM,
                    "the topology file has filters for this channel, and so its format".into(),
                ));
            }
            open.channel.set_format(format);
            return Ok(());
        }
        let number: u64 = number.trim().parse().map_err(|_| {
            refused("a line is `history`, `event` or `wait` and a number, or `format` and a format")
        })?;
        let shape = open.channel.shape();
        let changed = match word {
            "history" => Shape { history: number, ..shape },
            "wait" if number <= self.settings.made.wait_ms.max(shape.wait_ms) => {
                Shape { wait_ms: number, ..shape }
            }
            "wait" => {
                let most = self.settings.made.wait_ms.max(shape.wait_ms);
                return Err((
                    Errno::PERM,
                    format!("the topology file lets publishers wait {most} ms at the most"),
                ));
            }
            "event" => {
                let longest = open.channel.longest_event().min(wire::events::EVENT_BYTES_MAX);
                let bytes = usize::try_from(number).ok().filter(|bytes| (1..=longest).contains(bytes));
                let bytes =
                    bytes.ok_or_else(|| refused(&format!("an event has 1 to {longest} bytes here")))?;
                Shape { event_bytes: bytes, ..shape }
            }
            _ => {
                return Err(refused(
                    "a line is `history`, `event` or `wait` and a number, or `format` and a format",
                ));
            }
        };
        open.channel.reshape(changed);
        Ok(())
    }

    /// The channel, and the subscriptions of the domain that asks.
    fn stats_text(&self, open: &Open, to: ReplyTo, refusal: &str) -> Vec<u8> {
        let channel = &open.channel;
        let (counters, (oldest, next), (buffer, used)) =
            (channel.counters(), channel.sequences(), channel.buffer());
        let mut text = format!(
            "next {next}\noldest {oldest}\npublished {}\nbytes {}\nbuffer {buffer}\nused {used}\npublishers {}\nsubscribers {}\nwaiting {}\nwaited {}\ndoubles {}\nunreadable {}\n",
            counters.published,
            counters.bytes,
            channel.publisher_count(),
            channel.subscription_count(),
            open.waiting.len(),
            counters.waited,
            counters.doubles,
            counters.unreadable,
        );
        let mut line = |written: std::fmt::Arguments<'_>| {
            let written = text.write_fmt(written);
            debug_assert!(written.is_ok(), "a string takes everything");
        };
        for InstalledFilter { text, cost, since, users, usage } in channel.filters() {
            line(format_args!("filter cost={cost} since={since} subscribers={users} "));
            if let Some(usage) = usage {
                line(format_args!(
                    "judged={} fuel={} memory={} fuel_limit={FUEL_PER_EVENT}+{FUEL_PER_BYTE}/byte memory_limit={MEMORY_BYTES_MAX} ",
                    usage.judged, usage.fuel, usage.memory_bytes,
                ));
            }
            line(format_args!("{text}\n"));
        }
        let owner = self.links.get(&to.link).map(|link| link.owner);
        for state in open.subscribers.iter().flatten().take(DESCRIBED_MAX) {
            let Some((id, key)) = open
                .subscribers
                .iter()
                .position(|it| it.as_ref() == Some(state))
                .and_then(|at| channel.subscription_at(at))
            else {
                continue;
            };
            if self.links.get(&key.0).map(|link| link.owner) != owner {
                continue;
            }
            let position = channel.position(id);
            let (overflow, filter) = channel.terms(id);
            let overflow = overflow_text(overflow);
            line(format_args!(
                "subscription next={} delivered={} lost={} overflow={overflow} filter={}\n",
                position.next,
                position.delivered,
                position.lost,
                filter.map_or("none", |(text, ..)| text),
            ));
        }
        if !refusal.is_empty() {
            line(format_args!("refused {refusal}\n"));
        }
        text.into_bytes()
    }

    /// The channels in the node's state tree, and how many are left out: a server's state goes to
    /// the daemon in one packet. Those of the file come first, so that no domain hides them by
    /// making many.
    pub(crate) fn describe_channels(&self) -> (Vec<Value>, usize) {
        let of_file = |open: &&Open| open.channel.owner() == 0;
        let first = self.channels.values().filter(of_file);
        let all = first.chain(self.channels.values().filter(|open| !of_file(open)));
        let (mut rows, mut room) = (Vec::new(), DESCRIBED_BYTES_MAX);
        for open in all {
            let mut row = self.describe(open);
            if row.to_string().len() > room / 2 {
                // Who installs long filters does not hide the channel.
                (row["filters"], row["subscriptions"]) = (json!([]), json!([]));
            }
            let Some(left) = room.checked_sub(row.to_string().len()) else { break };
            room = left;
            rows.push(row);
        }
        let left_out = self.channels.len() - rows.len();
        (rows, left_out)
    }

    /// A channel in the node's state tree.
    fn describe(&self, open: &Open) -> Value {
        let channel = &open.channel;
        let (counters, (oldest, next), (buffer, used)) =
            (channel.counters(), channel.sequences(), channel.buffer());
        let shape = channel.shape();
        let made_by = self.tenants.get(&channel.owner()).map(|tenant| tenant.name.as_str());
        let filters = channel.filters().map(|it| {
            let mut row =
                json!({ "filter": it.text, "cost": it.cost, "since": it.since, "subscribers": it.users });
            if let Some(usage) = it.usage {
                row["judged"] = json!(usage.judged);
                (row["fuel"], row["memory_bytes"]) = (json!(usage.fuel), json!(usage.memory_bytes));
            }
            row
        });
        let states = open.subscribers.iter().enumerate();
        let states = states.filter_map(|(at, state)| Some((channel.subscription_at(at)?, state.as_ref()?)));
        let subscriptions = states.take(DESCRIBED_MAX).map(|((id, key), state)| {
            let position = channel.position(id);
            let (overflow, filter) = channel.terms(id);
            let domain = self.links.get(&key.0).and_then(|link| self.tenants.get(&link.owner));
            json!({
                "domain": domain.map(|tenant| tenant.name.as_str()),
                "next": position.next, "delivered": position.delivered, "lost": position.lost,
                "overflow": overflow_text(overflow), "filter": filter.map(|(text, ..)| text), "held": state.held,
            })
        });
        json!({
            "channel": String::from_utf8_lossy(channel.name()),
            "made_by": made_by,
            "event_bytes": shape.event_bytes, "history": shape.history, "wait_ms": shape.wait_ms,
            "format": channel.format().to_string(),
            "buffer_bytes": buffer, "used_bytes": used, "oldest": oldest, "next": next,
            "published": counters.published, "bytes": counters.bytes, "waited": counters.waited,
            "doubles": counters.doubles, "unreadable": counters.unreadable, "waiting": open.waiting.len(),
            "publishers": channel.publisher_count(), "subscribers": channel.subscription_count(),
            "filters": filters.collect::<Vec<_>>(), "subscriptions": subscriptions.collect::<Vec<_>>(),
        })
    }
}

fn ctl_text(open: &Open) -> Vec<u8> {
    let shape = open.channel.shape();
    let format = open.channel.format();
    format!(
        "event {}\nhistory {}\nwait {}\nformat {format}\n",
        shape.event_bytes, shape.history, shape.wait_ms
    )
    .into_bytes()
}

fn overflow_text(overflow: Overflow) -> String {
    match overflow {
        Overflow::DropOldest => "drop".into(),
        Overflow::Latest => "latest".into(),
        Overflow::Wait(ms) => format!("wait {ms}"),
    }
}
