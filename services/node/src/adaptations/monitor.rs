//! Reading a monitor's figure.

use crate::reservations::Book;
use adaptation::{Figure, Load, Share};
use serde_json::Value;
use topology::{Monitor, Reserve};

/// A figure that is not written anew counts for that many samples, and at least for [`STALE_MS`].
const STALE_SAMPLES: u64 = 10;
/// A program that says how it fares once in two seconds has not stopped.
const STALE_MS: u64 = 2_000;

/// A monitor's reading now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reading {
    /// A figure.
    Figure(Figure),
    /// Nothing new, which is no bad sign yet.
    Same,
    /// There is none, and why.
    Nothing(String),
}

/// The state of a monitor between two looks.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch {
    share: Share,
    /// How many figures the program had written, and when that was seen first.
    writes: Option<(u64, u64)>,
    /// Processor time that was used, and when that was.
    used: Option<(u64, u64)>,
    /// When something of a service was counted last.
    served_ms: Option<u64>,
}

/// The sources that a monitor is read from.
pub(super) struct Source<'a> {
    pub(super) monitor: &'a Monitor,
    pub(super) vtm: &'a str,
    pub(super) every_ms: u64,
    pub(super) now_ms: u64,
    /// The frontend's report, where it was asked and has answered.
    pub(super) frontend: Option<&'a Value>,
    pub(super) reserve: &'a Reserve,
}

/// Whether the frontend has to be asked for a figure.
pub(super) fn asks_frontend(monitor: &Monitor) -> bool {
    match monitor {
        Monitor::Quality => true,
        Monitor::Latency(_) | Monitor::Jitter(_) | Monitor::Rate(_) | Monitor::Targets(_) => true,
        Monitor::Misses | Monitor::Pressure(_) | Monitor::Loss | Monitor::Queue => false,
    }
}

impl Watch {
    /// Reads the figure, and what was used since the last look.
    pub(super) fn read(&mut self, book: &Book, source: &Source<'_>) -> (Reading, Load) {
        let counted = book.counted(source.vtm);
        let load = Load { used_ns: counted.cpu_ns.and_then(|ns| self.used_in_a_period(ns, source)) };
        let nothing = |why: &str| Reading::Nothing(why.to_owned());
        let reading = match source.monitor {
            Monitor::Quality => self.quality(source),
            Monitor::Misses => match counted.missed {
                // Nobody who rests misses anything.
                Some((missed, all)) => Reading::Figure(self.share.look(missed, all).unwrap_or_default()),
                None => nothing("what keeps its processor time counts no misses"),
            },
            Monitor::Pressure(pressed) => match book.pressure_us(source.vtm, pressed.as_str()) {
                Some(us) => {
                    let percent = self.share.look(us, source.now_ms.saturating_mul(1_000));
                    percent.map_or(Reading::Same, Reading::Figure)
                }
                None => nothing("the kernel has no pressure stall information"),
            },
            // Nanoseconds are thousandths of a thousandth of a millisecond.
            Monitor::Latency(service) => {
                self.served(source, (service.as_str(), "mean_ns"), |share, count, sum_ns, _| {
                    share.ratio(sum_ns / 1_000, count.saturating_mul(1_000), 1)
                })
            }
            Monitor::Jitter(service) => {
                self.served(source, (service.as_str(), "jitter_ns"), |share, count, sum_ns, _| {
                    share.ratio(sum_ns / 1_000, count.saturating_mul(1_000), 1)
                })
            }
            Monitor::Rate(service) => {
                self.served(source, (service.as_str(), "mean_ns"), |share, count, _, now_ms| {
                    share.ratio(count, now_ms, 1_000)
                })
            }
            Monitor::Targets(service) => self.targets(source, service.as_str()),
            Monitor::Loss | Monitor::Queue => match book.queue(source.vtm) {
                None => nothing("its class of the link can't be looked at"),
                Some(queue) if *source.monitor == Monitor::Loss => {
                    // Where nothing was to be sent, nothing was lost.
                    let all = queue.sent.saturating_add(queue.dropped);
                    Reading::Figure(self.share.look(queue.dropped, all).unwrap_or_default())
                }
                Some(queue) => {
                    let rate = source.reserve.network.map_or(1, |network| network.rate_bits.max(1));
                    let us = u128::from(queue.bytes) * 8 * 1_000_000 / u128::from(rate);
                    Reading::Figure(Figure(u64::try_from(us).unwrap_or(u64::MAX)))
                }
            },
        };
        (reading, load)
    }

