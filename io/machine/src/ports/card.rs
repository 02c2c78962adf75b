//! A network card that somebody on the node has plugged in, with a tap of his own: for
//! measurements.

use super::{Done, Next, Step};
use crate::qemu::command_line::port_name;
use qmp::Command;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// The properties of a card beside its address that may be set: switches of `virtio-net-pci` that
/// have no effect outside the guest.
const PROPERTIES: [&str; 9] = [
    "event_idx",
    "ctrl_vq",
    "mq",
    "mrg_rxbuf",
    "indirect_desc",
    "ioeventfd",
    "disable-legacy",
    "disable-modern",
    "packed",
];

/// A network card.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CardOrder {
    /// Its address, `52:54:00:00:00:01`.
    pub mac: String,
    /// Some of [`PROPERTIES`].
    #[serde(default)]
    pub properties: BTreeMap<String, bool>,
}

impl CardOrder {
    /// Its fault, if any.
    pub fn fault(&self) -> Option<String> {
        let bytes: Vec<&str> = self.mac.split(':').collect();
        let is_mac = bytes.len() == 6
            && bytes.iter().all(|byte| byte.len() == 2 && u8::from_str_radix(byte, 16).is_ok());
        if !is_mac {
            return Some("`mac` is no address of a network card".to_owned());
        }
        let unknown = self.properties.keys().find(|name| !PROPERTIES.contains(&name.as_str()));
        unknown.map(|_| format!("properties are {}", PROPERTIES.join(", ")))
    }
}

/// A card that is plugged in, for as long as the machine runs.
#[derive(Debug)]
pub(crate) struct Card {
    port: usize,
    order: CardOrder,
    asker: Option<OwnedFd>,
}

impl Card {
    pub fn new(port: usize, asker: OwnedFd, order: CardOrder, tap: OwnedFd) -> (Self, Command) {
        let card = Self { port, order, asker: Some(asker) };
        let command = Command::give(&card.name("tap"), tap);
        (card, command)
    }

    fn name(&self, of: &str) -> String {
        format!("{of}{}", self.port)
    }

    /// Whether it is not there yet.
    pub fn is_coming(&self) -> bool {
        self.asker.is_some()
    }

    /// Takes an answer: returns what to do next, and whether the port is free again.
    pub fn answered(&mut self, step: Step, answer: Result<(), String>) -> (Next, bool) {
        match (step, answer) {
            (Step::Give, Ok(())) => {
                let (id, fd) = (self.name("net"), self.name("tap"));
                let arguments = json!({ "type": "tap", "id": id, "fd": fd, "vhost": false });
                (Next::ask(Step::Backend, Command::with("netdev_add", arguments)), false)
            }
            (Step::Backend, Ok(())) => (Next::ask(Step::Plug, self.device()), false),
            (Step::Plug, Ok(())) => (self.done(Ok(())), false),
            (Step::Give | Step::Backend, Err(why)) => (self.done(Err(why)), true),
            (Step::Plug, Err(why)) => {
                let mut next = self.done(Err(why));
                next.ask =
                    Some((Step::Remove, Command::with("netdev_del", json!({ "id": self.name("net") }))));
                (next, false)
            }
            (Step::Remove, _) => (Next::default(), true),
            (Step::Taken | Step::Settled | Step::Quiet | Step::Unplug | Step::Cover | Step::Chore, _) => {
                (Next::default(), false)
            }
        }
    }

    fn done(&mut self, result: Result<(), String>) -> Next {
        self.asker.take().map_or_else(Next::default, |asker| Next::done(Done::Card(asker, result)))
    }

    fn device(&self) -> Command {
        let mut arguments = json!({
            "driver": "virtio-net-pci", "id": self.name("card"), "netdev": self.name("net"), "mac": self.order.mac,
            "bus": port_name(self.port),
        });
        if let Value::Object(map) = &mut arguments {
            map.extend(self.order.properties.iter().map(|(name, on)| (name.clone(), Value::from(*on))));
        }
        Command::with("device_add", arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_an_address_and_some_switches() {
        let card = |text| serde_json::from_str::<CardOrder>(text).unwrap().fault();
        assert_eq!(card(r#"{"mac":"52:54:00:00:00:01","properties":{"event_idx":false}}"#), None);
        assert!(card(r#"{"mac":"52:54:00:00:00"}"#).is_some());
        assert!(card(r#"{"mac":"52:54:00:00:00:zz"}"#).is_some());
        let told = card(r#"{"mac":"52:54:00:00:00:01","properties":{"romfile":true}}"#).unwrap();
        assert!(told.contains("event_idx"), "{told}");
    }
}
