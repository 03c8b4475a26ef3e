"""A tiny stand-in for an engine: answers /health on --port, and behaves as --how says.

well       answers soon
late       never answers /health with 200
until:PATH answers /health with 200 once there is such a file
dies       says something and ends
deaf       does not end at SIGTERM
family     has a child in a session of its own, which outlives it

Without `--how`, $HOW says it. Run with `-I -S`, and without http.server, so that it starts in a
few milliseconds.
"""

import os
import signal
import socket
import sys
import time

options = dict(zip(sys.argv[1:-1], sys.argv[2:], strict=True))
port, how = int(options["--port"]), options.get("--how", os.environ.get("HOW", "well"))

print(f"loading weights for port {port}", flush=True)
if how == "dies":
    for number in range(30):
        print(f"line {number}", file=sys.stderr)
    sys.exit("RuntimeError: no weights there")
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "family" and os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    sys.exit()


def is_healthy() -> bool:
    return how != "late" and (not how.startswith("until:") or os.path.exists(how[6:]))


# The last is asked once, on other machines, before an engine counts as healthy.
KNOWN = ([b"/health"], [b"/version"], [b"/pdctl/v1/engines"], [b"/v1/completions"])
listener = socket.create_server((options.get("--host", "127.0.0.1"), port))
while True:
    client, _ = listener.accept()
    with client:
        path = client.recv(4096).split(b" ", 2)[1:2]
        good = is_healthy() and path in KNOWN
        body = b'{"version": "0.0.1", "engines": []}'
        client.sendall(
            b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
            % (b"200 OK" if good else b"503 Not yet", len(body), body)
        )
