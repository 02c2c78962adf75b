//! The report: one HTML file that needs nothing else, from `file://`, in light and dark, on a
//! telephone and on paper.

use crate::analysis::{Analysis, ArmReport, CellReport, Deadline, sentence};
use crate::plan::{Deployment, Loop};
use crate::svg::{self, Axis, Bar, Curve, escape, figure};
use bench::histogram::Latencies;
use statistics::Estimate;
use statistics::binomial::clopper_pearson;
use statistics::claim::Claim;
use statistics::factorial::Decomposition;
use std::fmt::Write as _;
use topology::nanos_text;

/// The file in the directory of a run.
pub const FILE: &str = "report.html";
const STYLE: &str = include_str!("page/style.css");
const SORT: &str = include_str!("page/sort.js");
/// Percentiles of the percentile curve: one of so many is slower.
const ONE_OF: [(f64, &str); 6] =
    [(1.0, "0"), (10.0, "90"), (100.0, "99"), (1e3, "99.9"), (1e4, "99.99"), (1e5, "99.999")];
/// Longest deadline of the curve, in us.
const DEADLINE_MAX_US: f64 = 1e6;
/// Points of the curve of deadlines.
const DEADLINE_POINTS: i32 = 120;

/// The whole page.
#[must_use]
pub fn html(analysis: &Analysis) -> String {
    let title = format!("{}: tombolo bench", escape(&analysis.plan.name));
    let mut out = format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n<main>\n"
    );
    head(&mut out, analysis);
    said(&mut out, analysis);
    decomposed(&mut out, analysis);
    put(&mut out, "<h2>Cells</h2>");
    for (number, cell) in analysis.cells.iter().enumerate() {
        self::cell(&mut out, analysis, cell, number == 0);
    }
    missing(&mut out, analysis);
    how(&mut out, analysis);
    let _infallible = write!(out, "</main>\n<script>\n{SORT}</script>\n</html>\n");
    out
}

fn put(out: &mut String, line: impl AsRef<str>) {
    out.push_str(line.as_ref());
    out.push('\n');
}

fn head(out: &mut String, analysis: &Analysis) {
    put(out, format!("<h1>{}</h1>", escape(&analysis.plan.name)));
    let launches = analysis.plan.launches;
    let class = if analysis.state() == "complete" { "state" } else { "state warn" };
    put(
        out,
        format!(
            "<p><span class=\"{class}\">{}</span> {launches} launches of {} cells with {} arms each, seed {}, plan {}.",
            escape(&analysis.state()),
            analysis.plan.cells().len(),
            analysis.plan.arms().len(),
            analysis.plan.seed,
            escape(&analysis.head.fingerprint),
        ),
    );
    if let Some(fields) = analysis.head.environment.as_object() {
        put(out, "<details><summary>The machine</summary><div class=wide><table><tbody>");
        for (name, value) in fields {
            let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            put(out, format!("<tr><th>{}<td>{}", escape(&name.replace('_', " ")), escape(&value)));
        }
        put(out, "</table></div></details>");
    }
}

/// The comparisons in words.
fn said(out: &mut String, analysis: &Analysis) {
    let Some(first) = analysis.plan.subjects.first() else { return };
    let (alarms, of) = analysis.false_alarms();
    put(
        out,
        format!(
            "<h2>What the launches support</h2>\n<p>Beside {}, by the median of each launch.",
            escape(first)
        ),
    );
    let control = match alarms {
        _ if of == 0 => "There is no A/A arm in these results.".to_owned(),
        0 => format!("The A/A arm, {} run twice, was told from itself in none of {of} cells.", escape(first)),
        _ => format!(
            "<strong>The A/A arm, {} run twice, was told from itself in {alarms} of {of} cells: something disturbed this run.</strong>",
            escape(first)
        ),
    };
    put(out, format!("<p>{control}"));
    put(
        out,
        "<div class=wide><table class=sortable><thead><tr><th>cell<th>finding<th>effect<th>p, corrected</thead><tbody>",
    );
    for CellReport { cell, arms } in &analysis.cells {
        for arm in arms {
            let Some(comparison) = &arm.comparison else { continue };
            put(
                out,
                format!(
                    "<tr><td>{}<td class=\"said {}\">{}<td class=n>{:+.2}<td class=n>{}",
                    escape(&cell.to_string()),
                    class(comparison.claim),
                    escape(&sentence(&arm.arm, first, comparison)),
                    comparison.test.effect,
                    figure(comparison.p_corrected),
                ),
            );
        }
    }
    put(out, "</tbody></table></div>");
}

fn class(claim: Claim) -> &'static str {
    match claim {
        Claim::Smaller => "good",
        Claim::Larger => "bad",
        Claim::CantTell { .. } => "open",
    }
}

