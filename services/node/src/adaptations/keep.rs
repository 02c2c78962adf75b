//! The loop: which adaptations there are, whose figures are due, and what the next daemon has to
//! know.

use super::{Adaptations, Running, monitor};
use crate::base::BOOK;
use crate::broker::Broker;
use registry::Expected;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use topology::Adaptation;

/// Where the registry keeps what differs from the file: `adaptation/DC/NAME`.
const KEPT: &str = "adaptation/";
/// How long frontends have to say how their domains fare; who is slower is without a figure this
/// time.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);
/// Between two looks at which adaptations there are, where none has a figure to read sooner.
const LOOK: Duration = Duration::from_millis(500);

/// The state that the next daemon goes on from.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Of which adaptation: of another one of that name it says nothing.
    of: Adaptation,
    paused: bool,
    level: u32,
}

impl Adaptations {
    /// Says whose figures are due, and how long it is until the next ones are.
    fn due(&self) -> (Vec<(String, String)>, Duration) {
        let running = self.seen();
        let now_ms = self.now_ms();
        let due =
            running.iter().filter(|(_, one)| one.due_ms <= now_ms).map(|(key, _)| key.clone()).collect();
        let next_ms = running.values().map(|one| one.due_ms.saturating_sub(now_ms)).min();
        (due, next_ms.map_or(LOOK, |ms| Duration::from_millis(ms.max(1)).min(LOOK)))
    }

    /// Returns the adaptations of the files that are in force now.
    pub(super) fn seen(&self) -> MutexGuard<'_, BTreeMap<(String, String), Running>> {
        let topologies = self.domains.topologies();
        let mut running = self.lock();
        let wanted = |dc: &str, name: &str| {
            let topology = topologies.iter().find(|(known, _)| known == dc);
            topology.and_then(|(_, topology)| topology.adaptations.iter().find(|one| one.name == *name))
        };
        let gone: Vec<(String, String)> =
            running.keys().filter(|(dc, name)| wanted(dc, name).is_none()).cloned().collect();
        for key in gone {
            running.remove(&key);
            if let Err(error) = self.registry.delete(&kept_key(&key.0, &key.1), Expected::Anything) {
                tracing::warn!(%error, "what was kept of an adaptation that is gone stays in the registry");
            }
        }
        for (dc, topology) in &topologies {
            for adaptation in &topology.adaptations {
                let key = (dc.clone(), adaptation.name.to_string());
                let known = running.get(&key);
                if known.is_some_and(|known| known.adaptation == *adaptation) {
                    continue;
                }
                // One that the file says otherwise now begins anew, but for what somebody has
                // paused.
                let (paused, level) = match known {
                    Some(known) => (known.paused, known.level),
                    None => self.kept(dc, adaptation),
                };
                let anew = Running::new(dc, adaptation.clone(), paused, level);
                self.remember(&anew);
                running.insert(key, anew);
            }
        }
        for one in running.values_mut() {
            let own = topologies.iter().find(|(dc, _)| *dc == one.dc).map(|(_, topology)| topology);
            let adapted = own.into_iter().flat_map(|topology| &topology.adaptations);
            one.adapted = adapted.map(|adaptation| adaptation.domain.to_string()).collect();
        }
        self.say_levels(&running);
        running
    }

    /// The domains whose frontends have to be asked.
    fn asked(&self, due: &[(String, String)]) -> Vec<(String, String)> {
        let running = self.lock();
        let due = due.iter().filter_map(|key| running.get(key));
        let asks = due.filter(|one| monitor::asks_frontend(&one.adaptation.monitor));
        asks.map(|one| (one.dc.clone(), one.adaptation.domain.to_string())).collect()
    }

    /// Has the registry know what differs from the file.
    pub(super) fn remember(&self, one: &Running) {
        let key = kept_key(&one.dc, one.adaptation.name.as_str());
        let written = if one.paused || one.level > 0 {
            let kept = Kept { of: one.adaptation.clone(), paused: one.paused, level: one.level };
            let text = serde_json::to_vec(&kept).unwrap_or_default();
            self.registry.put(&key, &text, Expected::Anything).map(drop)
        } else {
            self.registry.delete(&key, Expected::Anything).map(drop)
        };
        if let Err(error) = written {
            tracing::warn!(key, %error, "the next daemon will not know of this adaptation what this one does");
        }
    }

    fn kept(&self, dc: &str, adaptation: &Adaptation) -> (bool, u32) {
        let found = self.registry.get(&kept_key(dc, adaptation.name.as_str()));
        let found = found.ok().flatten().and_then(|entry| serde_json::from_slice::<Kept>(&entry.value).ok());
        let found = found.filter(|kept| kept.of == *adaptation);
        found.map_or((false, 0), |kept| (kept.paused, kept.level))
    }

    pub(super) fn say_levels(&self, running: &BTreeMap<(String, String), Running>) {
        let level = |one: &Running| ((one.dc.clone(), one.adaptation.domain.to_string()), one.level);
        self.domains.levels.replace(running.values().map(level).collect());
    }
}

fn kept_key(dc: &str, name: &str) -> String {
    format!("{KEPT}{dc}/{name}")
}

/// Watches and adapts for as long as the daemon lives.
pub(crate) async fn follow(adaptations: Arc<Adaptations>, broker: Broker) {
    adaptations.runtime.get_or_init(tokio::runtime::Handle::current);
    loop {
        let looked = {
            let adaptations = Arc::clone(&adaptations);
            BOOK.run(move || {
                let (due, pause) = adaptations.due();
                let asked = adaptations.asked(&due);
                (due, asked, pause)
            })
            .await
        };
        let (due, asked, pause) = looked.unwrap_or_else(|error| {
            tracing::error!(error, "no adaptation is looked after for a moment");
            (Vec::new(), Vec::new(), LOOK)
        });
        if due.is_empty() {
            tokio::select! {
                // tidy(sleep): a figure is read at its time, and nothing tells when a file is in
                // force.
                () = tokio::time::sleep(pause) => {}
                () = adaptations.poked.notified() => {}
            }
            continue;
        }
        let said = ask(&broker, asked).await;
        let step = {
            let adaptations = Arc::clone(&adaptations);
            BOOK.run(move || adaptations.step(&due, &said)).await
        };
        if let Err(error) = step {
            tracing::error!(error, "a step of adaptation broke off");
        }
    }
}

/// Returns the reports of these domains' frontends, of those that answer in time.
async fn ask(broker: &Broker, asked: Vec<(String, String)>) -> BTreeMap<(String, String), Value> {
    let deadline = tokio::time::Instant::now() + ANSWER_DEADLINE;
    let answers = asked.into_iter().filter_map(|(dc, domain)| {
        let answer = broker.inspect_frontend(&dc, &domain)?;
        Some(((dc, domain), answer))
    });
    // All are asked before the first is waited for.
    let answers: Vec<_> = answers.collect();
    let mut said = BTreeMap::new();
    for (key, answer) in answers {
        if let Ok(Ok(state)) = tokio::time::timeout_at(deadline, answer).await {
            said.insert(key, state);
        }
    }
    said
}
