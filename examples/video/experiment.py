# SPDX-License-Identifier: MIT OR Apache-2.0
"""The papers' video on demand: four streams of 25 frames/s, a fifth that arrives, transcodes that want the processor, and a flood that
wants the link; without promises, with one of them, and with both. `make demo-video` runs it, by demo.sh.

    experiment.py REPORT.html [--seconds N] [--last N]

It runs in a network namespace of its own (demo.sh makes it): that is the node. Two more, for the wire and for the viewers, end with this
program. `tombolo` is found in the PATH; its directories, and a FOLDER for files that are taken away, are in the environment.
"""

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import report

here = os.path.dirname(os.path.realpath(__file__))

NODE, VIEWERS, PORT = "10.79.0.1", "10.79.0.2", 5004
STREAMS = 5
FRAMES_A_SECOND = 25
PERIOD_MS = 40
# The papers' figures: processor time of a stream for a frame, and what four and five streams were promised.
PAPER_FRAME_MS = 5.68
FOUR_MS, FIVE_MS = 24, 32
FOUR_KBIT, FIVE_KBIT = 5000, 6000
LINK_KBIT = 10_000
# The wire carries a little more than the node believes, so that packets wait where they have classes; 100 packets wait before it.
WIRE_KBIT = 10_400
WIRE_QUEUE_BYTES = 150_000
FLOOD_KBIT = 8_000
SETTLE_SECONDS = 3  # at most: programs start, load what they need, and catch up
PATIENCE_SECONDS = 180


class Failed(Exception):
    """The experiment can't go on; says why."""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, **options)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def tell(text):
    print(text, flush=True)


class Space:
    """A network namespace that is there as long as this program."""

    def __init__(self):
        self.process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )
        self.process.stdout.readline()
        self.pid = str(self.process.pid)

    def inside(self, *command):
        return ["nsenter", "--target", self.pid, "--net", *command]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def connect(wire, viewers):
    """node link0 - node0 [bridge] viewers0 - eth0 viewers; what the wire carries is bounded towards the viewers."""
    run("ip", "link", "add", "link0", "type", "veth", "peer", "name", "node0", "netns", wire.pid)
    run(*wire.inside("ip", "link", "add", "viewers0", "type", "veth", "peer", "name", "eth0", "netns", viewers.pid))
    run(*wire.inside("ip", "link", "add", "switch", "type", "bridge", "forward_delay", "0"))
    for device in ("node0", "viewers0"):
        run(*wire.inside("ip", "link", "set", device, "master", "switch", "up"))
    run(*wire.inside("ip", "link", "set", "switch", "up"))
    bounds = ["rate", f"{WIRE_KBIT}kbit", "burst", "2kb", "limit", str(WIRE_QUEUE_BYTES)]
    run(*wire.inside("tc", "qdisc", "add", "dev", "viewers0", "root", "tbf", *bounds))
    # So many packets wait in each of the node's classes: a second's worth of a stream.
    run("ip", "link", "set", "link0", "txqueuelen", "200", "up")
    run("ip", "address", "add", f"{NODE}/24", "dev", "link0")
    run(*viewers.inside("ip", "address", "add", f"{VIEWERS}/24", "dev", "eth0"))
    run(*viewers.inside("ip", "link", "set", "eth0", "up"))


def assert_closed(viewers):
    """Nothing that is sent can leave the namespaces: packets to the viewers go by our link, and others nowhere."""
    if "dev link0" not in run("ip", "route", "get", VIEWERS):
        raise Failed(f"packets to {VIEWERS} would not go by link0")
    for inside in (lambda *command: list(command), viewers.inside):
        elsewhere = subprocess.run(inside("ip", "route", "get", "192.0.2.1"), capture_output=True, text=True)
        if elsewhere.returncode == 0:
            raise Failed(f"there is a way out of the namespaces: {elsewhere.stdout.strip()}")


