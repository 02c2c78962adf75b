//! The events of a machine, as QEMU tells them.

use qmp::Event as Told;
use serde_json::Value;

/// The oldest QEMU that has all that is asked of it.
pub(crate) const OLDEST: qmp::Version = qmp::Version { major: 6, minor: 2, micro: 0 };

/// An event in a machine, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The machine goes off: QEMU's word for why (`guest-reset`, ...).
    Shutdown(String),
    /// The guest's kernel says that it panicked.
    Panicked,
    /// A device is gone.
    Deleted(String),
    /// The guest did not let go of a device.
    NotDeleted(String),
    /// The guest's port was opened or closed.
    Port(bool),
}

impl Event {
    /// `None`: something that does not matter.
    pub fn of(told: &Told) -> Option<Self> {
        match told.name.as_str() {
            "SHUTDOWN" => Some(Self::Shutdown(told.text("reason").unwrap_or_default())),
            "GUEST_PANICKED" => Some(Self::Panicked),
            // Devices that were not plugged by us have no name.
            "DEVICE_DELETED" => told.text("device").map(Self::Deleted),
            "DEVICE_UNPLUG_GUEST_ERROR" => told.text("device").map(Self::NotDeleted),
            "VSERPORT_CHANGE" => told.data.get("open").and_then(Value::as_bool).map(Self::Port),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_told_apart_and_unknown_ones_let_pass() {
        for (name, data, event) in [
            (
                "SHUTDOWN",
                json!({ "guest": true, "reason": "guest-reset" }),
                Some(Event::Shutdown("guest-reset".to_owned())),
            ),
            ("NIC_RX_FILTER_CHANGED", Value::Null, None),
            ("GUEST_PANICKED", json!({}), Some(Event::Panicked)),
            ("VSERPORT_CHANGE", json!({ "open": true, "id": "x" }), Some(Event::Port(true))),
            ("DEVICE_DELETED", json!({ "path": "p" }), None),
            (
                "DEVICE_UNPLUG_GUEST_ERROR",
                json!({ "device": "c2", "path": "p" }),
                Some(Event::NotDeleted("c2".to_owned())),
            ),
        ] {
            assert_eq!(Event::of(&Told { name: name.to_owned(), data }), event, "{name}");
        }
    }
}
