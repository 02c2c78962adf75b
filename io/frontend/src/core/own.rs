//! `/srv/self`: what a domain can read about itself.

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use serde_json::{Value, json};
use zerocopy::IntoBytes;

use super::parked::Op;
use super::{Call, Core, HELD_BYTES_MAX};
use crate::handle::{Body, Handle};
use crate::host::Host;
use crate::tree::{Node, Own};
use adaptation::Figure;

/// How long an open of `about.json` waits for the daemon before it shows what was known before, in
/// ns.
const ABOUT_WAIT_NS: u64 = 1_000_000_000;
/// The flag of open(2) for writing at the end.
const APPEND: u32 = rustix::fs::OFlags::APPEND.bits();
/// The access mode in the flags of open(2): for writing only.
const WRITE_ONLY: u32 = 1;

impl<H: Host> Core<H> {
    pub(super) fn open_own(&mut self, call: Call, own: Own, flags: u32) -> Result<(), Errno> {
        if flags & 3 != 0 && !own.is_writable() {
            return Err(Errno::ACCESS);
        }
        let reads = flags & 3 != WRITE_ONLY;
        if own == Own::Handover && flags & 3 != 0 {
            // It is said whole: what an earlier life said is not added to.
            if flags & APPEND != 0 {
                return Err(Errno::INVAL);
            }
            self.handover.begin()?;
        }
        let text = if reads { self.own_text(own) } else { Vec::new() };
        if self.held + text.len() > 2 * HELD_BYTES_MAX {
            return Err(Errno::NOBUFS);
        }
        let slot = self.allocate(Node::Own(own), (flags, false), call, Body::Own(text))?;
        if own == Own::Trace && reads {
            self.traces.readers += 1;
        }
        let deadline = call.arrived.saturating_add(ABOUT_WAIT_NS);
        if own.is_of_daemon() && reads && self.daemon_there {
            if self.park(call, Some(slot), Op::About, deadline) {
                self.ask_about();
            } else {
                self.discard(slot);
            }
            return Ok(());
        }
        self.finish_open(slot, call);
        Ok(())
    }

    /// The daemon has said what the domain is, or has had its time.
    pub(super) fn finish_abouts(&mut self, now: Option<u64>) {
        let waiting = self.parked.iter().filter(|(_, parked)| {
            matches!(parked.op, Op::About) && now.is_none_or(|now| parked.deadline <= now)
        });
        let keys: Vec<u64> = waiting.map(|(&key, _)| key).collect();
        for key in keys {
            let Some(parked) = self.unpark(key) else { continue };
            let Some(slot) = parked.slot else { continue };
            let own = match self.handle(slot).map(|handle| handle.node) {
                Some(Node::Own(own)) => own,
                _ => Own::About,
            };
            let text = self.own_text(own);
            if let Some(handle) = self.handle(slot) {
                handle.body = Body::Own(text);
            }
            self.finish_open(slot, parked.call);
        }
    }

    fn own_text(&mut self, own: Own) -> Vec<u8> {
        match own {
            Own::About => pretty(&self.about),
            Own::Name => {
                let name = self.about.get("name").or_else(|| self.about.get("domain"));
                let name = name.and_then(Value::as_str).unwrap_or_default();
                format!("{name}\n").into_bytes()
            }
            Own::Services => self.services_text().into_bytes(),
            Own::Counters => pretty(&self.counters_json()),
            Own::Latency => pretty(&self.counters.latencies_to_json()),
            Own::Targets => self.targets_text().into_bytes(),
            Own::Trace => self.traces.to_lines(),
            Own::Quality => {
                self.quality.figure.map_or_else(Vec::new, |figure| format!("{figure}\n").into_bytes())
            }
            // What can't be read is not there.
            Own::Handover => self.handover.read().unwrap_or_default(),
            Own::Level => {
                let level = self.about.pointer("/adaptation/level").and_then(Value::as_u64).unwrap_or(0);
                format!("{level}\n").into_bytes()
            }
        }
    }

