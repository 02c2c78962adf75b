//! One adaptation: what it remembers of its figures, and what it wants because of them.

use crate::amounts::{Amounts, Range};
use crate::feedback::Load;
use crate::figure::Figure;
use crate::selector::{Judgement, Selector, Streaks};
use serde::{Deserialize, Serialize};

/// Samples in a row without a figure after which what was adapted is given back: a monitor that has
/// stopped keeps nothing from others.
pub const LOST_SAMPLES: u32 = 30;
/// Most changes in a minute that a file may allow: ten in a second.
pub const CHANGES_PER_MINUTE_MAX: u32 = 600;
const MINUTE_MS: u64 = 60_000;

/// The settings of an adaptation by its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The rule that decides.
    pub selector: Selector,
    /// Between what the budget of the processor moves.
    pub cpu: Option<Range>,
    /// Between what the rate of the link moves.
    pub network: Option<Range>,
    /// How many levels of quality there are; 1: the program knows none.
    pub levels: u32,
    /// How long it is at least from a change until less is given, in ms.
    pub pause_ms: u64,
    /// Most changes in a minute.
    pub changes_per_minute: u32,
}

/// The wish of an adaptation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Keep,
    /// More than it has; where that can't be had, less, or at last a worse level.
    Grow(Amounts),
    /// Less than it has, or a better level with the same.
    Shrink(Amounts),
    /// The amounts of the file, because nothing is known of the figure.
    Return(Amounts),
}

/// The decision on one sample, and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The wish.
    pub action: Action,
    /// Why, in words.
    pub why: String,
    /// Whether it would be done if there had not been as many changes as may be.
    pub is_bounded: bool,
}

/// Most that was used in a period lately: during the calm that is asked for, and as long before it.
#[derive(Debug, Clone, Copy, Default)]
struct Peak {
    before_ns: Option<u64>,
    now_ns: Option<u64>,
    samples: u32,
}

impl Peak {
    fn add(&mut self, used_ns: u64, calm_samples: u32) {
        if self.samples >= calm_samples {
            *self = Self { before_ns: self.now_ns, ..Self::default() };
        }
        self.samples += 1;
        self.now_ns = self.now_ns.max(Some(used_ns));
    }

    fn ns(&self) -> Option<u64> {
        self.before_ns.max(self.now_ns)
    }
}

/// One adaptation.
#[derive(Debug, Clone, Default)]
pub struct Adapter {
    streaks: Streaks,
    lost: u32,
    peak: Peak,
    /// The budget before the last change, where that gave less: where too much was taken, that much
    /// is enough again.
    before_less_ns: Option<u64>,
    changed_ms: Option<u64>,
    /// The last change gave more: what of that is not used may be taken back at once.
    has_grown: bool,
    /// Changes that may be made now, in thousandths; and when they were counted.
    credit: Option<(u64, u64)>,
}

const CHANGE: u64 = 1_000;

impl Adapter {
    /// Takes a sample: a figure, or that there is none, and what was used; and what it has, and
    /// what its file says, of that.
    pub fn decide(
        &mut self,
        settings: &Settings,
        now_ms: u64,
        figure: Option<Figure>,
        load: Load,
        has: Amounts,
        home: Amounts,
    ) -> Decision {
        self.refill(settings, now_ms);
        let decision = match figure {
            None => self.without_figure(has, home),
            Some(figure) => self.with_figure(settings, now_ms, figure, load, has),
        };
        self.bounded(settings, decision)
    }

    /// Takes the wish of a program that selects, or that it has none to say: within what the file
    /// allows, and no more often. What grows grows first; what shrinks meanwhile is wished again.
    pub fn take(
        &mut self,
        settings: &Settings,
        now_ms: u64,
        wish: Option<Amounts>,
        has: Amounts,
        home: Amounts,
    ) -> Decision {
        self.refill(settings, now_ms);
        let decision = match wish {
            None => self.without_figure(has, home),
            Some(wish) => {
                self.lost = 0;
                self.wished(settings, now_ms, wish, has)
            }
        };
        self.bounded(settings, decision)
    }