fn decomposed(out: &mut String, analysis: &Analysis) {
    let Some(ideal) = analysis.plan.ideal.as_ref().filter(|_| !analysis.decompositions.is_empty()) else {
        return;
    };
    let bare = analysis.plan.deployments.first().map_or("bare", |bare| bare.word());
    put(out, "<h2>Where the time goes</h2>");
    put(
        out,
        format!(
            "<p>The ideal is {} on {bare}. Middleware is what a subject adds to that on {bare}; virtualization is what the deployment adds to the ideal; \
             what both cost together beyond that is their interaction, and below zero it means that one hides the other. Whiskers are 95 % intervals over launches.",
            escape(ideal)
        ),
    );
    put(out, "<p class=legend>");
    for (colour, part) in PARTS.iter().enumerate() {
        put(out, format!("<span><i class=f{colour}></i>{part}</span>"));
    }
    put(out, "</p><div class=figures>");
    for CellReport { cell, .. } in analysis.cells.iter().take(BAR_FIGURES_MAX) {
        let of_cell = analysis.decompositions.iter().filter(|found| found.cell == *cell);
        let groups: Vec<(String, Vec<Bar>)> =
            of_cell.map(|found| (found.subject.clone(), bars(&found.parts))).collect();
        if !groups.is_empty() {
            let name = cell.to_string();
            put(out, figure_of(&escape(&name), &svg::bars(&name, "us of the median", &groups)));
        }
    }
    put(out, "</div>");
    put(
        out,
        "<div class=wide><table class=sortable><thead><tr><th>subject<th>cell<th>whole us<th>ideal<th>middleware<th>virtualization<th>interaction</thead><tbody>",
    );
    for found in &analysis.decompositions {
        let whole = found.parts.whole.value;
        let part = |part: &Estimate| {
            // What is below the ideal has no parts of a whole.
            let share = if whole < found.parts.ideal.value {
                String::new()
            } else {
                format!(" <small>{:.0} %</small>", part.value / whole * 100.0)
            };
            format!("<td class=n data-v={}>{}{share}", part.value, interval(part))
        };
        put(
            out,
            format!(
                "<tr><td>{}<td>{}<td class=n data-v={whole}>{}{}{}{}{}",
                escape(&found.subject),
                escape(&found.cell.to_string()),
                interval(&found.parts.whole),
                part(&found.parts.ideal),
                part(&found.parts.middleware),
                part(&found.parts.virtualization),
                part(&found.parts.interaction),
            ),
        );
    }
    put(out, "</tbody></table></div>");
}

const PARTS: [&str; 4] = ["ideal", "middleware", "virtualization", "interaction"];
/// Cells beyond these are but in the table.
const BAR_FIGURES_MAX: usize = 24;

fn bars(parts: &Decomposition) -> Vec<Bar> {
    let parts = [parts.ideal, parts.middleware, parts.virtualization, parts.interaction];
    let bar = |(colour, part): (usize, &Estimate)| Bar {
        name: format!(
            "{}: {} us [{}, {}]",
            PARTS[colour],
            figure(part.value),
            figure(part.low),
            figure(part.high)
        ),
        colour,
        value: part.value,
        low: part.low,
        high: part.high,
    };
    parts.iter().enumerate().map(bar).collect()
}

fn cell(out: &mut String, analysis: &Analysis, report: &CellReport, is_open: bool) {
    let open = if is_open { " open" } else { "" };
    put(out, format!("<details class=cell{open}><summary>{}</summary>", escape(&report.cell.to_string())));
    put(out, "<p class=legend>");
    for (colour, arm) in report.arms.iter().enumerate() {
        let dash = if colour >= svg::COLOURS { " dashed" } else { "" };
        put(
            out,
            format!("<span><i class=\"f{}{dash}\"></i>{}</span>", colour % svg::COLOURS, escape(&arm.arm)),
        );
    }
    put(out, "</p><div class=figures>");
    put(out, figure_of("How many were answered within a time", &ecdf(&report.arms)));
    put(out, figure_of("How slow the slowest are", &percentiles(&report.arms)));
    put(out, figure_of("How likely a deadline is missed, at most", &misses(&report.arms)));
    put(out, "</div>");
    table(out, report);
    deadlines(out, analysis, report);
    put(out, "</details>");
}

fn figure_of(caption: &str, drawing: &str) -> String {
    format!("<figure>{drawing}<figcaption>{caption}</figcaption></figure>")
}

fn spread(arms: &[ArmReport]) -> (f64, f64) {
    let least = arms.iter().filter_map(|arm| arm.latencies.pairs().next()).map(|(ns, _)| ns).min();
    let most = arms.iter().filter_map(|arm| arm.latencies.longest_ns()).max();
    (least.unwrap_or(1_000) as f64 / 1e3, most.unwrap_or(10_000) as f64 / 1e3)
}

