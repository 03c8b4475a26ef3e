"""A tiny stand-in for a router that knows its engines: /health and /pdctl/v1/engines.

Every PUT is appended to --journal as one line of JSON. In the folder of the journal, a file `busy`
has each engine keep one request, and a file `unproven` leaves all pairs unproven.
"""

import json
import os
import socket
import sys

words = sys.argv[1:]
options = dict(zip(words[::2], words[1::2], strict=True))
roles = {url: flag[2:] for flag, url in zip(words[::2], words[1::2], strict=True) if "://" in url}
engines = {
    url: {"drained": "", "generation": "", "url": url, "role": role} for url, role in roles.items()
}
journal = options["--journal"]


def there(name):
    return os.path.exists(os.path.join(os.path.dirname(journal), name))


def said(engine):
    proven = not there("unproven") and any(
        other["role"] != engine["role"] and other["generation"] == engine["generation"]
        for other in engines.values()
    )
    pair = {"ok": proven, "moves_kv": proven, "reason": "" if proven else "no blocks came"}
    more = {"healthy": True, "turns": int(there("busy")), "handles": 0, "pairs": [pair]}
    return {**engine, **more}


def answer(method, path, body):
    if path == "/pdctl/v1/engines":
        if method == "PUT":
            with open(journal, "a") as file:
                file.write(body.decode() + "\n")
            for url, setting in json.loads(body)["engines"].items():
                engines[url].update(setting)
        return {"engines": [said(engine) for engine in engines.values()]}
    return {"version": "0.0.1"}


listener = socket.create_server(("127.0.0.1", int(options["--port"])))
while True:
    client, _ = listener.accept()
    with client, client.makefile("rb") as stream:
        method, path, *_ = (stream.readline().decode() or "GET / -").split(" ")
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.decode().lower().partition(":")
            length = int(value) if name == "content-length" else length
        body = json.dumps(answer(method, path, stream.read(length))).encode()
        head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
