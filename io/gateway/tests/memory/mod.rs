//! An engine in memory: sessions with queues, behind one lock.

use gateway::{Arrival, Connection, Engine, EngineError, Message, Receiver, Sender, Subscription, Told};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

/// The broker that connects all engines.
#[derive(Default)]
pub struct Hub {
    sessions: Mutex<BTreeMap<String, Session>>,
    changed: Condvar,
}

#[derive(Default)]
struct Session {
    subscriptions: Vec<Subscription>,
    /// Messages without a receipt: their number, the subscription, the bytes.
    kept: VecDeque<(u64, usize, Vec<u8>)>,
    /// The number of the next message that this connection is to get, and of the next that comes.
    next: u64,
    last: u64,
    news: VecDeque<Told>,
}

/// One of them.
pub struct Memory {
    hub: Arc<Hub>,
    client: String,
}

impl Memory {
    pub fn new(hub: &Arc<Hub>, client: &str) -> Self {
        Self { hub: Arc::clone(hub), client: client.into() }
    }
}

struct End {
    hub: Arc<Hub>,
    client: String,
}

fn is_for(topic: &str, filter: &str) -> bool {
    filter.strip_suffix("/#").map_or(topic == filter, |above| topic.starts_with(&format!("{above}/")))
}

impl Engine for Memory {
    fn connect(&mut self, subscriptions: &[Subscription]) -> Result<Connection, EngineError> {
        let mut sessions = self.hub.sessions.lock().unwrap();
        let session = sessions.entry(self.client.clone()).or_default();
        session.subscriptions = subscriptions.to_vec();
        session.next = session.kept.front().map_or(session.last, |(number, ..)| *number);
        session.news.clear();
        let end = || End { hub: Arc::clone(&self.hub), client: self.client.clone() };
        Ok(Connection { sender: Box::new(end()), receiver: Box::new(end()), longest: usize::MAX })
    }
}

impl Sender for End {
    fn send(&self, message: &Message) -> Result<(), EngineError> {
        let mut sessions = self.hub.sessions.lock().unwrap();
        for (_, session) in sessions.iter_mut().filter(|(name, _)| **name != self.client) {
            let mut wanted = session.subscriptions.iter();
            let Some(place) = wanted.position(|it| is_for(&message.topic, &it.filter)) else { continue };
            session.kept.push_back((session.last, place, message.bytes.to_vec()));
            session.last += 1;
        }
        let told = if message.reliable { Told::Taken } else { Told::Gone };
        sessions.get_mut(&self.client).unwrap().news.push_back(told);
        self.hub.changed.notify_all();
        Ok(())
    }
}

impl Receiver for End {
    fn next(&mut self) -> Result<Told, EngineError> {
        let mut sessions = self.hub.sessions.lock().unwrap();
        loop {
            let session = sessions.get_mut(&self.client).unwrap();
            if let Some(told) = session.news.pop_front() {
                return Ok(told);
            }
            if let Some((number, subscription, bytes)) =
                session.kept.iter().find(|(number, ..)| *number >= session.next).cloned()
            {
                session.next = number + 1;
                let (hub, client) = (Arc::clone(&self.hub), self.client.clone());
                let receipt = move || {
                    let mut sessions = hub.sessions.lock().unwrap();
                    sessions.get_mut(&client).unwrap().kept.retain(|(kept, ..)| *kept != number);
                };
                return Ok(Told::Came(Arrival { subscription, bytes, receipt: Some(Box::new(receipt)) }));
            }
            sessions = self.hub.changed.wait(sessions).unwrap();
        }
    }
}
