//! A planned move of one domain from a node to another: whose turn it is, by what the registry
//! says.
//!
//! A relocation is a record beside the claim. The claim alone decides who runs the domain; the
//! record says to whom the claim is to go, and every change of it is one compare-and-swap. So
//! whoever dies in between, the next daemon of either node does what is left to do.

use crate::Assigned;

/// How far a relocation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It runs where it was, and is to end there.
    Asked,
    /// It has ended where it was, and has not begun where it goes.
    Given,
    /// The node to which it goes starts it.
    Taken,
    /// It did not come up there, and goes back.
    Back,
    /// It is ready where it was to go.
    Done,
    /// It is ready where it was before.
    Returned,
    /// Nobody goes on with it: what becomes of the domain is decided as of any other.
    Failed,
}

impl Step {
    /// Every step.
    pub const ALL: [Self; 7] =
        [Self::Asked, Self::Given, Self::Taken, Self::Back, Self::Done, Self::Returned, Self::Failed];

    /// The step's word in the registry.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Given => "given",
            Self::Taken => "taken",
            Self::Back => "back",
            Self::Done => "done",
            Self::Returned => "returned",
            Self::Failed => "failed",
        }
    }

    /// The step of this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.as_str() == word)
    }

    /// Whether nothing follows.
    #[must_use]
    pub fn is_last(self) -> bool {
        matches!(self, Self::Done | Self::Returned | Self::Failed)
    }
}

/// A planned move of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation<'a> {
    /// The node that it leaves.
    pub from: &'a str,
    /// The node to which it goes.
    pub to: &'a str,
    /// How far it has come.
    pub step: Step,
}

/// How a domain that a node has claimed is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Not started yet, or not ready yet.
    Pending,
    /// Ready.
    Ready,
    /// Its last start came to nothing.
    Failed,
}

/// A node's part in a relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// None: the domain is treated as any other.
    None,
    /// End the domain, set the step to [`Step::Given`], and then [`Duty::HandOn`].
    Give,
    /// End what is left of the domain, place it on the other node of the two, and let go of the
    /// claim.
    HandOn,
    /// Place the domain here, before anything else: this node keeps its claim, and whoever loses a
    /// claim has the domain again by its place.
    PlaceHere,
    /// Set this step and write down why, and then treat the domain as any other.
    Set(Step),
    /// Set the step to [`Step::Back`], and place the domain here: its claim is nobody's.
    TakeBack,
}

/// The duty of the node `me`. `assigned`: who has the domain; `start`: how it is on `me`, if that
/// is who; `is_lost`: whether nobody hears of a node.
#[must_use]
pub fn duty(
    me: &str,
    relocation: Relocation<'_>,
    assigned: &Assigned,
    start: Start,
    is_lost: impl Fn(&str) -> bool,
) -> Duty {
    let Relocation { from, to, step } = relocation;
    if step.is_last() {
        return Duty::None;
    }
    let Some(holder) = &assigned.claimed else {
        // Who has not taken it does not run it, wherever it is; who has may run it still.
        let stranded = step == Step::Given && from == me && is_lost(to);
        return if stranded { Duty::TakeBack } else { Duty::None };
    };
    if holder != me {
        return Duty::None;
    }
    let is_heir = me == if step == Step::Back { from } else { to };
    let kept = match (step, is_heir) {
        // A lost node's domains go to whoever is chosen.
        _ if me != from && me != to => Duty::Set(Step::Failed),
        (Step::Asked, false) => return Duty::Give,
        (Step::Asked, true) => Duty::Set(Step::Failed),
        (Step::Given, true) => Duty::Set(Step::Taken),
        (Step::Taken, true) => match start {
            Start::Pending => Duty::None,
            Start::Ready => Duty::Set(Step::Done),
            Start::Failed => Duty::Set(Step::Back),
        },
        (Step::Back, true) => match start {
            Start::Pending => Duty::None,
            Start::Ready => Duty::Set(Step::Returned),
            Start::Failed => Duty::Set(Step::Failed),
        },
        // It took it, was lost, and may run elsewhere: so this node has it again.
        (Step::Taken, false) => Duty::Set(Step::Back),
        (Step::Given, false) if is_lost(to) => Duty::Set(Step::Back),
        (Step::Back, false) if is_lost(from) => Duty::Set(Step::Failed),
        (Step::Given | Step::Back, false) => return Duty::HandOn,
        (Step::Done | Step::Returned | Step::Failed, _) => Duty::None,
    };
    if assigned.placed.as_deref() == Some(me) { kept } else { Duty::PlaceHere }
}
