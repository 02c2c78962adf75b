//! The keys of adaptations.

use super::Command;
use crate::bounds::*;
use crate::model::MonitorWord;
use crate::read::{Named, table_form};
use crate::scalar::{Count, FigureText, Filled, Millis, Nanos, Rate};

table_form! {
    /// A rule that watches a domain and moves what is promised to it.
    AdaptationForm as "an adaptation" {
        /// The domain whose promise moves. It has one adaptation at most.
        domain: Filled => required,
        /// The figure that is watched.
        monitor: MonitorWord => required,
        /// The service that is watched, for the monitors "latency", "jitter", "rate" and "targets":
        /// one that the domain mounts.
        service: Filled => optional,
        /// How often a figure is read.
        every: Millis<ADAPTATION_EVERY_MS_MIN, ADAPTATION_EVERY_MS_MAX> => "200ms",
        /// The rule for more: which figures mean that it has too little.
        more: RuleForm => optional,
        /// The rule for less: which figures mean that less would do.
        less: RuleForm => optional,
        /// In place of the rules, the controller: the budget of the processor follows the share of
        /// work that is missed.
        feedback: FeedbackForm => optional,
        /// In place of the rules, a program that says what is wanted.
        selector: SelectorForm => optional,
        /// A command that is run after each change, and told what is in force now.
        activator: ActivatorForm => optional,
        /// Between what its budget of the processor moves.
        cpu: BudgetRangeForm => optional,
        /// Between what its rate of the link moves.
        network: RateRangeForm => optional,
        /// Levels of quality that its program knows: it reads which one to keep to at
        /// /srv/self/level, and 0 is the best.
        levels: Count<1, LEVELS_MAX> => 1,
        /// The domains that give where the node has no room, the first ones first, and what is left
        /// to them.
        from: Named<GivingForm, GIVERS_MAX> => optional,
        /// The rank where several adaptations want the same: the greater goes first.
        priority: Count<0, ADAPTATION_PRIORITY_MAX> => 0,
        /// How long it is at least from one change until less is given.
        pause: Millis<0, ADAPTATION_EVERY_MS_MAX> => "2s",
        /// Most changes in a minute.
        changes_per_minute: Count<1, CHANGES_PER_MINUTE_MAX> => CHANGES_PER_MINUTE_DEFAULT,
        /// Whether it only says what it would do.
        dry_run: bool => false,
    }
}

table_form! {
    /// Figures to one side of a bound: `above` or `below`.
    RuleForm as "a rule" {
        /// Figures above this one.
        above: FigureText => optional,
        /// Figures below this one.
        below: FigureText => optional,
        /// For how many samples in a row.
        samples: Count<1, RULE_SAMPLES_MAX> => 1,
    }
}

table_form! {
    /// The controller of a budget.
    FeedbackForm as "a controller" {
        /// The share of work, in percent, that may be missed.
        target: FigureText => required,
        /// For how many samples in a row it has to be kept before less is given.
        samples: Count<1, RULE_SAMPLES_MAX> => FEEDBACK_SAMPLES_DEFAULT,
    }
}

table_form! {
    /// A program, or a WebAssembly module, that is told each figure and says what is wanted.
    SelectorForm as "a selector" {
        /// This command runs in the domain as long as the adaptation does: a line of JSON comes in
        /// for each sample, and one goes out.
        command: Command => optional,
        /// In place of a command, this file of the node is a WebAssembly module, which the daemon
        /// asks itself.
        module: Filled => optional,
        /// Where it runs; where nothing is said, in the domain that is adapted.
        domain: Filled => optional,
        /// How long it may take to answer; then it is ended, and begun anew.
        timeout: Millis<SELECTOR_TIMEOUT_MS_MIN, SELECTOR_TIMEOUT_MS_MAX> => "1s",
    }
}

table_form! {
    /// A command that is told what is in force.
    ActivatorForm as "an activator" {
        /// The command: a line of JSON at its standard input says what it was told before, and what
        /// is so now. It ends with 0 when it has done its part; otherwise it is run again.
        command: Command => required,
        /// Where it runs; where nothing is said, in the domain that is adapted.
        domain: Filled => optional,
        /// How long it may take; then it is ended, and run again.
        timeout: Millis<SELECTOR_TIMEOUT_MS_MIN, ACTIVATOR_TIMEOUT_MS_MAX> => "5s",
    }
}

table_form! {
    /// Between what a budget of the processor moves.
    BudgetRangeForm as "a range of budgets" {
        /// It is never less.
        least: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => required,
        /// It is never more.
        most: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => required,
        /// By how much it moves at a time; for rules.
        step: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => optional,
    }
}

table_form! {
    /// Between what a rate of the link moves.
    RateRangeForm as "a range of rates" {
        /// It is never less.
        least: Rate<RATE_BITS_MIN, RATE_BITS_MAX> => required,
        /// It is never more.
        most: Rate<RATE_BITS_MIN, RATE_BITS_MAX> => required,
        /// By how much it moves at a time.
        step: Rate<RATE_BITS_MIN, RATE_BITS_MAX> => required,
    }
}

table_form! {
    /// The rest of a domain that gives: what is not named is not taken.
    GivingForm as "what a domain gives" {
        /// Budget of the processor that is left to it at least.
        cpu: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => optional,
        /// Rate of the link that is left to it at least.
        network: Rate<RATE_BITS_MIN, RATE_BITS_MAX> => optional,
    }
}