    fn services_text(&self) -> String {
        let present = self.tree.services.iter().enumerate().filter(|(_, service)| service.present);
        let lines = present.map(|(at, service)| {
            let mounted = &service.mounted;
            let state = if self.is_up(at) { "up" } else { "down" };
            format!(
                "{} {} {} {} {}\n",
                mounted.name,
                mounted.kind,
                mounted.at,
                state,
                mounted.verbs.join(",")
            )
        });
        lines.collect()
    }

    fn counters_json(&self) -> Value {
        let mut counters = self.counters.to_json();
        if let Some(object) = counters.as_object_mut() {
            object.insert("open_files".into(), self.open_handles.into());
            object.insert("parked_calls".into(), self.parked.len().into());
            object.insert("held_bytes".into(), self.held.into());
            object.insert("takeovers".into(), self.takeovers.into());
        }
        counters
    }

    /// All that the daemon shows of this frontend.
    pub(crate) fn state(&mut self) -> Value {
        let targets = self.targets_json();
        let present = self.tree.services.iter().enumerate().filter(|(_, service)| service.present);
        let services: serde_json::Map<_, _> = present
            .map(|(at, service)| {
                let mounted = &service.mounted;
                let link = self.link(at);
                let value = json!({
                    "kind": mounted.kind, "at": mounted.at, "verbs": mounted.verbs,
                    "up": self.is_up(at), "generation": link.generation, "links": link.epoch,
                });
                (mounted.name.clone(), value)
            })
            .collect();
        json!({
            "services": services,
            "counters": self.counters_json(),
            "latency": self.counters.latencies_to_json(),
            "targets": targets,
            "quality": {
                "thousandths": self.quality.figure.map(|figure| figure.0),
                "writes": self.quality.writes, "refused": self.quality.refused,
            },
            "parked_calls": self.parked.len(),
            "fuse": { "minor": self.agreed.map(|a| a.minor), "resend": self.agreed.map(|a| a.resend) },
        })
    }

    /// `on`, `off` and `clear` for the trace, figures for the quality, and what the next life is to
    /// know; everything else in `/srv/self` is only read.
    pub(super) fn write_own(
        &mut self,
        call: Call,
        node: Node,
        (offset, data): (u64, &[u8]),
    ) -> Result<(), Errno> {
        if node == Node::Own(Own::Handover) {
            self.handover.write(offset, data)?;
            self.answer(call, fuse::fuse_write_out { size: data.len() as u32, padding: 0 }.as_bytes());
            return Ok(());
        }
        if node == Node::Own(Own::Quality) {
            self.quality.write(data)?;
            self.answer(call, fuse::fuse_write_out { size: data.len() as u32, padding: 0 }.as_bytes());
            return Ok(());
        }
        if node != Node::Own(Own::Trace) {
            return Err(Errno::BADF);
        }
        for line in data.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            match line {
                b"on" => self.traces.wanted = true,
                b"off" => self.traces.wanted = false,
                b"clear" => self.traces.clear(),
                _ => return Err(Errno::INVAL),
            }
        }
        self.answer(call, fuse::fuse_write_out { size: data.len() as u32, padding: 0 }.as_bytes());
        Ok(())
    }

    /// A file that a predecessor had opened shows what is now.
    pub(super) fn reopen_own(&mut self, own: Own, handle: &mut Handle) {
        handle.body = Body::Own(self.own_text(own));
        self.traces.readers += u32::from(own == Own::Trace);
    }

    pub(super) fn close_own(&mut self, handle: &Handle) {
        if handle.node == Node::Own(Own::Trace) && handle.flags & 3 != WRITE_ONLY {
            self.traces.readers = self.traces.readers.saturating_sub(1);
        }
    }
}

/// The figure of the domain's program: how well it does what it is for, in its own unit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quality {
    figure: Option<Figure>,
    /// Figures that were written: whoever reads sees by it that there is a new one.
    writes: u64,
    /// Writes that were none.
    refused: u64,
}

impl Quality {
    fn write(&mut self, data: &[u8]) -> Result<(), Errno> {
        let Ok(figure) = Figure::parse(data) else {
            self.refused = self.refused.wrapping_add(1);
            return Err(Errno::INVAL);
        };
        self.figure = Some(figure);
        self.writes = self.writes.wrapping_add(1);
        Ok(())
    }
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}
