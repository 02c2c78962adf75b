//! MQTT 5 by rumqttc. Of its reconnecting client only one connection is used: what was not
//! acknowledged is sent again by [`crate::Outbox`], in order, also to a broker that has forgotten
//! the session.

use crate::engine::{
    Arrival, Connection, Engine, EngineError, Message, Receiver, Sender, Subscription, Told,
};
use crate::outbox::WINDOW;
use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::v5::{
    Filter, Packet, PubAckReason, Publish, RetainForwardRule, SubscribeReasonCode,
};
use rumqttc::v5::mqttbytes::{QoS, valid_filter, valid_topic};
use rumqttc::v5::{Client, Event, MqttOptions};
use std::collections::VecDeque;
use std::time::Duration;
use wire::events::EVENT_BYTES_MAX;

/// How often a quiet broker is asked whether it is there; one that does not answer is given up
/// after as long again.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long the broker keeps the session of a gateway that is away, in s: over a restart of its
/// node.
const SESSION_SECONDS: u32 = 3600;
/// The longest message that the broker may send: an event and its topic. It drops longer ones.
const PACKET_BYTES_MAX: u32 = EVENT_BYTES_MAX as u32 + (64 << 10) + 64;
/// Messages that have come and have no receipt yet: half a window for each of both directions.
pub(crate) const ARRIVALS_MAX: u16 = 32;
/// Requests that may wait inside of the client: two windows, receipts, and a subscription.
const REQUESTS_MAX: usize = 4 * WINDOW;
/// Most bytes of a packet beside its topic and its payload: type and length, the topic's length, a
/// number, no properties.
const PACKET_OVERHEAD_BYTES: usize = 5 + 2 + 2 + 1;

/// The address of a broker, and the login there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The name of the session: of two clients with the same one the broker closes the older.
    pub client: String,
    /// A user's name and password.
    pub login: Option<(String, String)>,
}

/// Whether messages can be published to this topic.
#[must_use]
pub fn is_topic(topic: &str) -> bool {
    !topic.is_empty() && topic.len() <= usize::from(u16::MAX) && !topic.contains('\0') && valid_topic(topic)
}

/// Whether this is a pattern of topics.
#[must_use]
pub fn is_filter(filter: &str) -> bool {
    !filter.is_empty()
        && filter.len() <= usize::from(u16::MAX)
        && !filter.contains('\0')
        && valid_filter(filter)
}

