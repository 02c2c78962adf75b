//! The targets that mounts ask of services' files: admitted against what was measured and what
//! others ask, watched by frontends, told when they are missed and when they are kept again.

use super::Domains;
use crate::broker::Broker;
use admin::{Code, Problem};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use topology::{Target, Topology, nanos_text};

/// Between two looks at what frontends found: a target that is missed is told of within about so
/// much.
const LOOK: Duration = Duration::from_secs(1);
/// How long frontends have to answer; who is slower is asked again at the next look.
const ANSWER_DEADLINE: Duration = Duration::from_millis(500);
/// Fewer answers than these are no measurement to admit by.
const ANSWERS_LEAST: u64 = 20;
const SECOND_NS: u64 = 1_000_000_000;

/// A file of a service in a distributed container.
type FileKey = (String, String, String);
/// A target: distributed container, domain, service, file, and which of the four.
type Key = (String, String, String, String, String);

/// A target as a frontend found it when it was asked last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Row {
    asked: u64,
    found: Option<u64>,
    kept: Option<bool>,
    answers: u64,
    mean_ns: u64,
    p99_ns: u64,
    misses: u64,
}

/// The targets of this node, and how they fare.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<BTreeMap<Key, Row>>);

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Row>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rows, for the state tree and the metrics.
    pub(crate) fn state(&self) -> Value {
        let rows = self.lock();
        let rows = rows.iter().map(|((dc, domain, service, file, what), row)| {
            serde_json::json!({
                "dc": dc, "domain": domain, "service": service, "file": file, "what": what,
                "asked": row.asked, "found": row.found, "kept": row.kept, "answers": row.answers,
                "mean_ns": row.mean_ns, "p99_ns": row.p99_ns, "misses": row.misses,
            })
        });
        Value::Array(rows.collect())
    }

    /// Takes what a frontend said of targets that are asked, and returns what there is to tell. It
    /// is a process of the domain's: it may say anything.
    fn take(
        &self,
        (dc, domain): (&str, &str),
        said: &Value,
        is_asked: &dyn Fn(&Key) -> bool,
    ) -> Vec<(&'static str, String)> {
        let mut rows = self.lock();
        let mut told = Vec::new();
        for one in said.as_array().map_or(&[][..], Vec::as_slice) {
            let text = |key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let number = |key: &str| one.get(key).and_then(Value::as_u64);
            let (service, file, what) = (text("service"), text("file"), text("what"));
            let key = (dc.to_owned(), domain.to_owned(), service.clone(), file.clone(), what.clone());
            if !is_asked(&key) {
                continue;
            }
            let row = rows.entry(key).or_default();
            let before = row.kept;
            let asked = number("asked").unwrap_or(0);
            let found = number("found");
            let kept = one.get("kept").and_then(Value::as_bool);
            let is_missed = kept == Some(false) && before != Some(false);
            (row.asked, row.found) = (asked, found);
            // Where there is nothing to judge by, what was told last stands; and so does what was
            // measured last.
            row.kept = kept.or(before);
            row.misses += u64::from(is_missed);
            let answers = number("answers").unwrap_or(0);
            if answers >= ANSWERS_LEAST || row.answers < ANSWERS_LEAST {
                row.answers = answers;
                row.mean_ns = number("mean_ns").unwrap_or(0);
                row.p99_ns = number("p99_ns").unwrap_or(0);
            }
            let found = found.map_or_else(|| "nothing".to_owned(), |found| amount(&what, found));
            let words = format!("{service}/{file}: {what} {} was asked, it is {found}", amount(&what, asked));
            if is_missed {
                told.push(("target-missed", words));
            } else if kept == Some(true) && before == Some(false) {
                told.push(("target-kept", words));
            }
        }
        told
    }

    /// Forgets targets that nobody asks any more.
    fn keep(&self, wanted: &dyn Fn(&Key) -> bool) {
        self.lock().retain(|key, _| wanted(key));
    }

    /// The measurement of a file by whoever has had most answers, with his name.
    fn measured(&self, (dc, service, file): &FileKey) -> Option<(String, Row)> {
        let rows = self.lock();
        let of = rows.iter().filter(|((of, _, at, name, _), row)| {
            of == dc && at == service && name == file && row.answers >= ANSWERS_LEAST
        });
        let most = of.max_by_key(|(_, row)| row.answers)?;
        Some((most.0.1.clone(), most.1.clone()))
    }

    /// The oldest that a record of a file was found to be, and by whom.
    fn oldest(&self, (dc, service, file): &FileKey) -> Option<(String, u64)> {
        let rows = self.lock();
        let of = rows.iter().filter(|((of, _, at, name, what), _)| {
            of == dc && at == service && name == file && what == "age"
        });
        of.filter_map(|(key, row)| Some((key.1.clone(), row.found?))).max_by_key(|(_, found)| *found)
    }
}

