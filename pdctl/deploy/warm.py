"""A first small request to an engine, so that no client's request waits for what it compiles."""

import http.client
import json
from urllib.parse import urlsplit

from pdctl.base.errors import BadAnswerError, TemporaryError
from pdctl.base.words import one_line

_SHOWN = 300


def warm_up(url: str, *, name: str, model: str, key: str | None, limit: float) -> None:
    """Let it answer two tokens.

    Args:
        url: where this machine reaches it.
        limit: seconds that this may take.

    Raises:
        BadAnswerError: it answers /health and cannot answer a request.
        TemporaryError: the limit passed.
    """
    parts = urlsplit(url)
    body = {"model": model, "prompt": "Hello", "max_tokens": 2, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=limit)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read(64 * 1024).decode(errors="replace")
    except TimeoutError as error:
        raise TemporaryError(
            f"{name} answers /health, and did not answer a first request within {limit:g} s",
            where=url,
            hints=["`pdctl up` waits again"],
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise BadAnswerError(f"{name} answers /health, and then: {error}", where=url) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise BadAnswerError(
            f"{name} answers /health, and its first request with HTTP {answer.status}",
            where=url,
            detail=[one_line(said)[:_SHOWN]],
        )
