# SPDX-License-Identifier: MIT OR Apache-2.0
"""JSON-RPC 2.0 and HTTP(S) as a service: domains without a network ask the addresses that the topology file names, and no others. README.md shows it."""

import asyncio
import collections
import errno
import http.client
import json
import ssl
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tombolo.service import Service

MAX_ANSWER_BYTES = 512 * 1024
# Of a request to be tried again: a server that is not there now, or says so.
AGAIN = (502, 503, 504)
FIRST_PAUSE_S = 0.05
# Shorter words of a secret are no secret: "Bearer", "Basic".
MIN_SECRET_CHARACTERS = 8
PIECE_BYTES = 64 * 1024

rpc = Service("rpc")
log = rpc.stream("log", verb="watch", history=1000)
# Requests of one domain at a time: a domain that asks slow servers keeps the others from none.
MAX_OF_ONE = 8
workers = ThreadPoolExecutor(max_workers=64)
under_way = collections.Counter()
endpoints = {}


class Endpoint:
    """An address that may be asked, with what it takes to be let in there."""

    def __init__(self, url, deadline=5.0, retries=0, safe=(), authorization=None, ca=None):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// address")
        self.url, self.host, self.port, self.path = url, parts.hostname, parts.port, parts.path or "/"
        self.deadline, self.retries, self.safe = float(deadline), int(retries), frozenset(safe)
        # Read here, kept here, and in no answer and no log.
        self.secret = Path(authorization).read_text().strip() if authorization else None
        self.tls = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None

    def redacted(self, text):
        for word in self.secret.split() if self.secret else ():
            if len(word) >= MIN_SECRET_CHARACTERS:
                text = text.replace(word, "***")
        return text

    def connection(self, left):
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=left, context=self.tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=left)

    def once(self, method, path, body, end):
        connection = self.connection(left_until(end))
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.secret:
            headers["Authorization"] = self.secret
        try:
            connection.request(method, path, body, headers)
            # The connection forgets it where the server closes behind its answer.
            socket = connection.sock
            answer = connection.getresponse()
            pieces, size = [], 0
            # A server that answers byte by byte is bound by the deadline, too.
            while piece := answer.read1(PIECE_BYTES):
                socket.settimeout(left_until(end))
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    raise OSError(errno.EMSGSIZE, "the answer is too long")
                pieces.append(piece)
            return answer.status, b"".join(pieces)
        finally:
            connection.close()

    def ask(self, method, path, body, is_safe):
        """Asks until there is an answer or the deadline is over; more than once only what does no harm twice."""
        end, pause, tries = time.monotonic() + self.deadline, FIRST_PAUSE_S, 1 + (self.retries if is_safe else 0)
        while True:
            tries -= 1
            try:
                status, content = self.once(method, path, body, end)
                if status not in AGAIN or tries == 0:
                    return status, content
            except OSError as error:
                if tries == 0 or error.errno in (errno.EMSGSIZE, errno.ETIMEDOUT) or isinstance(error, ssl.SSLError):
                    raise meant(error) from None
            except http.client.HTTPException as error:
                raise OSError(errno.EPROTO, self.redacted(str(error))) from None
            time.sleep(min(pause, left_until(end)))
            pause *= 2


def left_until(end):
    left = end - time.monotonic()
    if left <= 0:
        raise OSError(errno.ETIMEDOUT, "the deadline is over")
    return left


def meant(error):
    """The errno for the caller."""
    if isinstance(error, ssl.SSLError):
        return OSError(errno.EKEYREJECTED, "TLS: " + str(error.reason))
    if isinstance(error, TimeoutError):
        return OSError(errno.ETIMEDOUT, "the deadline is over")
    return OSError(error.errno if error.errno and error.errno > 0 else errno.EHOSTUNREACH, str(error.strerror))


@rpc.on_settings
def settings(told):
    """Takes the addresses of the topology file. What is wrong with one keeps those of before."""
    made = {name: Endpoint(**one) for name, one in told.get("endpoints", {}).items()}
    endpoints.clear()
    endpoints.update(made)


def known(session, name):
    """The address of this name, which the topology file gives to the caller by a verb of the same name."""
    endpoint = endpoints.get(name)
    if endpoint is None:
        raise OSError(errno.ENOENT, "no such address")
    if not session.caller.may(name):
        raise OSError(errno.EACCES, "not for this domain")
    return endpoint


async def asked(session, name, endpoint, what, method, path, body, is_safe):
    begun, outcome = time.monotonic(), "?"
    domain = (session.caller.dc, session.caller.domain)
    if under_way[domain] >= MAX_OF_ONE:
        raise OSError(errno.EAGAIN, "too many requests at a time")
    under_way[domain] += 1
    try:
        loop = asyncio.get_running_loop()
        status, content = await loop.run_in_executor(workers, endpoint.ask, method, path, body, is_safe)
        outcome = str(status)
        return status, content
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error.errno))
        raise
    finally:
        under_way[domain] -= 1
        took_ms = (time.monotonic() - begun) * 1000
        record = f"{session.caller.domain} {name} {what} {outcome} {took_ms:.0f} ms\n"
        log.publish(endpoint.redacted(record).encode()[:4096])


@rpc.session("call", verb="call")
async def call(session, line):
    """NAME REQUEST: a request of JSON-RPC 2.0; the answer is a line of JSON."""
    name, _, text = line.partition(b" ")
    endpoint = known(session, name.decode("ascii", "replace"))
    try:
        request = json.loads(text)
        method = request["method"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise OSError(errno.EINVAL, "a JSON object with a method") from None
    if not isinstance(method, str):
        raise OSError(errno.EINVAL, "a method is a text")
    request = {"jsonrpc": "2.0", "id": 1, **request}
    body = json.dumps(request).encode()
    is_safe = method in endpoint.safe
    what = json.dumps(method)
    status, content = await asked(session, name.decode(), endpoint, what, "POST", endpoint.path, body, is_safe)
    try:
        answer = json.loads(content)
        is_answer = status == 200 and answer["id"] == request["id"] and ("result" in answer) != ("error" in answer)
    except (ValueError, TypeError, KeyError, RecursionError):
        is_answer = False
    if not is_answer:
        raise OSError(errno.EPROTO, f"that is no answer of JSON-RPC: status {status}")
    return json.dumps(answer) + "\n"


@rpc.session("http", verb="call")
async def http_(session, line):
    """NAME METHOD PATH [BODY]: the answer is a line of JSON with `status` and `body`."""
    words = line.decode("utf-8", "replace").split(" ", 3)
    if len(words) < 3 or words[1] not in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
        raise OSError(errno.EINVAL, "NAME METHOD PATH [BODY]")
    name, method, path = words[:3]
    endpoint = known(session, name)
    place = urllib.parse.unquote(path.split("?")[0]).replace("\\", "/")
    is_below = place == endpoint.path or place.startswith(endpoint.path.rstrip("/") + "/")
    if not is_below or ".." in place.split("/") or not path.isascii() or not path.isprintable():
        raise OSError(errno.EACCES, "not below the path of this address")
    body = words[3].encode() if len(words) > 3 else None
    what = f"{method} {path}"
    status, content = await asked(session, name, endpoint, what, method, path, body, method in ("GET", "HEAD"))
    return json.dumps({"status": status, "body": content.decode("utf-8", "replace")}) + "\n"


@rpc.text("endpoints", verb="call")
def listed(call):
    return "".join(f"{name} {one.url}\n" for name, one in sorted(endpoints.items()) if call.caller.may(name))


rpc.run()