    fn wished(&self, settings: &Settings, now_ms: u64, wish: Amounts, has: Amounts) -> Decision {
        let within = |now: Option<u64>, range: Option<Range>, wish: Option<u64>| {
            now.zip(range).map(|(now, range)| range.clamp(wish.unwrap_or(now)))
        };
        let to = Amounts {
            cpu_ns: within(has.cpu_ns, settings.cpu, wish.cpu_ns),
            network_bits: within(has.network_bits, settings.network, wish.network_bits),
            level: wish.level.min(settings.levels.saturating_sub(1)),
        };
        let greater = Amounts {
            cpu_ns: to.cpu_ns.max(has.cpu_ns),
            network_bits: to.network_bits.max(has.network_bits),
            level: has.level,
        };
        let is_less = to.cpu_ns < has.cpu_ns || to.network_bits < has.network_bits;
        let (action, why) = if to == has {
            (Action::Keep, "the selector wants nothing else")
        } else if greater != has {
            (Action::Grow(Amounts { level: to.level, ..greater }), "the selector wants more")
        } else if is_less && self.is_too_soon(settings, now_ms) {
            (Action::Keep, "the selector wants less, soon")
        } else {
            (Action::Shrink(to), if is_less { "the selector wants less" } else { "the selector wants it" })
        };
        Decision { action, why: why.to_owned(), is_bounded: false }
    }

    fn bounded(&self, settings: &Settings, mut decision: Decision) -> Decision {
        let may = self.credit.is_none_or(|(credit, _)| credit >= CHANGE);
        if decision.action != Action::Keep && !may {
            decision.is_bounded = true;
            decision.why += &format!("; {} changes in a minute are the most", settings.changes_per_minute);
            decision.action = Action::Keep;
        }
        decision
    }

    /// Notes that the wish was granted, in whole or in part.
    pub fn changed(&mut self, now_ms: u64, from: Amounts, action: Action) {
        self.changed_ms = Some(now_ms);
        if let Some((credit, _)) = &mut self.credit {
            *credit = credit.saturating_sub(CHANGE);
        }
        self.has_grown = matches!(action, Action::Grow(_));
        self.peak = Peak::default();
        self.before_less_ns = from.cpu_ns.filter(|_| matches!(action, Action::Shrink(_)));
        match action {
            Action::Grow(_) => self.streaks.gave_more(),
            Action::Shrink(_) => self.streaks.gave_less(),
            Action::Return(_) | Action::Keep => self.streaks.interrupt(),
        }
    }

    /// Notes that the wish was refused; it is made again when the figures have asked for it as
    /// often as before.
    pub fn refused(&mut self) {
        self.streaks.interrupt();
    }

    fn refill(&mut self, settings: &Settings, now_ms: u64) {
        let most = u64::from(settings.changes_per_minute.max(1)) * CHANGE;
        // A tenth of a minute's changes may come at once, and one always.
        let burst = (most / 10).max(CHANGE);
        let (credit, at_ms) = self.credit.unwrap_or((burst, now_ms));
        let gained = u128::from(now_ms.saturating_sub(at_ms)) * u128::from(most) / u128::from(MINUTE_MS);
        let gained = u64::try_from(gained).unwrap_or(burst);
        // What is too little to be counted is counted the next time.
        let at_ms = if gained == 0 { at_ms.min(now_ms) } else { now_ms };
        self.credit = Some((credit.saturating_add(gained).min(burst), at_ms));
    }

    fn without_figure(&mut self, has: Amounts, home: Amounts) -> Decision {
        self.streaks.interrupt();
        self.lost = self.lost.saturating_add(1);
        self.peak = Peak::default();
        let is_lost = self.lost >= LOST_SAMPLES && has != home;
        let action = if is_lost { Action::Return(home) } else { Action::Keep };
        let why = match action {
            Action::Return(_) => {
                format!("no figure for {LOST_SAMPLES} samples: the file's values count again")
            }
            _ => "no figure".to_owned(),
        };
        Decision { action, why, is_bounded: false }
    }