    /// The use of the target of a service that is used most, in percent.
    fn targets(&mut self, source: &Source<'_>, service: &str) -> Reading {
        let Some(rows) = source.frontend.and_then(|state| state.get("targets")?.as_array()) else {
            return Reading::Nothing("its frontend does not answer".to_owned());
        };
        let mine = rows.iter().filter(|row| row.get("service").and_then(Value::as_str) == Some(service));
        let used = mine.filter_map(|row| {
            let number = |key: &str| row.get(key).and_then(Value::as_u64);
            let (asked, found, kept) = (number("asked")?, number("found")?, row.get("kept")?.as_bool()?);
            // A rate is wanted at least, all others are at most.
            let is_rate = row.get("what").and_then(Value::as_str) == Some("rate");
            let (part, whole) = if is_rate { (asked, found) } else { (found, asked) };
            let thousandths = u128::from(part) * 100_000 / u128::from(whole.max(1));
            // Nobody wants as much as is too little.
            let most = if kept { 100_000 } else { u128::from(u64::MAX) };
            Some(u64::try_from(thousandths.min(most)).unwrap_or(u64::MAX))
        });
        match used.max() {
            Some(thousandths) => {
                self.served_ms = Some(source.now_ms);
                Reading::Figure(Figure(thousandths.min(Figure::whole(u64::MAX).0)))
            }
            None => self.quiet(source, service),
        }
    }

    /// Nothing of a service was counted since the last look, or for long.
    fn quiet(&mut self, source: &Source<'_>, service: &str) -> Reading {
        let patience = (source.every_ms * STALE_SAMPLES).max(STALE_MS);
        let since_ms = *self.served_ms.get_or_insert(source.now_ms);
        if source.now_ms.saturating_sub(since_ms) <= patience {
            return Reading::Same;
        }
        Reading::Nothing(format!("nobody has asked {service} for anything"))
    }

    /// Processor time in each period since the last look.
    fn used_in_a_period(&mut self, cpu_ns: u64, source: &Source<'_>) -> Option<u64> {
        let (before_ns, at_ms) = self.used.replace((cpu_ns, source.now_ms))?;
        let period_ns = source.reserve.cpu?.period_ns;
        let elapsed_ns = u128::from(source.now_ms.saturating_sub(at_ms)) * 1_000_000;
        let used_ns = u128::from(cpu_ns.checked_sub(before_ns)?) * u128::from(period_ns);
        used_ns.checked_div(elapsed_ns).and_then(|ns| u64::try_from(ns).ok())
    }

    fn quality(&mut self, source: &Source<'_>) -> Reading {
        let quality = source.frontend.and_then(|state| state.get("quality"));
        let number = |key: &str| quality?.get(key)?.as_u64();
        let (Some(writes), Some(thousandths)) = (number("writes"), number("thousandths")) else {
            let refused = number("refused").unwrap_or(0);
            return Reading::Nothing(match (quality, refused) {
                (None, _) => "its frontend does not answer".to_owned(),
                (_, 0) => "its program has written nothing to /srv/self/quality".to_owned(),
                (_, refused) => {
                    format!("its program has written {refused} times what is no figure to /srv/self/quality")
                }
            });
        };
        match self.writes {
            Some((before, since_ms)) if before == writes => {
                let patience = (source.every_ms * STALE_SAMPLES).max(STALE_MS);
                let age_ms = source.now_ms.saturating_sub(since_ms);
                if age_ms <= patience {
                    return Reading::Same;
                }
                Reading::Nothing(format!("its program has written no figure for {} s", age_ms / 1_000))
            }
            _ => {
                self.writes = Some((writes, source.now_ms));
                Reading::Figure(Figure(thousandths.min(Figure::whole(u64::MAX).0)))
            }
        }
    }

