#!/usr/bin/env python3
"""An adapter: an echo over TCP. `exec:` of tombolo bench; docs/bench.md shows how."""

import socket

import tombolo_bench


def receive(connection, count):
    parts = []
    while count > 0:
        part = connection.recv(count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def serve(task):
    with socket.create_server((task.address, 0)) as listener:
        yield str(listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (request := receive(connection, task.bytes)) is not None:
                task.work()
                connection.sendall(request)
                yield request


def connect(task):
    connection = socket.create_connection((task.address, int(task.place)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(request):
        connection.sendall(request)
        return receive(connection, task.bytes)

    return ask


if __name__ == "__main__":
    tombolo_bench.main(serve, connect)
