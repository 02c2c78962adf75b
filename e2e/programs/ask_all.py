"""Asks the questions of a file (`TYPE NAME` a line) through the view named, and prints `TYPE NAME -> sorted data`.

Views: device, json, stub, resolver (getaddrinfo by whatever the environment interposes).
"""

import errno
import json
import os
import socket
import subprocess
import sys

view, path = sys.argv[1], sys.argv[2]
questions = [line.split() for line in open(path)]


def device(kind, name, query):
    os.write(query, ("%s %s.\n" % (kind, name)).encode())
    try:
        text = os.read(query, 1 << 20).decode()
    except OSError as error:
        return [{errno.ENOENT: "NXDOMAIN", errno.ENODATA: "NODATA"}.get(error.errno, errno.errorcode[error.errno])]
    found = []
    for line in text.splitlines():
        if view == "json":
            record = json.loads(line)
            if record["type"] == kind:
                found.append(record["data"])
        else:
            _, _, record_kind, data = line.split(None, 3)
            if record_kind == kind:
                found.append(data)
    return found


def stub_all():
    """One dig for all questions."""
    batch = "/tmp/questions"
    with open(batch, "w") as out:
        for kind, name in questions:
            out.write("%s. %s\n" % (name, kind))
    text = subprocess.run(
        ["dig", "+noall", "+answer", "+comments", "+question", "+tries=2", "-f", batch], capture_output=True, text=True
    ).stdout
    answers, current, status = {}, None, None
    for line in text.splitlines():
        if "status: " in line:
            status = line.split("status: ")[1].split(",")[0]
        elif line.startswith(";") and not line.startswith(";;") and "IN" in line.split():
            words = line[1:].split()
            current = (words[2], words[0].rstrip("."))
            answers[current] = ["NXDOMAIN"] if status == "NXDOMAIN" else []
        elif line and not line.startswith(";"):
            _, _, _, kind, data = line.split(None, 4)
            if current and kind == current[0]:
                answers[current].append(data)
    return {key: value or ["NODATA"] for key, value in answers.items()}


def resolver(kind, name):
    family = {"A": socket.AF_INET, "AAAA": socket.AF_INET6}.get(kind)
    if family is None:
        return None
    try:
        return sorted({entry[4][0] for entry in socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)})
    except socket.gaierror as error:
        return [{socket.EAI_NONAME: "NONE", socket.EAI_NODATA: "NONE"}.get(error.errno, str(error))]


stub = stub_all() if view == "stub" else {}
query = os.open("/srv/dns/query", os.O_RDWR) if view in ("device", "json") else -1
if view == "json":
    os.write(query, b"ctl format json\n")
    os.read(query, 100)
for kind, name in questions:
    if view == "stub":
        found = stub.get((kind, name), ["NO ANSWER"])
    elif view == "resolver":
        found = resolver(kind, name)
        if found is None:
            continue
    else:
        found = device(kind, name, query) or ["NODATA"]
    print(kind, name, "->", " | ".join(sorted(found)))
