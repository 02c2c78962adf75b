"""Clients of the database: each inserts one number after the other, each in a transaction of its own, and notes those that were acknowledged.

    clients.py until STOP_FILE LEDGER   inserts until the file is there; a line "NUMBER TIME_NS" for each acknowledged transaction
    clients.py compare LEDGER           compares what was acknowledged with what the database has; ends with 1 where something is lost
"""

import os
import selectors
import subprocess
import sys
import threading
import time

CLIENTS = 4
PSQL = ["psql", "-h", "127.0.0.1", "-U", "bank", "-d", "postgres", "-XAtq", "-v", "ON_ERROR_STOP=1"]
# How long one answer is waited for before the client connects anew.
PATIENCE_SECONDS = 20
# Numbers of each client: it counts on from the first of its own.
EACH = 1_000_000


class Gone(Exception):
    """The connection is of no more use."""


class Connection:
    def __init__(self):
        environment = dict(os.environ, PGCONNECT_TIMEOUT="5")
        quiet = subprocess.DEVNULL
        self.psql = subprocess.Popen(PSQL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, env=environment)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.psql.stdout, selectors.EVENT_READ)

    def ask(self, statement):
        """The one line that the statement gives. psql prints it when the server has said that the transaction is committed."""
        try:
            self.psql.stdin.write(statement.encode() + b"\n")
            self.psql.stdin.flush()
        except OSError as error:
            raise Gone from error
        line = b""
        while not line.endswith(b"\n"):
            some = os.read(self.psql.stdout.fileno(), 4096) if self.selector.select(PATIENCE_SECONDS) else b""
            if not some:
                raise Gone
            line += some
        return line.decode().strip()

    def close(self):
        self.psql.kill()
        self.psql.wait()
        self.psql.stdin = None
        self.psql.stdout.close()
        self.selector.close()


def insert(first, is_over, ledger):
    connection = None
    number = first
    while not is_over():
        try:
            connection = connection or Connection()
            # A number that was not acknowledged may be there: it is not used again.
            number += 1
            if connection.ask(f"INSERT INTO sales VALUES ({number}) RETURNING number;") == str(number):
                ledger(number)
        except Gone:
            connection.close()
            connection = None
            # tidy(sleep): a server that is not there is asked again a little later.
            time.sleep(0.1)
    if connection:
        connection.close()


def query(statement):
    return subprocess.run([*PSQL, "-c", statement], check=True, capture_output=True, text=True).stdout.split()


def run(stop, path):
    query("CREATE TABLE IF NOT EXISTS sales (number integer PRIMARY KEY)")
    with open(path, "a") as file:
        lock = threading.Lock()

        def ledger(number):
            with lock:
                file.write(f"{number} {time.monotonic_ns()}\n")
                file.flush()

        threads = [
            threading.Thread(target=insert, args=(client * EACH, lambda: os.path.exists(stop), ledger))
            for client in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def compare(path):
    with open(path) as file:
        lines = [tuple(int(word) for word in line.split()) for line in file]
    acknowledged = {number for number, _ in lines}
    there = {int(number) for number in query("SELECT number FROM sales")}
    lost = sorted(acknowledged - there)
    times = sorted(at for _, at in lines)
    pause = max((after - before for before, after in zip(times, times[1:])), default=0)
    print(f"acknowledged to the clients  {len(acknowledged)}")
    print(f"in the database              {len(there)}")
    print(f"of these, not acknowledged   {len(there - acknowledged)} (committed, and the answer was lost with the node)")
    print(f"longest pause                {pause / 1e9:.1f} s between two acknowledgements")
    print(f"lost                         {len(lost)}{': ' + str(lost[:20]) if lost else ''}")
    return 1 if lost else 0


if sys.argv[1] == "compare":
    sys.exit(compare(sys.argv[2]))
run(sys.argv[2], sys.argv[3])
