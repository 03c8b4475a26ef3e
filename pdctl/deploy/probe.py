"""Asking a server whether it is healthy, with nothing but the standard library."""

import http.client
from collections.abc import Callable
from urllib.parse import urlsplit

Probe = Callable[[str], str | None]
"""Takes a URL; gives None when it answers 200, else what was seen, such as `HTTP 503`."""

_TIMEOUT_S = 2.0


def probe(url: str) -> str | None:
    """GET a URL once, within two seconds."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
        status = connection.getresponse().status
    except ConnectionRefusedError:
        return "it does not listen yet"
    except TimeoutError:
        return f"no answer within {_TIMEOUT_S:g} s"
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return None if status == 200 else f"HTTP {status}"
