"""The decode leg as far as its first word, where it shows whether decode can do it at all."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from pdctl.base.sse import SseSplitter
from pdctl.router import legs
from pdctl.router.actions import Failure, Opened
from pdctl.router.engines import Engines
from pdctl.router.wire import Exchange, Response


class Opening:
    """One decode leg being opened. Who leaves in the middle of it may come back: it has gone on.

    Attributes:
        upstream: decode's answer; None before its head is there.
        answer: the whole of it, where it does not stream.
        first_events: what it streamed, up to its first word.
        splitter: has what came after them.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.upstream: Response | None = None
        self.answer: dict[str, Any] | None = None
        self.first_events: list[bytes] = []
        self.splitter = SseSplitter()
        self._exchange: Exchange | None = None

    @property
    def sent(self) -> bool:
        """Decode may have it."""
        return self._exchange is not None

    async def send(
        self, engines: Engines, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Opened | Failure:
        """Send the request, and read as far as the first word.

        An answer that is not streamed is read whole.
        """
        try:
            self._exchange = await engines.begin(f"{self.url}{path}", body, headers)
        except OSError:
            return Failure(0, "unreachable", url=self.url)
        return await self.go_on()

    async def go_on(self) -> Opened | Failure:
        """Read on, from wherever that was left."""
        assert self._exchange is not None
        try:
            upstream = self.upstream = await self._exchange.head()
            if upstream.status == 200 and upstream.content_type == "text/event-stream":
                return await self._first_event(upstream)
            return await self._whole_answer(upstream)
        except OSError:
            return Failure(0, "unreachable", url=self.url)

    def close(self) -> None:
        """Read no more; an answer that is not over ends."""
        if self._exchange is not None:
            self._exchange.drop()

    def unread_handle(self) -> object:
        """The handle in what came of an answer that nobody reads."""
        if self.answer is not None or self.upstream is None:
            return (self.answer or {}).get("kv_transfer_params")
        nobody = legs.ClientWants(token_ids=False, usage=False)
        cleaner = legs.StreamCleaner(nobody, None, hold_end=False, splitter=self.splitter)
        cleaner.feed_all(self.first_events)
        cleaner.feed_some(self.upstream.take())
        return cleaner.harvest.kv

    async def see_out(self, grace: float) -> object:
        """Read on for at most so many seconds, then end it. Returns the handle that came."""
        if grace:
            try:
                async with asyncio.timeout(grace):
                    await self.go_on()
            except TimeoutError:
                pass
        kv = self.unread_handle()
        self.close()
        return kv

    async def _first_event(self, upstream: Response) -> Opened | Failure:
        """Read as far as the first word: an engine that failed says so there, under a 200.

        A chat names its role before that, also when it goes on with an error.
        """
        while chunk := await upstream.read_some():
            self.splitter.push(chunk)
            while (event := self.splitter.pop()) is not None:
                self.first_events.append(event)
                if legs.only_names_role(event):
                    continue
                error = legs.error_of(event)
                if error is None:
                    return Opened(upstream.status)
                upstream.close()
                said = orjson.dumps({"error": error["error"]}) if "error" in error else b""
                return Failure(_error_status(error), "stream_error", said, url=self.url)
        return Failure(502, "stream_error", url=self.url)

    async def _whole_answer(self, upstream: Response) -> Opened | Failure:
        body = await upstream.read()
        content_type = upstream.headers.get("content-type", "application/json")
        if upstream.status != 200:
            return Failure(upstream.status, "status", body, content_type, self.url)
        # What is in a bad answer, the client does not get: it may have a handle in it.
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Failure(502, "stream_error", url=self.url)
        if not isinstance(answer, dict) or _is_no_answer(answer):
            return Failure(502, "stream_error", url=self.url)
        self.answer = answer
        return Opened(upstream.status)


def _is_no_answer(answer: Mapping[str, Any]) -> bool:
    choices = legs.choices_of(answer)
    return not choices or any(c.get("finish_reason") == "error" for c in choices)


def _error_status(error: Mapping[str, Any]) -> int:
    inner = error.get("error")
    code = inner.get("code") if isinstance(inner, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500
