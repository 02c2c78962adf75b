"""A web application that knows nothing of domains: it counts visits in redis, and keeps orders in PostgreSQL.

It listens at 127.0.0.1:8000. Redis is where it always is, at 127.0.0.1:6379, and so is the socket of PostgreSQL.
"""

import http.server
import socket
import subprocess


def redis(*words):
    """Says one command to redis and returns the line of its answer."""
    with socket.create_connection(("127.0.0.1", 6379), timeout=10) as connection:
        said = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        connection.sendall(f"*{len(words)}\r\n{said}".encode())
        return connection.makefile().readline().strip().lstrip(":+")


def postgres(sql):
    """Has psql run a statement and returns what it printed."""
    psql = ["psql", "-h", "/run", "-U", "shop", "-d", "postgres", "-XAtqc", sql]
    return subprocess.run(psql, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


class Shop(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        visits = redis("INCR", "visits")
        # The table is made when it is first used; the path is one of a few words of the demo.
        item = "".join(letter for letter in self.path if letter.isalpha()) or "nothing"
        postgres("CREATE TABLE IF NOT EXISTS orders (item text)")
        postgres(f"INSERT INTO orders VALUES ('{item}')")
        orders = postgres("SELECT string_agg(item || ' x' || n, ', ' ORDER BY item) FROM "
                          "(SELECT item, count(*) AS n FROM orders GROUP BY item) AS o")
        page = f"visit {visits}; orders: {orders}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format, *arguments):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Shop).serve_forever()