fn ecdf(arms: &[ArmReport]) -> String {
    let (least, most) = spread(arms);
    let curves: Vec<Curve> = arms
        .iter()
        .enumerate()
        .map(|(colour, arm)| {
            let points = shares(&arm.latencies).collect();
            Curve { name: arm.arm.clone(), colour, points, is_stepped: true }
        })
        .collect();
    svg::lines("ECDF", &Axis::log("us", least, most), &Axis::share("answered"), &curves)
}

/// Values in us, each with the share that it does not exceed.
fn shares(latencies: &Latencies) -> impl Iterator<Item = (f64, f64)> {
    let all = latencies.count().max(1) as f64;
    let mut below = 0;
    latencies.pairs().map(move |(ns, count)| {
        below += count;
        (ns as f64 / 1e3, below as f64 / all)
    })
}

fn percentiles(arms: &[ArmReport]) -> String {
    let (least, most) = spread(arms);
    let longest = arms.iter().map(|arm| arm.latencies.count()).max().unwrap_or(10) as f64;
    let marks: Vec<(f64, String)> = ONE_OF
        .iter()
        .filter(|(of, _)| *of <= longest * 3.0)
        .map(|(of, text)| (*of, (*text).to_owned()))
        .collect();
    let right = marks.last().map_or(10.0, |(of, _)| *of);
    let x = Axis { label: "percentile", scale: svg::Scale::Log, range: (1.0, right), marks };
    let curves: Vec<Curve> = arms
        .iter()
        .enumerate()
        .map(|(colour, arm)| {
            let mut before = 0.0;
            // Where a value begins: of the share that lies below it.
            let points = shares(&arm.latencies).map(|(us, share)| {
                let point = (1.0 / (1.0 - before), us);
                before = share;
                point
            });
            Curve { name: arm.arm.clone(), colour, points: points.collect(), is_stepped: true }
        })
        .collect();
    svg::lines("percentiles", &x, &Axis::log("us", least, most), &curves)
}

/// The upper bound of the probability of a miss, by deadline.
fn misses(arms: &[ArmReport]) -> String {
    let (least, _) = spread(arms);
    let x = Axis::log("deadline, us", least, DEADLINE_MAX_US);
    let (from, to) = (x.range.0.log10(), x.range.1.log10());
    let at = |point: i32| 10_f64.powf(from + (to - from) * f64::from(point) / f64::from(DEADLINE_POINTS));
    let curves: Vec<Curve> = arms
        .iter()
        .enumerate()
        .map(|(colour, arm)| {
            let bound = |us: f64| {
                let missed = arm.latencies.count_above((us * 1e3) as u64) + arm.unanswered;
                clopper_pearson(missed, arm.latencies.count() + arm.unanswered).map(|share| (us, share.high))
            };
            let points = (0..=DEADLINE_POINTS).filter_map(|point| bound(at(point))).collect();
            Curve { name: arm.arm.clone(), colour, points, is_stepped: false }
        })
        .collect();
    let lowest = curves.iter().flat_map(|curve| &curve.points).map(|(_, share)| *share).fold(0.1, f64::min);
    svg::lines("misses", &x, &Axis::log("probability, upper bound", lowest, 1.0), &curves)
}

fn table(out: &mut String, report: &CellReport) {
    let is_open = report.cell.pace != Loop::Closed;
    let sent = if is_open { "<th>p99 since sent" } else { "" };
    put(
        out,
        format!(
            "<div class=wide><table class=sortable><thead><tr><th>arm<th>p50 us<th>p99 us<th>p99.9 us<th>longest us{sent}<th>per s<th>processor us<th>samples<th>of these warm-up<th>unanswered</thead><tbody>"
        ),
    );
    for arm in &report.arms {
        let estimate = |found: &Option<Estimate>| match found {
            Some(found) => format!("<td class=n data-v={}>{}", found.value, interval(found)),
            None => "<td class=n data-v=-1>-".to_owned(),
        };
        let us = |ns: Option<u64>| {
            ns.map_or_else(
                || "<td class=n>-".to_owned(),
                |ns| format!("<td class=n data-v={ns}>{}", figure(ns as f64 / 1e3)),
            )
        };
        let [p50, p99, p999] = &arm.percentiles_us;
        let sent = if is_open { us(arm.uncorrected.quantile_ns(0.99)) } else { String::new() };
        let unsettled = match arm.unsettled {
            0 => String::new(),
            count => format!(" <small>never settled in {count}</small>"),
        };
        put(
            out,
            format!(
                "<tr><td>{}{}{}{}{}{sent}{}{}<td class=n>{}<td class=n data-v={}>{}{unsettled}<td class=n>{}",
                escape(&arm.arm),
                estimate(p50),
                estimate(p99),
                estimate(p999),
                us(arm.latencies.longest_ns()),
                estimate(&arm.rate),
                estimate(&arm.processor_us),
                arm.samples,
                arm.warm_up,
                arm.warm_up,
                arm.unanswered,
            ),
        );
    }
    put(out, "</tbody></table></div>");
}

