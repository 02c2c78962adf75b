//! `tombolo reserve timeline`: who ran when on which processor, with budgets, misses, and what was
//! changed and why, as one SVG.

use super::super::{client, wait};
use crate::cli::PlaceArgs;
use admin::reserve::{Mark, Note, Trace};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use terminal::{Failure, harmless, print};
use topology::nanos_text;

const WIDTH: f64 = 1200.0;
/// Room for names, and for shares at the other side.
const LEFT: f64 = 190.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const LANE: f64 = 64.0;
const GAP: f64 = 20.0;
const HEADING: f64 = 24.0;
/// Words of changes that are listed below; further ones are counted.
const LISTED: usize = 40;
const LINE: f64 = 16.0;
/// Characters of a listed change.
const WORDS: usize = 170;
const INK: &str = "#222";
const COLOURS: [&str; 8] =
    ["#4477aa", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99", "#7a7a7a"];

/// The processor time between two marks of one domain.
#[derive(Debug, Clone, PartialEq)]
struct Stretch {
    from_ms: u64,
    to_ms: u64,
    /// Of a processor.
    promised: f64,
    used: Option<f64>,
    missed: u64,
    words: String,
}

/// Writes the picture.
pub fn run(place: &PlaceArgs, output: &Path, last_ms: u64) -> Result<(), Failure> {
    let trace: Trace = wait(client(place)?.get("reserve/trace"))??;
    let text = draw(&trace, last_ms);
    std::fs::write(output, text)
        .map_err(|error| Failure::new(format!("can't write {}: {error}", output.display())))?;
    print(&format!("{}: {} looks, {} changes\n", output.display(), trace.marks.len(), trace.notes.len()))
}

/// The picture of the last so many milliseconds.
fn draw(trace: &Trace, last_ms: u64) -> String {
    let begin = trace.now_ms.saturating_sub(last_ms);
    let first = trace.marks.iter().map(|mark| mark.at_ms).filter(|at| *at >= begin).min().unwrap_or(begin);
    let span = Span { from_ms: first, to_ms: trace.now_ms.max(first + 1) };
    let lanes = lanes(&trace.marks, &span);
    let notes: Vec<&Note> = trace.notes.iter().filter(|note| note.at_ms >= span.from_ms).collect();
    let processors: BTreeSet<Option<usize>> = lanes.keys().map(|(processor, _)| *processor).collect();
    let lane_count = lanes.len() as f64;
    let bottom = TOP + processors.len() as f64 * HEADING + lane_count * (LANE + GAP);
    let listed = notes.len().min(LISTED) as f64;
    let height = bottom + 56.0 + listed * LINE + 24.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"{INK}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"16\">Reservations: {:.1} s</text>\n\
         <text x=\"12\" y=\"42\" fill=\"#666\">Line: promised share of the processor. Area: used. Red: periods or slots that were missed. Dashed: a change, numbered as below.</text>\n",
        (span.to_ms - span.from_ms) as f64 / 1e3
    );
    let mut y = TOP;
    let mut at = None;
    for (number, ((processor, name), stretches)) in lanes.iter().enumerate() {
        if at != Some(*processor) {
            y += HEADING;
            let words = processor.map_or_else(|| "any processor".to_owned(), |n| format!("processor {n}"));
            let _ = writeln!(svg, "<text x=\"12\" y=\"{:.1}\" font-weight=\"bold\">{words}</text>", y - 6.0);
            at = Some(*processor);
        }
        lane(&mut svg, y, name, stretches, &span, COLOURS[number % COLOURS.len()]);
        y += LANE + GAP;
    }
    if lanes.is_empty() {
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{:.1}\">Nothing was promised of a processor.</text>",
            TOP + 16.0
        );
    }
    axis(&mut svg, y, &span);
    changes(&mut svg, y, &notes, &span);
    svg.push_str("</svg>\n");
    svg
}

struct Span {
    from_ms: u64,
    to_ms: u64,
}

