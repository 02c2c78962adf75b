# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the experiment measured, in words, as a table, and as one HTML file that fetches nothing."""

from html import escape

# What the papers say: packets that came with both adaptations and with none, loss and jitter with both.
PAPER = {"neither": {"packets": 6032}, "both": {"packets": 8329, "loss": 1.5, "jitter": "within ±20 ms"}}
GOAL_JITTER_MS = 5
GOAL_FRAMES = 30_000


def total(arm, key):
    return sum(stream[key] for stream in arm["streams"].values())


def worst(arm, key):
    return max((stream[key] for stream in arm["streams"].values() if stream[key] is not None), default=0.0)


def loss(arm):
    """Packets that were lost, in percent of those sent."""
    return 100 * total(arm, "lost") / max(1, total(arm, "sent"))


def delivered(arm):
    """Frames that came whole, in percent of 25 a second."""
    return min(100.0, 100 * total(arm, "frames") / max(1, arm["expected_frames"]))


def jitter(arm):
    """The mean of RFC 3550's jitter over all packets of all streams, in ms."""
    return sum(s["jitter_mean_ms"] * s["received"] for s in arm["streams"].values()) / max(1, total(arm, "received"))


def promise(arm):
    said = []
    if arm["budgets_ms"]:
        said.append("{} then {} ms in 40".format(*arm["budgets_ms"]))
    if arm["rates_kbit"]:
        said.append("{:g} then {:g} Mbit/s".format(*(rate / 1000 for rate in arm["rates_kbit"])))
    return ", ".join(said) or "nothing"


def sentence(arm):
    return (
        f"{arm['title']}: {total(arm, 'frames')} of {arm['expected_frames']:.0f} frames came whole, {loss(arm):.2f} % of packets were lost, "
        f"jitter {jitter(arm):.1f} ms (at worst {worst(arm, 'jitter_worst_ms'):.1f})"
    )


COLUMNS = ["arm", "promised", "frames whole", "of those due", "packets", "loss", "jitter, mean", "worst", "spacing, 99 %", "the papers"]


def rows(found):
    for arm in found["arms"]:
        paper = PAPER.get(arm["name"], {})
        told = [f"{paper['packets']} packets"] if paper else []
        if "loss" in paper:
            told += [f"{paper['loss']} % loss", f"jitter {paper['jitter']}"]
        yield [
            arm["title"], promise(arm), f"{total(arm, 'frames')}", f"{delivered(arm):.1f} %", f"{total(arm, 'received')}", f"{loss(arm):.2f} %",
            f"{jitter(arm):.2f} ms", f"{worst(arm, 'jitter_worst_ms'):.2f} ms", f"{worst(arm, 'spacing_p99_ms'):.1f} ms", ", ".join(told) or "not told",
        ]


def table(found):
    lines = [COLUMNS, *rows(found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #6a737d; --line: #d8dee4; --bad: #c62f2f; --good: #2b7a3f;
  --c0: #1f6fb2; --c1: #d9730d; --c2: #2b8a3e; --c3: #8e44ad; --c4: #c2255c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --paper: #14171a; --faint: #97a1ab; --line: #343a40; --bad: #ff7b72; --good: #5fc77a;
  --c0: #6cb4f0; --c1: #f2a65a; --c2: #6fcf85; --c3: #c79bea; --c4: #f783ac; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } .scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.85rem; }
th, td { text-align: right; padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line); } th { vertical-align: bottom; }
td:not(:nth-child(-n+2)):not(:last-child) { white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2), td:last-child { text-align: left; } small, figcaption { color: var(--faint); }
figure { margin: 1rem 0 2rem; } svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg text.faint { fill: var(--faint); } .grid { stroke: var(--line); } .bar { fill: var(--c0); } .bar.lost { fill: var(--bad); } .mark { stroke: var(--ink);
  stroke-dasharray: 4 3; } .stream { fill: none; stroke-width: 1.6; } .s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); }
