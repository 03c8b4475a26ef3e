"""A hub on loopback: the API that lists files, and downloads that can break off or be wrong."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34
MODEL = "acme/model"


@dataclass
class Hub:
    """What it has, and what it was asked.

    Attributes:
        files: contents by name; those that end in `.safetensors` are kept as LFS has them.
        cut: by name, after how many bytes a download breaks off; once each.
        lie: names whose content is another than the API says.
        gated: token that must be shown.
        asked: path, `Range` and `Authorization` of each request.
        cdn: another server that weights are sent to.
    """

    files: dict[str, bytes]
    cut: dict[str, int] = field(default_factory=dict)
    lie: set[str] = field(default_factory=set)
    gated: str | None = None
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    cdn: str | None = None
    url: str = ""

    def listed(self) -> dict[str, object]:
        siblings = []
        for name, content in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(content)}
            blob = b"blob %d\0" % len(content) + content
            entry["blobId"] = hashlib.sha1(blob).hexdigest()
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(entry)
        return {"id": MODEL, "sha": COMMIT, "siblings": siblings}

    def downloads(self, name: str) -> list[str | None]:
        """The `Range` of each download of a file."""
        return [got for path, got, _ in self.asked if path.endswith(f"/{name}")]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.asked.append((path, self.headers.get("Range"), self.headers.get("Authorization")))
        if hub.gated and self.headers.get("Authorization") != f"Bearer {hub.gated}":
            return self._send(401, b"no")
        if path == f"/api/models/{MODEL}/revision/{COMMIT}" or path.endswith("/revision/main"):
            return self._send(200, json.dumps(hub.listed()).encode())
        name = path.rpartition("/")[2]
        if name not in hub.files:
            return self._send(404, b"not here")
        if hub.cdn and name.endswith(".safetensors"):
            return self._send(302, b"", {"Location": f"{hub.cdn}{path}"})
        return self._file(name)

    def _file(self, name: str) -> None:
        content = self.hub.files[name]
        if name in self.hub.lie:
            content = b"x" * len(content)
        begin = 0
        if wanted := self.headers.get("Range"):
            begin = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        cut = self.hub.cut.pop(name, None)
        self.wfile.write(content[begin:cut] if cut else content[begin:])
        if cut:
            self.close_connection = True

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serve it on a free port."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