/// Whether a topic is one of those that a filter stands for. (That of rumqttc 0.25 panics where a
/// topic begins with a letter beyond ASCII.)
fn matches(topic: &str, filter: &str) -> bool {
    // Topics of the broker itself are meant by their first level alone.
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        match (wanted, levels.next()) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (wanted, Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

/// The engine.
#[derive(Debug)]
pub struct Mqtt {
    options: MqttOptions,
}

impl Mqtt {
    /// An engine that is not connected yet.
    #[must_use]
    pub fn new(broker: &Broker) -> Self {
        let mut options = MqttOptions::new(&broker.client, &broker.host, broker.port);
        options
            .set_keep_alive(KEEP_ALIVE)
            .set_clean_start(false)
            .set_session_expiry_interval(Some(SESSION_SECONDS))
            .set_receive_maximum(Some(ARRIVALS_MAX))
            .set_max_packet_size(Some(PACKET_BYTES_MAX))
            .set_manual_acks(true)
            .set_outgoing_inflight_upper_limit(WINDOW as u16);
        if let Some((user, password)) = &broker.login {
            options.set_credentials(user, password);
        }
        Self { options }
    }
}

/// Returns a subscription as MQTT has it: without the messages that this client has published
/// itself, and with retained ones only once.
fn filter_of(subscription: &Subscription) -> Filter {
    Filter {
        path: subscription.filter.clone(),
        qos: qos_of(subscription.reliable),
        nolocal: true,
        preserve_retain: false,
        retain_forward_rule: RetainForwardRule::OnNewSubscribe,
    }
}

fn qos_of(reliable: bool) -> QoS {
    if reliable { QoS::AtLeastOnce } else { QoS::AtMostOnce }
}

impl Engine for Mqtt {
    fn connect(&mut self, subscriptions: &[Subscription]) -> Result<Connection, EngineError> {
        let (client, connection) = Client::new(self.options.clone(), REQUESTS_MAX);
        let filters = subscriptions.iter().map(|it| it.filter.clone()).collect();
        let mut listener = Listener { client: client.clone(), connection, filters, early: VecDeque::new() };
        let longest = listener.wait_for(|packet| match packet {
            Packet::ConnAck(answer) => {
                let told = answer.properties.as_ref().and_then(|it| it.max_packet_size);
                Some(Ok(
                    told.map_or(usize::MAX, |bytes| (bytes as usize).saturating_sub(PACKET_OVERHEAD_BYTES))
                ))
            }
            _ => None,
        })?;
        if !subscriptions.is_empty() {
            let filters = subscriptions.iter().map(filter_of);
            client.try_subscribe_many(filters).map_err(|error| EngineError(error.to_string()))?;
            listener.wait_for(|packet| match packet {
                Packet::SubAck(answer) => Some(granted(subscriptions, &answer.return_codes)),
                _ => None,
            })?;
        }
        Ok(Connection { sender: Box::new(Speaker(client)), receiver: Box::new(listener), longest })
    }
}

/// Whether the broker gives what was asked for.
fn granted(subscriptions: &[Subscription], codes: &[SubscribeReasonCode]) -> Result<(), EngineError> {
    if codes.len() != subscriptions.len() {
        return Err(EngineError("the broker answers fewer subscriptions than there are, or more".into()));
    }
    for (subscription, code) in subscriptions.iter().zip(codes) {
        match code {
            SubscribeReasonCode::Success(QoS::AtMostOnce) if subscription.reliable => {
                let filter = &subscription.filter;
                return Err(EngineError(format!("the broker lets nobody subscribe reliably to {filter:?}")));
            }
            SubscribeReasonCode::Success(_) => {}
            refused => {
                let filter = &subscription.filter;
                return Err(EngineError(format!(
                    "the broker refuses a subscription to {filter:?}: {refused:?}"
                )));
            }
        }
    }
    Ok(())
}

struct Speaker(Client);

impl Sender for Speaker {
    fn send(&self, message: &Message) -> Result<(), EngineError> {
        let qos = qos_of(message.reliable);
        let sent = self.0.try_publish(&*message.topic, qos, false, message.bytes.to_vec());
        sent.map_err(|error| EngineError(error.to_string()))
    }
}

struct Listener {
    client: Client,
    connection: rumqttc::v5::Connection,
    filters: Vec<String>,
    /// News that came before the subscription was answered: of a session that the broker has kept.
    early: VecDeque<Told>,
}

impl Listener {
    fn event(&mut self) -> Result<Event, EngineError> {
        match self.connection.recv() {
            Ok(Ok(event)) => Ok(event),
            Ok(Err(error)) => Err(EngineError(error.to_string())),
            Err(_) => Err(EngineError("the connection is closed".into())),
        }
    }

    /// Waits for an answer. A broker that keeps quiet is given up by the pings.
    fn wait_for<T>(
        &mut self,
        is_it: impl Fn(&Packet) -> Option<Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        loop {
            let event = self.event()?;
            if let Event::Incoming(packet) = &event
                && let Some(answer) = is_it(packet)
            {
                return answer;
            }
            if let Some(told) = self.told(event) {
                // As many as may come without a receipt; others are best effort.
                if self.early.len() < usize::from(ARRIVALS_MAX) {
                    self.early.push_back(told);
                }
            }
        }
    }

    fn told(&self, event: Event) -> Option<Told> {
        match event {
            Event::Incoming(Packet::PubAck(answer)) => Some(match answer.reason {
                PubAckReason::Success | PubAckReason::NoMatchingSubscribers => Told::Taken,
                refused => Told::Refused(format!("{refused:?}")),
            }),
            Event::Outgoing(Outgoing::Publish(0)) => Some(Told::Gone),
            Event::Incoming(Packet::Publish(publish)) => Some(self.arrival(publish)),
            _ => None,
        }
    }

    fn arrival(&self, publish: Publish) -> Told {
        let topic = String::from_utf8_lossy(&publish.topic);
        // Of a filter that an earlier gateway of this name had, there is none: nobody wants it.
        let found = self.filters.iter().position(|filter| matches(&topic, filter));
        let bytes = publish.payload.to_vec();
        let client = self.client.clone();
        let receipt = move || {
            // Where the connection is over, the message comes again.
            let _again = client.try_ack(&publish);
        };
        Told::Came(Arrival {
            subscription: found.unwrap_or(usize::MAX),
            bytes,
            receipt: Some(Box::new(receipt)),
        })
    }
}

impl Receiver for Listener {
    fn next(&mut self) -> Result<Told, EngineError> {
        if let Some(told) = self.early.pop_front() {
            return Ok(told);
        }
        loop {
            let event = self.event()?;
            if let Some(told) = self.told(event) {
                return Ok(told);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_stand_for_topics_as_the_standard_says() {
        for (filter, topic) in
            [("a/#", "a"), ("a/#", "a/b/c"), ("+/b", "ä/b"), ("#", "/"), ("a/+", "a/"), ("$SYS/#", "$SYS/x")]
        {
            assert!(matches(topic, filter), "{filter} {topic}");
        }
        for (filter, topic) in [
            ("a/+", "a"),
            ("a", "a/b"),
            ("+", "a/b"),
            ("#", "$SYS/x"),
            ("+/x", "$SYS/x"),
            ("a/#", "ab"),
            ("a", ""),
        ] {
            assert!(!matches(topic, filter), "{filter} {topic}");
        }
    }

    #[test]
    fn topics_and_filters_are_told_apart_from_nonsense() {
        for topic in ["a", "plant/alarms", "a//b", "$x"] {
            assert!(is_topic(topic) && is_filter(topic), "{topic}");
        }
        for filter in ["#", "a/#", "+/b", "a/+/c"] {
            assert!(is_filter(filter) && !is_topic(filter), "{filter}");
        }
        for nonsense in ["", "a/#/b", "a+", "a\0b"] {
            assert!(!is_filter(nonsense), "{nonsense:?}");
        }
        assert!(!is_topic(&"x".repeat(65_536)));
    }
}