.s3 { stroke: var(--c3); } .s4 { stroke: var(--c4); } .kept { color: var(--good); } .broken { color: var(--bad); }
"""


def bars(title, values, most, unit, mark=None):
    """A bar an arm: (label, value)."""
    height, left, width = 30, 340, 900
    scale = (width - left - 90) / most
    parts = []
    for number, (label, value, kind) in enumerate(values):
        y = number * height + 4
        parts.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
        parts.append(f'<rect class="bar {kind}" x="{left}" y="{y}" width="{max(1, value * scale):.1f}" height="20"/>')
        parts.append(f'<text x="{left + value * scale + 6:.1f}" y="{y + 15}">{value:.2f} {unit}</text>')
    bottom = len(values) * height + 6
    if mark:
        x = left + mark[0] * scale
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>')
        parts.append(f'<text class="faint" x="{x + 4:.1f}" y="{bottom + 12}">{escape(mark[1])}</text>')
    return f'<svg viewBox="0 0 {width} {bottom + 18}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def thinned(points, most=300):
    """At most so many points, each the worst of those it stands for."""
    size = max(1, -(-len(points) // most))
    return [(points[at][0], max(y for _, y in points[at : at + size])) for at in range(0, len(points), size)]


def per_second(arm, value):
    """For each stream the points (second since the beginning, value of its row, the row before it)."""
    starts = [stream["started_us"] for stream in arm["streams"].values() if stream["started_us"]]
    begun = min(starts, default=0) / 1e6
    for number, (_, stream) in enumerate(sorted(arm["streams"].items())):
        points, before = [], None
        for row in stream["seconds"]:
            points.append((max(0.0, row[0] - begun), value(row, before)))
            before = row
        yield number, thinned(points)


def lost_share(row, before):
    """Packets of a second that were lost, in percent."""
    sent = row[4] - before[4] if before else row[1]
    return 100 * max(0, sent - row[1]) / max(1, sent)


def lines(title, arm, value, most, unit):
    """A line a stream over the arm's time, and a mark where the fifth comes."""
    width, height, left, right = 900, 150, 52, 12
    x = lambda second: left + (width - left - right) * min(1.0, second / arm["seconds"])
    y = lambda value: 8 + (height - 34) * (1 - min(1.0, value / most))
    parts = []
    for share in (0, 0.5, 1):
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y(share * most):.1f}" y2="{y(share * most):.1f}"/>')
        parts.append(f'<text class="faint" x="{left - 6}" y="{y(share * most) + 4:.1f}" text-anchor="end">{share * most:g}</text>')
    arrival = x(arm["arrival"])
    parts.append(f'<line class="mark" x1="{arrival:.1f}" x2="{arrival:.1f}" y1="4" y2="{height - 26}"/>')
    side = "start" if arrival < width - 200 else "end"
    parts.append(f'<text class="faint" x="{arrival:.1f}" y="{height - 8}" text-anchor="{side}">a fifth stream</text>')
    parts.append(f'<text class="faint" x="{left}" y="{height - 8}">{unit}; {arm["seconds"]:.0f} s</text>')
    for number, points in per_second(arm, value):
        path = " ".join(f"{x(second):.1f},{y(figure):.1f}" for second, figure in points)
        parts.append(f'<polyline class="stream s{number}" points="{path}"/>')
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def ceiling(values):
    """A round number that none of these exceeds."""
    most = max([*values, 1e-9])
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000):
        if most <= step:
            return step
    return most


def verdict(kept, text):
    return f'<li class="{"kept" if kept else "broken"}">{"Kept" if kept else "Not kept"}: {escape(text)}</li>'


def verdicts(found):
    arms = {arm["name"]: arm for arm in found["arms"]}
    neither, both, last = arms["neither"], arms["both"], arms["corrected"]
    frames = total(last, "frames")
    yield verdict(total(last, "lost") == 0, f"with both promises, for five streams with headers, no packet is lost: {total(last, 'lost')} of {total(last, 'sent')}.")
    within = worst(last, "jitter_worst_ms") <= GOAL_JITTER_MS and frames >= GOAL_FRAMES
    yield verdict(
        within,
        f"jitter within {GOAL_JITTER_MS} ms over at least {GOAL_FRAMES} frames: {jitter(last):.2f} ms in the mean, {worst(last, 'jitter_worst_ms'):.2f} at worst, over {frames} frames.",
    )
    short = 5 * found["alone"]["kbit"]
    yield verdict(
        total(both, "lost") > 0,
        f"the papers' shortfall is there: five streams send {short:.0f} kbit/s with headers, 6000 are promised, and {loss(both):.2f} % are lost (the papers: 1.5 %).",
    )
    yield verdict(
        loss(last) <= loss(neither),
        f"without a promise {loss(neither):.1f} % of packets are lost and {delivered(neither):.0f} % of the frames come whole.",
    )