fn amount(what: &str, value: u64) -> String {
    if what == "rate" { format!("{value}/s") } else { nanos_text(rounded(value)) }
}

/// A time with three digits at the most, for people.
fn rounded(nanos: u64) -> u64 {
    let unit = 10_u64.pow(nanos.checked_ilog10().unwrap_or(0).saturating_sub(2));
    nanos / unit * unit
}

/// All targets of a topology: the domain, the service and what is asked.
fn all(topology: &Topology) -> impl Iterator<Item = (&str, &str, &Target)> {
    topology.domains.iter().flat_map(|domain| {
        let mounts = domain.services.iter();
        mounts.flat_map(move |mount| {
            let asked = mount.targets.iter();
            asked.map(move |target| (domain.name.as_str(), mount.service.as_str(), target))
        })
    })
}

/// Refuses a topology with targets that were not asked before, and that can't be kept going by what
/// was measured and what others ask.
///
/// # Errors
/// The target, what was measured, and what is left.
pub(crate) fn admit(board: &Board, before: Option<&Topology>, topology: &Topology) -> Result<(), Problem> {
    let dc = topology.name.as_str();
    for (domain, service, target) in all(topology) {
        let is_known = before.is_some_and(|before| {
            all(before).any(|(one, at, known)| one == domain && at == service && known == target)
        });
        if is_known {
            continue;
        }
        let key = (dc.to_owned(), service.to_owned(), target.file.clone());
        let refuse = |what: String, help: String| {
            let place = format!("domain {domain} can't have its target of {service}/{}", target.file);
            Err(Problem::new(Code::NotAdmitted, format!("{place}: {what}")).help(help))
        };
        if let Some((who, row)) = board.measured(&key) {
            let p99 = nanos_text(rounded(row.p99_ns));
            let by = format!("{who} measured a p99 of {p99} over {} answers", row.answers);
            for (what, asked) in [("p99", target.p99_ns), ("deadline", target.deadline_ns)] {
                if let Some(asked) = asked.filter(|asked| *asked < row.p99_ns) {
                    return refuse(
                        format!("{what} {} is asked, and {by}", nanos_text(asked)),
                        format!("ask for {p99} or more, or give the service's domain more of a processor"),
                    );
                }
            }
            if let Some(asked) = target.rate {
                let promised: u64 = all(topology)
                    .filter(|(one, at, other)| *at == service && other.file == target.file && *one != domain)
                    .filter_map(|(_, _, other)| other.rate)
                    .map(u64::from)
                    .sum();
                let room = SECOND_NS.checked_div(row.mean_ns).unwrap_or(u64::MAX);
                let left = room.saturating_sub(promised);
                if u64::from(asked) > left {
                    return refuse(
                        format!(
                            "rate {asked} is asked, an answer takes {} as {who} measured, so there are {room} \
                             in a second, of which {promised} are promised to others",
                            nanos_text(rounded(row.mean_ns))
                        ),
                        format!("ask for {left} at the most, or take it from another domain"),
                    );
                }
            }
        }
        if let (Some(asked), Some((who, found))) = (target.age_ns, board.oldest(&key))
            && found > asked
        {
            let found = nanos_text(rounded(found));
            return refuse(
                format!("age {} is asked, and {who} had records as old as {found}", nanos_text(asked)),
                format!("ask for {found} or more"),
            );
        }
    }
    Ok(())
}

/// Whether a topology that is in force has this target.
fn is_asked(topologies: &[(String, Arc<Topology>)], (dc, domain, service, file, what): &Key) -> bool {
    let known = topologies.iter().find(|(name, _)| name == dc);
    known.is_some_and(|(_, topology)| {
        all(topology).any(|(one, at, target)| {
            let there = match what.as_str() {
                "p99" => target.p99_ns.is_some(),
                "deadline" => target.deadline_ns.is_some(),
                "rate" => target.rate.is_some(),
                "age" => target.age_ns.is_some(),
                _ => false,
            };
            there && one == domain && at == service && target.file == *file
        })
    })
}

