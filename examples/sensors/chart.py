# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draws the ages of readings over time, and each violation of the deadline, as an SVG. Takes what control.py printed, a deadline in us, and the
path of the SVG; prints a table."""

import math
import sys

COLOURS = {"north": "#1f77b4", "east": "#2ca02c", "south": "#9467bd", "west": "#8c564b"}
WIDTH, HEIGHT = 960, 500
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 60, 150
SLOTS = 200

deadline_us, path = int(sys.argv[2]), sys.argv[3]
with open(sys.argv[1]) as lines:
    rows = [(sensor, int(at), max(1, int(age))) for sensor, at, age in map(str.split, lines)]
if not rows:
    sys.exit("there are no readings to draw")
begun, ended = min(at for _, at, _ in rows), max(at for _, at, _ in rows)
span = max(1, ended - begun)
most = 10 ** math.ceil(math.log10(max(deadline_us * 2, max(age for *_, age in rows))))
least = 10 ** math.floor(math.log10(min(deadline_us / 2, min(age for *_, age in rows))))


def x(at):
    return LEFT + (WIDTH - LEFT - RIGHT) * (at - begun) / span


def y(age):
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log10(age / least) / math.log10(most / least)


def quantile(ages, part):
    return sorted(ages)[min(len(ages) - 1, int(len(ages) * part))]


def text(at_x, at_y, words, **more):
    style = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{at_x:.1f}" y="{at_y:.1f}"{style}>{words}</text>'


def unit(age):
    return f"{age} us" if age < 1000 else f"{age // 1000} ms" if age < 1_000_000 else f"{age // 1_000_000} s"


late = [row for row in rows if row[2] > deadline_us]
parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
    f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    text(LEFT, 24, "Age of each reading when the control loop had dealt with it", font_size=16),
    text(LEFT, 44, f"{len(rows)} readings of {len(COLOURS)} sensors; {len(late)} later than {unit(deadline_us)}", fill="#555"),
]
age = least
while age <= most:
    parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(age):.1f}" y2="{y(age):.1f}" stroke="#ddd"/>')
    parts.append(text(LEFT - 6, y(age) + 4, unit(age), text_anchor="end"))
    age *= 10
for step in range(11):
    at = begun + span * step / 10
    parts.append(text(x(at), HEIGHT - BOTTOM + 18, f"{span * step / 1e10:.1f} s", text_anchor="middle", fill="#555"))
for _, at, age in late:
    parts.append(f'<circle cx="{x(at):.1f}" cy="{y(age):.1f}" r="2.5" fill="#d62728" fill-opacity="0.35"/>')
for part, colour, name in [(0.5, "#1f77b4", "half are younger (p50)"), (0.99, "#ff7f0e", "99 of 100 are younger (p99)")]:
    slots = [[] for _ in range(SLOTS)]
    for _, at, age in rows:
        slots[min(SLOTS - 1, (at - begun) * SLOTS // span)].append(age)
    points = [
        f"{x(begun + span * (slot + 0.5) / SLOTS):.1f},{y(quantile(ages, part)):.1f}" for slot, ages in enumerate(slots) if ages
    ]
    parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(points)}"/>')
    at_x = LEFT + (0 if part == 0.5 else 200)
    parts.append(f'<line x1="{at_x}" x2="{at_x + 22}" y1="{HEIGHT - BOTTOM + 36}" y2="{HEIGHT - BOTTOM + 36}" stroke="{colour}" stroke-width="2"/>')
    parts.append(text(at_x + 28, HEIGHT - BOTTOM + 40, name))
parts.append(
    f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(deadline_us):.1f}" y2="{y(deadline_us):.1f}" stroke="#d62728" stroke-dasharray="6 4"/>'
)
parts.append(text(WIDTH - RIGHT - 4, y(deadline_us) + 15, f"deadline: {unit(deadline_us)}", text_anchor="end", fill="#d62728"))
at_x = LEFT + 420
parts.append(f'<circle cx="{at_x + 11}" cy="{HEIGHT - BOTTOM + 36}" r="3" fill="#d62728"/>')
parts.append(text(at_x + 28, HEIGHT - BOTTOM + 40, "a violation of the deadline"))

print(f"{'sensor':8} {'readings':>9} {'p50':>9} {'p99':>9} {'longest':>10} {'violations':>11}")
for line, sensor in enumerate(COLOURS):
    ages = [age for name, _, age in rows if name == sensor]
    if not ages:
        sys.exit(f"there is no reading of {sensor}")
    violations = sum(age > deadline_us for age in ages)
    figures = (len(ages), quantile(ages, 0.5), quantile(ages, 0.99), max(ages), violations)
    print(f"{sensor:8} {figures[0]:9} {figures[1]:6} us {figures[2]:6} us {figures[3]:7} us {figures[4]:11}")
    words = f"{sensor}: {figures[0]} readings, p50 {figures[1]} us, p99 {figures[2]} us, longest {figures[3]} us, {violations} violations"
    parts.append(text(LEFT, HEIGHT - BOTTOM + 66 + line * 20, words, fill="#333"))
parts.append("</svg>")
with open(path, "w") as svg:
    svg.write("\n".join(parts) + "\n")
