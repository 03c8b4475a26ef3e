"""Download a model: several files at once, each resumed where it stopped, each checked.

The order comes as JSON on standard input, so that no token and no signed URL is an argument:

    {"out": FOLDER, "files": [{"path", "url", "headers", "size", "sha256", "git", "md5"}]}

`sha256`, `git` (a git blob's SHA-1) and `md5` are checked where they are not null. A file that is
there and right is left alone. Exit status 0: all are there and right; 1: says what is not.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

CHUNK = 4 * 1024 * 1024
TRIES = 6
PARALLEL = 8
SILENCE_S = 60.0
WORD_EVERY_S = 5.0
PART = ".part"

Order = dict[str, Any]


class WrongError(Exception):
    """What came is not what was ordered; another try would not help."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A token is for the hub alone, not for where it sends us."""

    def redirect_request(
        self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        here, there = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if new is not None and (here.scheme, here.netloc) != (there.scheme, there.netloc):
            new.remove_header("Authorization")
        return new


_OPENER = urllib.request.build_opener(_Redirects)


class Progress:
    """Says now and then how far it is."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._lock = threading.Lock()
        self._said = time.monotonic()

    def add(self, count: int) -> None:
        """So many bytes more."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._said >= WORD_EVERY_S:
                self._said = now
                print(f"{self._done / 2**30:.1f} of {self._total / 2**30:.1f} GiB", flush=True)


def fetch(order: Order, out: str, progress: Progress) -> None:
    """One file, whole and checked."""
    target = os.path.join(out, order["path"])
    if os.path.isfile(target):
        with contextlib.suppress(WrongError):
            check(target, order)
            progress.add(os.path.getsize(target))
            return
        os.unlink(target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    part = target + PART
    for attempt in range(TRIES):
        try:
            download(order, part, progress)
            break
        except (OSError, http.client.HTTPException) as error:
            if is_final(error) or attempt == TRIES - 1:
                raise
            time.sleep(min(2.0**attempt, 20.0) * 0.5)
    try:
        check(part, order)
    except WrongError:
        os.unlink(part)  # it would be wrong again, however it is resumed
        raise
    os.replace(part, target)


def is_final(error: Exception) -> bool:
    """Whether another try would get the same answer."""
    return isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429


def download(order: Order, part: str, progress: Progress) -> None:
    """Go on from what is there of it."""
    have = os.path.getsize(part) if os.path.exists(part) else 0
    size = order.get("size")
    if size is not None and have > size:
        os.unlink(part)
        have = 0
    if size is not None and have == size:
        progress.add(have)
        return
    headers = dict(order.get("headers") or {})
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(order["url"], headers=headers)
    with _OPENER.open(request, timeout=SILENCE_S) as answer:
        resumed = answer.status == 206
        progress.add(have if resumed else 0)
        with open(part, "ab" if resumed else "wb") as file:
            for chunk in chunks(answer):
                file.write(chunk)
                progress.add(len(chunk))
    if size is not None and os.path.getsize(part) < size:
        raise OSError("the connection ended early")


def chunks(answer: Any) -> Iterator[bytes]:
    """What comes, bit by bit."""
    while chunk := answer.read(CHUNK):
        yield chunk


def check(path: str, order: Order) -> None:
    """Compare size and checksum.

    Raises:
        WrongError: one is another.
    """
    size = os.path.getsize(path)
    if order.get("size") is not None and size != order["size"]:
        raise WrongError(f"{order['path']} has {size} bytes, not {order['size']}")
    if order.get("sha256"):
        compare(path, hashlib.sha256(), order["sha256"], order["path"], "SHA-256")
    elif order.get("git"):
        digest = hashlib.sha1(b"blob %d\0" % size)
        compare(path, digest, order["git"], order["path"], "git SHA-1")
    elif order.get("md5"):
        compare(path, hashlib.md5(), order["md5"], order["path"], "MD5")


def compare(path: str, digest: Any, expected: str, name: str, kind: str) -> None:
    """The file's own digest must be the expected one."""
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise WrongError(f"{name} has the {kind} {digest.hexdigest()}, not {expected}")


def main() -> int:
    """Read the order, do it, say what went wrong."""
    order = json.load(sys.stdin)
    out: str = order["out"]
    os.makedirs(out, exist_ok=True)
    files: list[Order] = order["files"]
    progress = Progress(sum(each.get("size") or 0 for each in files))
    failed = []
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        work = {pool.submit(fetch, each, out, progress): each["path"] for each in files}
        for each in concurrent.futures.as_completed(work):
            try:
                each.result()
            except (WrongError, OSError, http.client.HTTPException) as error:
                failed.append(f"{work[each]}: {error}")
    for line in sorted(failed):
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