impl Span {
    fn x(&self, at_ms: u64) -> f64 {
        let whole = (self.to_ms - self.from_ms).max(1) as f64;
        LEFT + at_ms.clamp(self.from_ms, self.to_ms).saturating_sub(self.from_ms) as f64 / whole
            * (WIDTH - LEFT - RIGHT)
    }
}

type Lanes = BTreeMap<(Option<usize>, String), Vec<Stretch>>;

/// Returns the time of each domain on each processor, in order.
fn lanes(marks: &[Mark], span: &Span) -> Lanes {
    let mut before: BTreeMap<&str, &Mark> = BTreeMap::new();
    let mut lanes = Lanes::new();
    for mark in marks.iter().filter(|mark| mark.at_ms >= span.from_ms) {
        let lane = lanes.entry((mark.processor, mark.name.clone())).or_default();
        if let Some(earlier) = before.insert(&mark.name, mark)
            && mark.at_ms > earlier.at_ms
        {
            lane.push(stretch(earlier, mark));
        }
    }
    lanes
}

fn stretch(earlier: &Mark, mark: &Mark) -> Stretch {
    let elapsed_ns = (mark.at_ms - earlier.at_ms) as f64 * 1e6;
    let grown = |of: fn(&Mark) -> Option<u64>| of(mark)?.checked_sub(of(earlier)?);
    let used = grown(|mark| mark.cpu_ns).map(|ns| ns as f64 / elapsed_ns);
    let missed = grown(|mark| mark.missed).unwrap_or(0);
    let promised = earlier.budget_ns as f64 / earlier.period_ns.max(1) as f64;
    let (budget, period) = (nanos_text(earlier.budget_ns), nanos_text(earlier.period_ns));
    let used_words = used.map_or_else(String::new, |used| format!(", used {:.1} %", used * 100.0));
    let missed_words = match (missed, grown(|mark| mark.periods)) {
        (0, _) | (_, None) => String::new(),
        (missed, Some(periods)) => format!(", missed {missed} of {periods}"),
    };
    let words = format!("{}: {budget} in {period}{used_words}{missed_words}", mark.name);
    Stretch { from_ms: earlier.at_ms, to_ms: mark.at_ms, promised, used, missed, words }
}

fn lane(svg: &mut String, y: f64, name: &str, stretches: &[Stretch], span: &Span, colour: &str) {
    let height = |share: f64| share.clamp(0.0, 1.0) * LANE;
    let end = WIDTH - RIGHT;
    let floor = y + LANE;
    let _ = writeln!(
        svg,
        "<text x=\"12\" y=\"{:.1}\">{}</text><rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{LANE}\" fill=\"#f6f6f6\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#888\" font-size=\"10\">100 %</text>\
         <text x=\"{:.1}\" y=\"{floor:.1}\" text-anchor=\"end\" fill=\"#888\" font-size=\"10\">0</text>",
        y + LANE / 2.0 + 4.0,
        escaped(&shortened(name, 24)),
        end - LEFT,
        LEFT - 4.0,
        y + 9.0,
        LEFT - 4.0
    );
    for one in stretches {
        let (from, to) = (span.x(one.from_ms), span.x(one.to_ms));
        let width = (to - from).max(0.2);
        let used = height(one.used.unwrap_or(0.0));
        let _ = writeln!(
            svg,
            "<g><title>{}</title><rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{LANE}\" fill=\"transparent\"/>\
             <rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{used:.1}\" fill=\"{colour}\" fill-opacity=\"0.45\"/>",
            escaped(&one.words),
            floor - used
        );
        if one.missed > 0 {
            let _ = writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"4\" fill=\"#cc3311\"/>",
                floor + 2.0
            );
        }
        svg.push_str("</g>\n");
    }
    let mut line = String::new();
    for one in stretches {
        let level = floor - height(one.promised);
        let _ = write!(line, "{:.1},{level:.1} {:.1},{level:.1} ", span.x(one.from_ms), span.x(one.to_ms));
    }
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        line.trim_end()
    );
}

