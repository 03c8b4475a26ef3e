"""The first small request to an engine."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from pdctl.base.errors import BadAnswerError, TemporaryError
from pdctl.deploy.warm import warm_up


class Engine(BaseHTTPRequestHandler):
    status = 200
    seen: list[tuple[str, str | None, Any]]
    waits: threading.Event

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers.get("Authorization"), body))
        self.waits.wait(5)
        said = b'{"error": "no \\n memory"}'
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[type[Engine]]:
    handler = type("Handler", (Engine,), {"seen": [], "waits": threading.Event()})
    handler.waits.set()
    server = HTTPServer(("127.0.0.1", 0), handler)
    handler.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield handler
    handler.waits.set()
    server.shutdown()
    server.server_close()


def warm(engine: Any, limit: float = 5.0) -> None:
    warm_up(engine.url, name="decode-0", model="m", key="k", limit=limit)


def test_it_is_asked_for_two_tokens_with_its_key(engine: type[Engine]) -> None:
    warm(engine)
    ((path, key, body),) = engine.seen
    assert (path, key) == ("/v1/completions", "Bearer k")
    assert (body["model"], body["max_tokens"]) == ("m", 2)


def test_one_that_answers_health_alone_is_told(engine: type[Engine]) -> None:
    engine.status = 500
    with pytest.raises(BadAnswerError, match="its first request with HTTP 500") as caught:
        warm(engine)
    assert "memory" in caught.value.detail[0]


def test_one_that_takes_too_long(engine: type[Engine]) -> None:
    engine.waits.clear()
    with pytest.raises(TemporaryError, match="did not answer a first request within"):
        warm(engine, 0.1)


def test_one_that_is_gone() -> None:
    with pytest.raises(BadAnswerError, match="answers /health, and then"):
        warm_up("http://127.0.0.1:1", name="decode-0", model="m", key=None, limit=1)