    fn with_figure(
        &mut self,
        settings: &Settings,
        now_ms: u64,
        figure: Figure,
        load: Load,
        has: Amounts,
    ) -> Decision {
        self.lost = 0;
        if let Some(used_ns) = load.used_ns {
            self.peak.add(used_ns, settings.selector.calm_samples());
        }
        let judgement = self.streaks.judge(&settings.selector, figure);
        let words = |what: &str| format!("the figure is {figure}: {what}");
        // Who was wrong once waits for the calm.
        let corrects =
            std::mem::take(&mut self.has_grown) && !self.streaks.is_wary() && judgement != Judgement::More;
        let peak_ns = self.peak.ns();
        let (action, why) = match judgement {
            Judgement::More => (
                Action::Grow(grown(settings, figure, has, self.before_less_ns)),
                words(&needs(&settings.selector)),
            ),
            _ if corrects => match correction(settings, has, peak_ns) {
                Some(to) => (Action::Shrink(to), words("not all of what was added is used")),
                None => (Action::Keep, words("as it should be")),
            },
            Judgement::Less if self.is_too_soon(settings, now_ms) => {
                (Action::Keep, words("less would do, soon"))
            }
            Judgement::Less => match shrunk(settings, has, peak_ns) {
                Some(to) => (Action::Shrink(to), words("less will do")),
                None => (Action::Keep, words("as it should be")),
            },
            Judgement::Enough => (Action::Keep, words("as it should be")),
        };
        Decision { action, why, is_bounded: false }
    }

    fn is_too_soon(&self, settings: &Settings, now_ms: u64) -> bool {
        self.changed_ms.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) < settings.pause_ms)
    }
}

fn needs(selector: &Selector) -> String {
    match selector {
        Selector::Rules { more, .. } => format!("{more} means more"),
        Selector::Feedback(feedback) => format!("more than {} is missed", feedback.target),
        Selector::Program => "the selector wants more".to_owned(),
    }
}

/// Returns the amounts that it wants where it has too little. Where it has all that it may have,
/// the same with a worse level.
fn grown(settings: &Settings, figure: Figure, has: Amounts, before_less_ns: Option<u64>) -> Amounts {
    let more = |range: &Range, now: u64| match &settings.selector {
        Selector::Feedback(feedback) => range.clamp(feedback.more(now, figure, before_less_ns)),
        Selector::Rules { .. } => range.up(now),
        // It says itself what it wants.
        Selector::Program => now,
    };
    let cpu_ns = has.cpu_ns.zip(settings.cpu).map(|(now, range)| more(&range, now).max(now));
    let network_bits = has.network_bits.zip(settings.network).map(|(now, range)| range.up(now).max(now));
    let to = Amounts { cpu_ns, network_bits, level: has.level };
    if to == has { worse(settings, has) } else { to }
}

/// The same with the next level, if there is one.
pub(crate) fn worse(settings: &Settings, has: Amounts) -> Amounts {
    let last = settings.levels.saturating_sub(1);
    Amounts { level: has.level.saturating_add(1).min(last.max(has.level)), ..has }
}

/// A better level comes before less of a budget.
fn shrunk(settings: &Settings, has: Amounts, peak_ns: Option<u64>) -> Option<Amounts> {
    if has.level > 0 {
        return Some(Amounts { level: has.level - 1, ..has });
    }
    let to = match &settings.selector {
        Selector::Feedback(_) => return correction(settings, has, peak_ns),
        Selector::Program => return None,
        Selector::Rules { .. } => Amounts {
            cpu_ns: has.cpu_ns.zip(settings.cpu).map(|(now, range)| range.down(now).min(now)),
            network_bits: has.network_bits.zip(settings.network).map(|(now, range)| range.down(now).min(now)),
            level: has.level,
        },
    };
    (to != has).then_some(to)
}

/// Returns the amounts after the controller has taken some back.
fn correction(settings: &Settings, has: Amounts, peak_ns: Option<u64>) -> Option<Amounts> {
    let (Selector::Feedback(feedback), Some(range), Some(now)) =
        (&settings.selector, settings.cpu, has.cpu_ns)
    else {
        return None;
    };
    let next = range.clamp(feedback.less(now, peak_ns)?);
    (next < now).then_some(Amounts { cpu_ns: Some(next), ..has })
}