/// Seconds before the end.
fn axis(svg: &mut String, y: f64, span: &Span) {
    let whole_s = (span.to_ms - span.from_ms) as f64 / 1e3;
    for tick in 0..=6_u64 {
        let at_ms = span.from_ms + (span.to_ms - span.from_ms) * tick / 6;
        let x = span.x(at_ms);
        let ago = whole_s * (6 - tick) as f64 / 6.0;
        let words = if tick == 6 { "now".to_owned() } else { format!("-{ago:.1} s") };
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666\">{words}</text>",
            y + 14.0
        );
    }
}

fn changes(svg: &mut String, y: f64, notes: &[&Note], span: &Span) {
    let mut last_x = f64::MIN;
    for (number, note) in notes.iter().enumerate() {
        let x = span.x(note.at_ms);
        // Numbers that would stand on each other are left to the list.
        let is_readable = number < LISTED && x - last_x >= 14.0;
        let label = if is_readable { (number + 1).to_string() } else { String::new() };
        if is_readable {
            last_x = x;
        }
        let _ = writeln!(
            svg,
            "<g><title>{}</title><line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{y:.1}\" stroke=\"{INK}\" stroke-dasharray=\"3 3\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{label}</text></g>",
            escaped(&harmless(&note.what)),
            TOP - 2.0
        );
    }
    let _ = writeln!(svg, "<text x=\"12\" y=\"{:.1}\" font-weight=\"bold\">Changes</text>", y + 40.0);
    for (number, note) in notes.iter().take(LISTED).enumerate() {
        let ago = span.to_ms.saturating_sub(note.at_ms) as f64 / 1e3;
        let words = format!("{}  -{ago:.1} s  {}", number + 1, shortened(&harmless(&note.what), WORDS));
        let line = y + 40.0 + (number + 1) as f64 * LINE;
        let _ = writeln!(svg, "<text x=\"12\" y=\"{line:.1}\" font-size=\"11\">{}</text>", escaped(&words));
    }
    if notes.len() > LISTED {
        let line = y + 40.0 + (LISTED + 1) as f64 * LINE;
        let _ = writeln!(svg, "<text x=\"12\" y=\"{line:.1}\">and {} more</text>", notes.len() - LISTED);
    }
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most - 1).collect();
    kept + "\u{2026}"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(at_ms: u64, name: &str, budget_ms: u64, cpu_ms: u64, missed: u64) -> Mark {
        Mark {
            at_ms,
            name: name.to_owned(),
            processor: Some(0),
            budget_ns: budget_ms * 1_000_000,
            period_ns: 40_000_000,
            cpu_ns: Some(cpu_ms * 1_000_000),
            missed: Some(missed),
            periods: Some(at_ms / 40),
        }
    }

    #[test]
    fn a_stretch_says_what_was_promised_used_and_missed_in_it() {
        let marks = [
            mark(0, "film/gold", 10, 0, 0),
            mark(1_000, "film/gold", 20, 250, 3),
            mark(2_000, "film/gold", 20, 100, 3),
        ];
        let span = Span { from_ms: 0, to_ms: 2_000 };
        let lanes = lanes(&marks, &span);
        let stretches = &lanes[&(Some(0), "film/gold".to_owned())];
        assert_eq!((stretches[0].promised, stretches[0].used, stretches[0].missed), (0.25, Some(0.25), 3));
        assert_eq!(stretches[0].words, "film/gold: 10ms in 40ms, used 25.0 %, missed 3 of 25");
        // A counter that went back is of another incarnation.
        assert_eq!((stretches[1].promised, stretches[1].used), (0.5, None));
    }

    #[test]
    fn what_strangers_call_themselves_is_no_markup() {
        let what = "<script>alert(1)</script> & \"more\"".to_owned();
        let notes = vec![Note { at_ms: 1_500, what }];
        let trace = Trace {
            now_ms: 2_000,
            marks: vec![mark(1_000, "a<b", 10, 0, 0), mark(2_000, "a<b", 10, 9, 0)],
            notes,
        };
        let svg = draw(&trace, 60_000);
        assert!(
            !svg.contains("<script>") && svg.contains("&lt;script&gt;") && svg.contains("a&lt;b"),
            "{svg}"
        );
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(draw(&Trace::default(), 1_000).contains("Nothing was promised"));
    }
}