class Receivers:
    """The viewers' side: receive.py, the flood's sink, and what tshark wants."""

    def __init__(self, bed):
        self.bed = bed
        program = [sys.executable, f"{here}/receive.py", VIEWERS, *[str(PORT + 2 * each) for each in range(STREAMS)]]
        self.process = subprocess.Popen(
            bed.viewers.inside(*program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        bed.processes.append(self.process)
        self.capture = None

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Failed("the receiver has ended")
        return line

    def await_streams(self, count):
        with limit(f"{count} streams arrive"):
            self.ask(f"await {count}")

    def begin(self):
        """What came before does not count."""
        if self.bed.tshark:
            self.capture = Capture(self.bed)
        self.ask("begin")

    def end(self):
        measured = json.loads(self.ask("end"))
        self.process.wait()
        if self.capture:
            measured["tshark"], measured["tshark_said"] = self.capture.end()
        if measured["overflows"]:
            raise Failed(f"the receiver itself lost {measured['overflows']} packets: the machine is too busy to measure")
        return measured


class Capture:
    """A second opinion: what dumpcap captures at the viewers' interface, as tshark counts it."""

    def __init__(self, bed):
        self.bed, self.path = bed, f"{bed.folder}/capture.pcap"
        command = [f"{bed.tshark}/usr/bin/dumpcap", "-q", "-P", "-i", "eth0", "-s", "64", "-f", "udp dst portrange 5004-5012", "-w", self.path]
        self.process = subprocess.Popen(
            bed.viewers.inside(*command), env=bed.libraries(), stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        bed.processes.append(self.process)
        with limit("dumpcap captures"):
            for line in self.process.stderr:
                if line.startswith("File:"):
                    return
        raise Failed("dumpcap does not start")

    def end(self):
        self.process.terminate()
        self.process.communicate()
        ports = [option for each in range(STREAMS) for option in ("-d", f"udp.port=={PORT + 2 * each},rtp")]
        said = run(f"{self.bed.tshark}/usr/bin/tshark", "-r", self.path, *ports, "-q", "-z", "rtp,streams", env=self.bed.libraries())
        os.remove(self.path)
        # Start, end, address, port, address, port, SSRC, payload, packets, lost (percent), delta min mean max, jitter min mean max.
        row = re.compile(rf"{re.escape(VIEWERS)}\s+(\d+)\s+0x\w+\s.*?\s(\d+)\s+(-?\d+)\s*\([^)]*\)(.*)")
        rows = {}
        for port, packets, lost, rest in row.findall(said):
            times = re.findall(r"-?\d+\.\d+", rest)
            if len(times) == 6:
                rows[port] = {"received": int(packets), "lost": int(lost), "jitter_worst_ms": float(times[5])}
        if not rows:
            raise Failed(f"tshark says what is not understood:\n{said}")
        return rows, said


@contextlib.contextmanager
def limit(what):
    """Ends what takes too long."""

    def late(*_):
        raise Failed(f"gave up waiting until {what}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Bed:
    """The node, the wire, the viewers, and what runs there."""

    def __init__(self, folder, last, debian):
        self.folder, self.debian = folder, debian
        self.processor = last
        self.processes = []
        self.wire, self.viewers = Space(), Space()
        self.clip, self.size = f"{folder}/clip.mpg", "640x360"
        self.tshark = self.unpacked("tshark", "usr/bin/tshark")
        self.iperf = self.unpacked("iperf3", "usr/bin/iperf3")

    def unpacked(self, name, program):
        """Where a Debian package was unpacked, or the node's own."""
        if os.path.exists(f"{self.debian}/{name}/{program}"):
            return f"{self.debian}/{name}"
        return "" if not shutil.which(name) else "/"

    def libraries(self):
        triple = "x86_64-linux-gnu" if os.uname().machine == "x86_64" else f"{os.uname().machine}-linux-gnu"
        both = [f"{self.debian}/{name}/{lib}/{triple}" for name in ("tshark", "iperf3") for lib in ("usr/lib", "lib")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(both)}

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
        subprocess.run(["tombolo", "down", "--all"], capture_output=True)
        self.wire.end()
        self.viewers.end()

    def start(self, *command, **options):
        process = subprocess.Popen(command, start_new_session=True, **options)
        self.processes.append(process)
        return process

    def stream(self, number):
        return [f"{here}/stream.sh", str(self.processor), self.clip, self.size, VIEWERS, str(PORT + 2 * number)]


def make_clip(bed, size):
    bed.size = size
    generate = ["ffmpeg", "-nostdin", "-loglevel", "error", "-y", "-f", "lavfi", "-i", f"testsrc2=size={size}:rate=25:duration=10"]
    run(*generate, "-c:v", "mpeg2video", "-q:v", "3", "-g", "12", bed.clip)


def choose_size(bed, seconds):
    """A clip of which a frame costs on this machine about what it cost the papers' one."""
    make_clip(bed, "640x360")
    larger = PAPER_FRAME_MS / alone(bed, seconds)["frame_ms"]
    height = round(360 * math.sqrt(min(4, larger)) / 16) * 16
    make_clip(bed, f"{round(height * 16 / 9 / 16) * 16}x{height}")


def processor_seconds(pid):
    """Processor time of a process so far."""
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alone(bed, seconds):
    """One stream with nobody beside it: what it costs, and what it sends with headers."""
    receivers = Receivers(bed)
    stream = bed.start(*bed.stream(0))
    receivers.await_streams(1)
    time.sleep(1)
    receivers.begin()
    before = processor_seconds(stream.pid)
    time.sleep(seconds)
    cost = processor_seconds(stream.pid) - before
    measured = receivers.end()
    stream.kill()
    stream.wait()
    (row,) = measured["streams"].values()
    return {
        "frame_ms": cost * 1000 / max(1, row["frames"]),
        # By its own clock: who had to wait for the processor catches up.
        "kbit": row["bytes"] * 8 / max(1, row["frames"]) * FRAMES_A_SECOND / 1000,
        "packet_bytes": row["bytes"] / row["received"],
        **measured,
    }


class Arm:
    """What is promised, and what it is called. Nothing is promised where a figure is None."""

    def __init__(self, name, title, budgets_ms=None, rates_kbit=None):
        self.name, self.title, self.budgets_ms, self.rates_kbit = name, title, budgets_ms, rates_kbit

    def topology(self, bed):
        command = lambda *words: json.dumps([str(word) for word in words])
        flood = [f"{bed.iperf}/usr/bin/iperf3".replace("//", "/"), "-u", "-c", VIEWERS, "-b", f"{FLOOD_KBIT}k", "-l", 1400, "-t", 3600]
        libraries = json.dumps(bed.libraries()["LD_LIBRARY_PATH"])
        where = 'kind = "process"\nnetwork = "host"\nstop = { timeout = "1s" }\nrestart = { policy = "never" }\n'
        text = (
            f'name = "video"\n\n[domain.streams]\n{where}command = {command("sh", f"{here}/streams.sh", *bed.stream(0)[1:])}\n'
            f'\n[domain.transcodes]\n{where}command = {command("sh", f"{here}/transcodes.sh", bed.processor, bed.clip)}\n'
            f"\n[domain.flood]\n{where}environment = {{ LD_LIBRARY_PATH = {libraries} }}\ncommand = {command(*flood)}\n"
        )
        if self.rates_kbit:
            text += f'\n[domain.flood.reserve]\nnetwork = {{ rate = "{LINK_KBIT - self.rates_kbit[0]}kbit" }}\n'
        if self.budgets_ms or self.rates_kbit:
            text += "\n[domain.streams.reserve]\n"
        if self.budgets_ms:
            text += f'cpu = {{ budget = "{self.budgets_ms[0]}ms", period = "{PERIOD_MS}ms", processor = {bed.processor} }}\n'
        if self.rates_kbit:
            text += f'network = {{ rate = "{self.rates_kbit[0]}kbit", class = "gold" }}\n'
        return text

    def adapt(self):
        """A fifth stream is coming: what is promised grows. The reports of the steps."""
        steps = []
        if self.rates_kbit:
            more = f"{self.rates_kbit[1] - self.rates_kbit[0]}kbit"
            steps.append(json.loads(run("tombolo", "adapt", "flood", "streams", "--network", more, "--json")))
        if self.budgets_ms:
            steps.append(json.loads(run("tombolo", "reserve", "set", "streams", "--budget", f"{self.budgets_ms[1]}ms", "--json")))
        return steps


def run_arm(bed, arm, seconds, progress):
    """Four streams for half of the time, and five for the other half."""
    path = f"{bed.folder}/{arm.name}.toml"
    with open(path, "w") as file:
        file.write(arm.topology(bed))
    receivers = Receivers(bed)
    sink = bed.start(*bed.viewers.inside(f"{bed.iperf}/usr/bin/iperf3".replace("//", "/"), "-s", "-1", "--forceflush"), env=bed.libraries(), stdout=subprocess.PIPE, text=True)
    with limit("iperf3 listens"):
        while "listening" not in (line := sink.stdout.readline()):
            if not line:
                raise Failed("iperf3 does not listen")
    run("tombolo", "up", path)
    receivers.await_streams(STREAMS - 1)
    time.sleep(min(SETTLE_SECONDS, seconds))
    receivers.begin()
    begun = time.monotonic()
    progress(arm, begun, begun + seconds / 2)
    steps = arm.adapt()
    adapted = time.monotonic()
    fifth = bed.start("tombolo", "exec", "streams", "--", *bed.stream(STREAMS - 1), stdin=subprocess.DEVNULL)
    progress(arm, begun, begun + seconds)
    caveats = promised(arm)
    lasted = time.monotonic() - begun
    measured = receivers.end()
    run("tombolo", "down")
    for process in (fifth, sink):
        process.kill()
        process.wait()
    expected = FRAMES_A_SECOND * ((STREAMS - 1) * lasted + lasted - (adapted - begun))
    return {
        "name": arm.name, "title": arm.title, "budgets_ms": arm.budgets_ms, "rates_kbit": arm.rates_kbit, "caveats": caveats,
        "seconds": lasted, "arrival": adapted - begun, "expected_frames": expected, "steps": steps, **measured,
    }


def promised(arm):
    """Which parts of the promise this machine can't keep."""
    if not (arm.budgets_ms or arm.rates_kbit):
        return []
    return json.loads(run("tombolo", "reserve", "show", "streams", "--json"))["caveats"]


def arms(measured):
    """The papers' four, and the one whose promise is for five streams with headers, as they were measured."""
    both = ((FOUR_MS, FIVE_MS), (FOUR_KBIT, FIVE_KBIT))
    least = lambda streams: math.ceil(streams * measured["kbit"] * 1.04 / 50) * 50
    # A quota of 36 in 40 leaves a tenth of the processor to others.
    budget = lambda streams: min(36, math.ceil(streams * measured["frame_ms"] * 1.2))
    enough = (max(FOUR_MS, budget(4)), max(FIVE_MS, budget(5)))
    return [
        Arm("neither", "Nothing is promised"),
        Arm("network", "The network is promised", rates_kbit=both[1]),
        Arm("processor", "The processor is promised", budgets_ms=both[0]),
        Arm("both", "Both are promised, as in the papers", *both),
        Arm("corrected", "Both are promised, for five streams with headers", enough, (least(4), least(5))),
    ]


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def start_daemon(bed):
    """It is of this namespace, and outlives this program: demo.sh ends it."""
    os.makedirs(os.environ["TOMBOLO_STATE_DIR"], exist_ok=True)
    with open(os.environ["TOMBOLO_STATE_DIR"] + "/daemon.log", "a") as log:
        subprocess.Popen(["tombolo", "daemon"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    with limit("the daemon answers"):
        while subprocess.run(["tombolo", "ps"], capture_output=True).returncode:
            time.sleep(0.1)


def experiment(options, bed):
    connect(bed.wire, bed.viewers)
    assert_closed(bed.viewers)
    start_daemon(bed)
    run("tombolo", "reserve", "node", "--link", f"link0={LINK_KBIT}kbit", "--processors", f"0-{bed.processor}")
    tell("A clip is made, and one stream is measured with nobody beside it.")
    choose_size(bed, min(5, options.seconds))
    measured = alone(bed, min(10, options.seconds))
    tell(
        f"One stream, {bed.size}: {measured['frame_ms']:.2f} ms of the processor for a frame (the papers': {PAPER_FRAME_MS}), "
        f"{measured['kbit']:.0f} kbit/s with headers (1214 without)."
    )
    planned = arms(measured)
    lasts = {arm.name: options.last if arm.name == "corrected" else options.seconds for arm in planned}
    results = []
    for number, arm in enumerate(planned):
        after = sum(lasts[later.name] + SETTLE_SECONDS + 4 for later in planned[number + 1 :])

        def progress(arm, begun, until, after=after):
            while (now := time.monotonic()) < until:
                left = begun + lasts[arm.name] - now + after
                print(f"\r{arm.title}: {now - begun:.0f} of {lasts[arm.name]:.0f} s, about {clock(left)} to go  ", end="", flush=True)
                time.sleep(min(1 if sys.stdout.isatty() else 10, until - now))

        results.append(run_arm(bed, arm, lasts[arm.name], progress))
        tell("\r" + report.sentence(results[-1]))
    return {
        "machine": machine(), "processor": bed.processor, "size": bed.size, "alone": measured, "arms": results,
        "link_kbit": LINK_KBIT, "wire_kbit": WIRE_KBIT, "flood_kbit": FLOOD_KBIT,
    }


def machine():
    model = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return f"{len(model)} processors ({model[0] if model else os.uname().machine}), Linux {os.uname().release}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("report")
    parser.add_argument("--seconds", type=float, default=60, help="of each arm")
    parser.add_argument("--last", type=float, default=270, help="of the last arm")
    parser.add_argument("--debian", default="target/debian")
    options = parser.parse_args()
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(dir=os.environ["FOLDER"]) as folder:
        last = max(os.sched_getaffinity(0))
        bed = Bed(folder, last, options.debian)
        # Who measures is elsewhere, where that is possible: streams and transcodes leave that processor to nobody.
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {last} or {last})
        try:
            if not bed.iperf:
                raise Failed("there is no iperf3; run 'make deps' first")
            found = experiment(options, bed)
        finally:
            bed.end()
    with open(os.path.splitext(options.report)[0] + ".json", "w") as file:
        json.dump(found, file, indent=1)
    with open(options.report, "w") as file:
        file.write(report.page(found))
    tell(report.table(found))


if __name__ == "__main__":
    try:
        main()
    except (Failed, subprocess.SubprocessError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read this is gone; what waits to be written is, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