/// Watches for as long as the daemon lives.
pub(crate) async fn follow(domains: Arc<Domains>, broker: Broker) {
    loop {
        // tidy(sleep): frontends are asked now and then, and nothing tells when a file has targets
        tokio::time::sleep(LOOK).await;
        let topologies = domains.topologies();
        let asks: Vec<(String, String)> = topologies
            .iter()
            .flat_map(|(dc, topology)| {
                let with = topology.domains.iter();
                let with = with.filter(|one| one.services.iter().any(|mount| !mount.targets.is_empty()));
                with.map(move |domain| (dc.clone(), domain.name.to_string()))
            })
            .collect();
        let is_asked = |key: &Key| is_asked(&topologies, key);
        domains.targets.keep(&is_asked);
        let deadline = tokio::time::Instant::now() + ANSWER_DEADLINE;
        // All are asked before the first is waited for.
        let answers: Vec<_> = asks
            .into_iter()
            .filter_map(|(dc, domain)| {
                let answer = broker.inspect_frontend(&dc, &domain)?;
                Some((dc, domain, answer))
            })
            .collect();
        for (dc, domain, answer) in answers {
            let Ok(Ok(state)) = tokio::time::timeout_at(deadline, answer).await else { continue };
            let said = state.get("targets").unwrap_or(&Value::Null);
            for (what, why) in domains.targets.take((&dc, &domain), said, &is_asked) {
                domains.events.happened(&dc, Some(&domain), what, Some(why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MS: u64 = 1_000_000;
    const HALL: (&str, &str) = ("lab", "hall");

    fn said(kept: Option<bool>, answers: u64, p99_ns: u64) -> Value {
        json!([{ "service": "gauge", "file": "ask", "what": "p99", "asked": 5 * MS, "found": p99_ns,
                 "kept": kept, "answers": answers, "mean_ns": 2 * MS, "p99_ns": p99_ns }])
    }

    fn lab(hall: &str, attic: &str) -> Topology {
        let domain = |name: &str, targets: &str| {
            format!(
                "[domain.{name}]\nkind = \"container\"\ncommand = [\"sleep\"]\n\
                 services = {{ gauge = {{ targets = {{ {targets} }} }} }}\n"
            )
        };
        let text = format!(
            "name = \"lab\"\n[domain.gauge]\nkind = \"container\"\ncommand = [\"gauge\"]\n{}{}\
             [service.gauge]\nkind = \"program\"\ndomain = \"gauge\"\n\
             allow = [{{ domains = [\"hall\", \"attic\"], verbs = [\"read\"] }}]\n",
            domain("hall", hall),
            domain("attic", attic),
        );
        topology::parse(&text, "lab.toml", std::path::Path::new("/")).expect("a topology")
    }

    #[test]
    fn a_target_is_told_when_it_is_missed_and_when_it_is_kept_again() {
        let board = Board::default();
        assert!(board.take(HALL, &said(Some(true), 100, 4 * MS), &|_| true).is_empty());
        let told = board.take(HALL, &said(Some(false), 100, 8 * MS), &|_| true);
        assert_eq!(told, [("target-missed", "gauge/ask: p99 5ms was asked, it is 8ms".to_owned())]);
        assert!(board.take(HALL, &said(Some(false), 100, 9 * MS), &|_| true).is_empty(), "once");
        assert!(board.take(HALL, &said(None, 0, 0), &|_| true).is_empty(), "nobody asks");
        let told = board.take(HALL, &said(Some(true), 100, 3 * MS), &|_| true);
        assert_eq!(told, [("target-kept", "gauge/ask: p99 5ms was asked, it is 3ms".to_owned())]);
        assert_eq!(board.state()[0]["misses"], 1);
        let unasked = board.take(HALL, &said(Some(false), 100, 8 * MS), &|_| false);
        assert!(unasked.is_empty(), "nobody asks that");
        board.keep(&|_| false);
        assert_eq!(board.state(), json!([]));
    }

    #[test]
    fn what_was_measured_and_what_others_ask_leave_so_much() {
        let board = Board::default();
        let asked = |topology: &Topology, before: Option<&Topology>| {
            admit(&board, before, topology).map_err(|problem| problem.message)
        };
        let hall = lab("ask = { p99 = \"5ms\", rate = 400 }", "");
        assert_eq!(asked(&hall, None), Ok(()), "nothing was measured");
        board.take(HALL, &said(Some(false), 100, 8 * MS), &|_| true);
        assert_eq!(asked(&hall, Some(&hall)), Ok(()), "it was admitted before");
        let attic = lab("ask = { p99 = \"5ms\", rate = 400 }", "ask = { deadline = \"6ms\" }");
        let refused = asked(&attic, Some(&hall)).unwrap_err();
        assert!(refused.contains("domain attic can't have its target of gauge/ask: deadline 6ms is asked, and hall measured a p99 of 8ms over 100 answers"), "{refused}");
        let attic = lab("ask = { p99 = \"5ms\", rate = 400 }", "ask = { rate = 101 }");
        let refused = asked(&attic, Some(&hall)).unwrap_err();
        assert!(
            refused.contains("there are 500 in a second, of which 400 are promised to others"),
            "{refused}"
        );
        let attic = lab("ask = { p99 = \"5ms\", rate = 400 }", "ask = { rate = 100, p99 = \"8ms\" }");
        assert_eq!(asked(&attic, Some(&hall)), Ok(()));
    }
}