def agreement(found):
    """How far our receivers and tshark are apart."""
    packets, jitters, compared = 0, 0.0, 0
    for arm in found["arms"]:
        for port, row in arm.get("tshark", {}).items():
            ours = arm["streams"].get(port)
            if ours:
                compared += 1
                # It captures a moment longer at both ends.
                packets = max(packets, abs(row["lost"] - ours["lost"]))
                jitters = max(jitters, abs(row["jitter_worst_ms"] - ours["jitter_worst_ms"]))
    if not compared:
        return "tshark was not there (<code>make deps</code> unpacks it), so these figures are our receivers' alone."
    return (
        f"<code>tshark -z rtp,streams</code> counted the same packets as captured at the receivers' interface: over {compared} streams it is apart from our "
        f"receivers by {packets} lost packets and {jitters:.3f} ms of the worst jitter at the most. It captures a moment longer at both ends."
    )


def steps(arm):
    told = []
    for step in arm["steps"]:
        effect = step.get("effect_ns")
        if effect:
            told.append(f"{effect / 1e6:.1f} ms")
    return f" What was promised had changed after {' and '.join(told)}." if told else ""


def page(found):
    arms = found["arms"]
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(found))
    jitter_most = ceiling([worst(arm, "jitter_worst_ms") for arm in arms])
    figures = []
    for arm in arms:
        caveats = "".join(f"<br>This machine: {escape(str(caveat))}" for caveat in arm["caveats"])
        most = ceiling([worst(arm, "jitter_worst_ms")])
        figures.append(
            f"<h3>{escape(arm['title'])}</h3><figure>"
            + lines(f"jitter: {arm['title']}", arm, lambda row, _: row[2], most, "jitter in ms")
            + lines(f"loss: {arm['title']}", arm, lost_share, 100 if loss(arm) > 5 else 10, "loss in percent of a second's packets")
            + f"<figcaption>Promised: {escape(promise(arm))}.{steps(arm)} The scale of jitter ends at {most:g} ms.{caveats}</figcaption></figure>"
        )
    alone = found["alone"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Video on demand with promises</title><style>{STYLE}</style></head><body>
<h1>Video on demand with promises</h1>
<p>Four streams of 25 frames/s and 1,214 kbit/s each go from a domain over a link of {found['link_kbit'] / 1000:g} Mbit/s to viewers; halfway a fifth one
arrives. Two transcodes want the processor that encodes the streams, and iperf3 sends {found['flood_kbit'] / 1000:g} Mbit/s over the link. The arms differ in
what is promised to the streams, and how much more when the fifth comes.</p>
<ul>{''.join(verdicts(found))}</ul>
<h2>The arms</h2>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<p><small>Frames whole: all packets of the frame came. Of those due: of 25 a second for each stream. Jitter: RFC 3550, A.8. Spacing: how much later or earlier
than its timestamp says a frame ended after the one before it, of the worst stream. The papers' packets are of runs of another length (8,329 to 6,032 is
1.38 to 1; here both to neither is {total(arms[3], 'received') / arms[3]['seconds'] / max(1e-9, total(arms[0], 'received') / arms[0]['seconds']):.2f} to 1, for equal times).</small></p>
<h2>Loss</h2>
<figure>{bars("loss", [(arm['title'], loss(arm), 'lost') for arm in arms], ceiling([loss(arm) for arm in arms]), "%", (1.5, "the papers, with both"))}
<figcaption>Packets that were lost, in percent of those sent.</figcaption></figure>
<h2>Frames that came whole</h2>
<figure>{bars("frames", [(arm['title'], delivered(arm), '') for arm in arms], 100, "%")}
<figcaption>In percent of 25 a second for each stream. A stream without enough of the processor falls behind: its frames are not lost, they come too late.</figcaption></figure>
<h2>Jitter</h2>
<figure>{bars("jitter", [(arm['title'], worst(arm, 'jitter_worst_ms'), '') for arm in arms], jitter_most, "ms")}
<figcaption>The worst of each arm.</figcaption></figure>
<h2>Over time</h2>
{''.join(figures)}
<h2>What it ran on</h2>
<p>{escape(found['machine'])}; all of it on processor {found['processor']}, as the papers had one. A stream alone took {alone['frame_ms']:.2f} ms of it for a frame of
{escape(found['size'])} (the papers: 5.68) and {alone['kbit']:.0f} kbit/s with headers. The wire carries {found['wire_kbit'] / 1000:g} Mbit/s and keeps 150 kB waiting;
the node was told that its link carries {found['link_kbit'] / 1000:g}.</p>
<p>{agreement(found)}</p>
</body></html>
"""