fn deadlines(out: &mut String, analysis: &Analysis, report: &CellReport) {
    put(out, "<div class=wide><table class=sortable><thead><tr><th>arm");
    for deadline in &analysis.plan.deadlines_ns {
        put(out, format!("<th>{}: used by p50, p99<th>missed, at most", nanos_text(*deadline)));
    }
    put(out, "</thead><tbody>");
    for arm in &report.arms {
        put(out, format!("<tr><td>{}", escape(&arm.arm)));
        for Deadline { used: [half, most], missed, .. } in &arm.deadlines {
            let (half, most) = (percent(*half), percent(*most));
            put(
                out,
                format!(
                    "<td class=n>{half}, {most}<td class=n data-v={}>{}",
                    missed.high,
                    figure(missed.high)
                ),
            );
        }
    }
    put(out, "</tbody></table></div>");
}

fn percent(share: f64) -> String {
    format!("{} %", figure(share * 100.0))
}

fn interval(found: &Estimate) -> String {
    if found.launches < 2 {
        return figure(found.value);
    }
    format!("{} <small>[{}, {}]</small>", figure(found.value), figure(found.low), figure(found.high))
}

fn missing(out: &mut String, analysis: &Analysis) {
    if !analysis.failed.is_empty() {
        put(out, "<h2>What failed</h2><ul>");
        for (failed, count) in &analysis.failed {
            let cell = failed.which.cell.cell().map(|cell| cell.to_string()).unwrap_or_default();
            let arm = escape(&failed.which.arm);
            put(
                out,
                format!(
                    "<li><b>{arm}</b>, {}: {count} times, at first: {}",
                    escape(&cell),
                    escape(&failed.why)
                ),
            );
        }
        put(out, "</ul>");
    }
    if !analysis.skipped.is_empty() {
        put(out, "<h2>What was not measured</h2><ul>");
        for skipped in &analysis.skipped {
            put(out, format!("<li><b>{}</b>: {}", escape(&skipped.what), escape(&skipped.why)));
        }
        put(out, "</ul>");
    }
}

fn how(out: &mut String, analysis: &Analysis) {
    let containers = analysis.plan.deployments.contains(&Deployment::Container);
    let container =
        if containers { " Containers are made by runc, in these network namespaces." } else { "" };
    put(
        out,
        format!(
            "<h2>How to read it</h2>\n<p>A figure with brackets is the median over launches, and in brackets its 95 % bootstrap interval over launches: samples of one launch share their fate, \
             so their number makes nothing sure. Arms of a cell run one after the other, in an order of the seed. A claim stands where the rank test of Mann and Whitney, corrected by Holm for all \
             comparisons of this page, and the interval of the ratio both support it. The effect is the rank-biserial correlation: +1 where all launches of the arm are slower.\
             <p>In open loops, latency counts from when a request was due; “since sent” is what a loop would say that leaves out what had to wait. Samples of the warm-up (MSER-5) count in none of the latencies; outliers all do. \
             The probability of a miss has the exact bound of Clopper and Pearson over all samples, as if they were independent; what was not answered is missed.\
             <p>Each request has a number and a checksum, which its answer has to have.{container} Deadlines and curves pool the samples of all launches.\
             <details><summary>The plan</summary><pre>{}</pre></details>",
            escape(&analysis.head.text)
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::analyse;
    use crate::analysis::tests::made_up;

    fn page() -> String {
        let us = |subject: &str, deployment: Deployment| {
            let base = if subject == "udp" { 20.0 } else { 50.0 };
            if deployment == Deployment::Bare { base } else { base * 2.0 }
        };
        html(&analyse(made_up(us)).expect("a plan"))
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = page().replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http:", "https:", "src=", "@import", "url(", "<link"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }

    #[test]
    fn everything_is_on_it_and_what_others_wrote_stays_text() {
        let page = page();
        for words in [
            "udp is faster than tcp",
            "tcp (again)",
            "Where the time goes",
            "interaction",
            "10ms: used by p50",
        ] {
            assert!(page.contains(words), "{words}");
        }
        assert!(page.contains("&lt;a &amp; b&gt;") && !page.contains("<a & b>"));
        let drawn = page.split("<script>").next().unwrap_or_default();
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }
}