    /// Takes the number of all requests to a service, and the sum over them of what the frontend
    /// tells the mean of, in ns.
    fn served(
        &mut self,
        source: &Source<'_>,
        (service, mean): (&str, &str),
        figure: impl FnOnce(&mut Share, u64, u64, u64) -> Option<Figure>,
    ) -> Reading {
        let Some(state) = source.frontend else {
            return Reading::Nothing("its frontend does not answer".to_owned());
        };
        let entrances = state.get("latency").and_then(|all| all.get(service)).and_then(Value::as_object);
        let (mut count, mut sum_ns) = (0_u64, 0_u64);
        for entrance in entrances.into_iter().flat_map(|all| all.values()) {
            let number = |key: &str| entrance.get(key).and_then(Value::as_u64).unwrap_or(0);
            count = count.saturating_add(number("count"));
            sum_ns = sum_ns.saturating_add(number("count").saturating_mul(number(mean)));
        }
        let found = figure(&mut self.share, count, sum_ns, source.now_ms);
        if let Some(found) = found {
            self.served_ms = Some(source.now_ms);
            return Reading::Figure(found);
        }
        self.quiet(source, service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn quality(watch: &mut Watch, now_ms: u64, frontend: Option<&Value>) -> Reading {
        let reserve = Reserve::default();
        let monitor = Monitor::Quality;
        let source = Source {
            monitor: &monitor,
            vtm: "film/gold",
            every_ms: 200,
            now_ms,
            frontend,
            reserve: &reserve,
        };
        watch.quality(&source)
    }

    #[test]
    fn a_figure_counts_until_it_is_old_and_what_is_none_is_told() {
        let mut watch = Watch::default();
        let says = |writes: u64, thousandths: Option<u64>| json!({ "quality": { "writes": writes, "thousandths": thousandths, "refused": 3 } });
        assert!(
            matches!(quality(&mut watch, 0, None), Reading::Nothing(why) if why.contains("does not answer"))
        );
        let nonsense = says(0, None);
        assert!(
            matches!(quality(&mut watch, 0, Some(&nonsense)), Reading::Nothing(why) if why.contains("3 times"))
        );
        let first = says(1, Some(2_500));
        assert_eq!(quality(&mut watch, 0, Some(&first)), Reading::Figure(Figure(2_500)));
        assert_eq!(quality(&mut watch, 1_900, Some(&first)), Reading::Same);
        assert!(matches!(quality(&mut watch, 2_001, Some(&first)), Reading::Nothing(_)));
        let lie = says(2, Some(u64::MAX));
        assert_eq!(quality(&mut watch, 2_200, Some(&lie)), Reading::Figure(Figure::whole(u64::MAX)));
        // Another frontend counts anew.
        assert_eq!(quality(&mut watch, 2_400, Some(&first)), Reading::Figure(Figure(2_500)));
    }

    #[test]
    fn the_mean_time_of_requests_is_in_milliseconds() {
        let mut watch = Watch::default();
        let mut at = |now_ms: u64, count: u64, mean_ns: u64| {
            let state = json!({ "latency": { "dns": {
                "stub": { "count": count, "mean_ns": mean_ns }, "file": { "count": 0, "mean_ns": 0 },
            } } });
            let (monitor, reserve) = (Monitor::Quality, Reserve::default());
            let source = Source {
                monitor: &monitor,
                vtm: "",
                every_ms: 200,
                now_ms,
                frontend: Some(&state),
                reserve: &reserve,
            };
            watch.served(&source, ("dns", "mean_ns"), |share, count, sum_ns, _| {
                share.ratio(sum_ns / 1_000, count * 1_000, 1)
            })
        };
        assert_eq!(at(0, 10, 1_000_000), Reading::Same);
        // Ten more at 3 ms.
        assert_eq!(at(200, 20, 2_000_000), Reading::Figure(Figure(3_000)));
        assert_eq!(at(400, 20, 2_000_000), Reading::Same);
        assert!(matches!(at(2_300, 20, 2_000_000), Reading::Nothing(_)));
    }

    #[test]
    fn jitter_is_of_the_requests_since_the_last_look() {
        let mut watch = Watch::default();
        let mut at = |now_ms: u64, count: u64, jitter_ns: u64| {
            let state =
                json!({ "latency": { "dns": { "file": { "count": count, "jitter_ns": jitter_ns } } } });
            let (monitor, reserve) = (Monitor::Quality, Reserve::default());
            let frontend = Some(&state);
            let source =
                Source { monitor: &monitor, vtm: "", every_ms: 200, now_ms, frontend, reserve: &reserve };
            watch.served(&source, ("dns", "jitter_ns"), |share, count, sum_ns, _| {
                share.ratio(sum_ns / 1_000, count * 1_000, 1)
            })
        };
        assert_eq!(at(0, 100, 1_000_000), Reading::Same);
        // A hundred more, each 3 ms away from the one before.
        assert_eq!(at(200, 200, 2_000_000), Reading::Figure(Figure(3_000)));
    }

    #[test]
    fn the_target_that_is_used_most_counts() {
        let mut watch = Watch::default();
        let mut at = |now_ms: u64, rows: Value| {
            let (monitor, reserve) = (Monitor::Quality, Reserve::default());
            let state = json!({ "targets": rows });
            let frontend = Some(&state);
            let source =
                Source { monitor: &monitor, vtm: "", every_ms: 200, now_ms, frontend, reserve: &reserve };
            watch.targets(&source, "rpc")
        };
        let row = |service: &str, what: &str, asked: u64, found: Option<u64>, kept: Option<bool>| json!({ "service": service, "file": "call", "what": what, "asked": asked, "found": found, "kept": kept });
        let known = |found: u64, kept: bool| (Some(found), Some(kept));
        let of = |what: &str, asked: u64, (found, kept): (Option<u64>, Option<bool>)| {
            row("rpc", what, asked, found, kept)
        };
        let half = of("p99", 5_000_000, known(2_500_000, true));
        assert_eq!(at(0, json!([half])), Reading::Figure(Figure::whole(50)));
        let late = of("deadline", 1_000, known(3_000, false));
        let other = row("dns", "p99", 1, Some(1_000), Some(false));
        assert_eq!(at(200, json!([half, late, other])), Reading::Figure(Figure::whole(300)));
        // Half of a rate is twice the use; as much as anybody wants is no fault.
        assert_eq!(at(400, json!([of("rate", 100, known(50, false))])), Reading::Figure(Figure::whole(200)));
        assert_eq!(at(600, json!([of("rate", 100, known(0, true))])), Reading::Figure(Figure::whole(100)));
        assert_eq!(at(800, json!([of("p99", 100, (None, None))])), Reading::Same);
        assert!(matches!(at(9_000, json!([])), Reading::Nothing(_)));
    }
}
