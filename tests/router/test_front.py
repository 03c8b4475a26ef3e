"""Who gets in, what browsers may do, and what a client hears that does not speak HTTP well."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.router import server
from pdctl.router.keys import KeyFile, parse_keys
from tests.router.test_odd_clients import CHAT, calm, post, raw_http, request, turn
from tests.router.test_server import LONG, World, answered, user, world

# What is no good HTTP.


def answer_of(raw: bytes) -> tuple[int, dict[str, Any], bytes]:
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"], head


@pytest.mark.parametrize("header_kib", [1, 16, 100])
async def test_a_header_may_be_as_large_as_the_limit_says(
    header_kib: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with calm(caplog, limits={"header_kib": header_kib}) as w:
        body = json.dumps(turn()).encode()
        room = header_kib * 1024
        fits = request(body, b"X-Filler: " + b"x" * (room - 200))
        assert (await raw_http(w, fits)).startswith(b"HTTP/1.1 200")
        for large in (
            request(body, b"X-Filler: " + b"x" * (room + 200)),
            request(body, path=b"/v1/models/" + b"x" * (room + 200)),
        ):
            status, error, head = answer_of(await raw_http(w, large))
            assert (status, error["code"], error["type"]) == (431, 431, "invalid_request")
            assert b"application/json" in head
            assert b"xxxx" not in head + error["message"].encode()
        assert len(w.d.seen) == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        request(b"{}", b"no colon"),
        request(b"{}", b"Content-Length: 7"),
    ],
)
async def test_what_is_no_http_gets_json_too(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with calm(caplog) as w:
        status, error, _ = answer_of(await raw_http(w, sent))
        assert (status, error["code"]) == (400, 400)
        assert error["message"] == "The request is not valid HTTP"


# Browsers.


async def preflight(w: World, path: str, **headers: str) -> Any:
    asked = {"Origin": "http://page", "Access-Control-Request-Method": "POST"}
    return await w.http.options(w.url + path, headers=asked | headers)


async def test_a_page_may_ask_for_turns_and_read_the_answer() -> None:
    async with world(api_keys=parse_keys("alice:k1", "keys")) as w:
        wants = {"Access-Control-Request-Headers": "authorization, content-type"}
        answer = await preflight(w, "/v1/chat/completions", **wants)
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.headers["Access-Control-Allow-Headers"] == "authorization, content-type"
        assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        assert "Access-Control-Allow-Credentials" not in answer.headers
        page = {"Origin": "http://page", "Authorization": "Bearer k1"}
        for stream in (False, True):
            body = {"model": "m", "messages": [user(LONG)], "stream": stream}
            async with w.http.post(w.url + CHAT, json=body, headers=page) as told:
                assert told.status == 200
                assert told.headers["Access-Control-Allow-Origin"] == "*"
        # A page must be able to read why it was refused.
        async with w.http.post(w.url + CHAT, json={}, headers={"Origin": "http://page"}) as told:
            assert told.status == 401
            assert told.headers["Access-Control-Allow-Origin"] == "*"
        async with w.http.get(w.url + "/v1/models", headers=page) as told:
            assert told.headers["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize(
    "path", ["/pdctl/v1/reuse", "/pdctl/v1/state", "/v1/conversations/c", "/metrics", "/nothing"]
)
async def test_a_page_may_do_nothing_else(path: str) -> None:
    async with world() as w:
        answer = await preflight(w, path)
        assert answer.status in (404, 405)
        assert "Access-Control-Allow-Origin" not in answer.headers
        async with w.http.get(w.url + path, headers={"Origin": "http://page"}) as told:
            assert "Access-Control-Allow-Origin" not in told.headers


async def test_who_is_no_page_sees_nothing_of_it() -> None:
    async with world() as w, w.http.get(w.url + "/v1/models") as told:
        assert not any(name.startswith("Access-Control") for name in told.headers)


# Keys.


async def test_who_has_no_key_learns_whether_it_is_ready_and_no_more() -> None:
    async with world(api_keys=parse_keys("alice:k1", "keys")) as w:
        async with w.http.get(w.url + "/ready") as answer:
            assert (answer.status, await answer.json()) == (200, {"ready": True})
        async with w.http.get(w.url + "/pdctl/v1/state") as answer:
            assert answer.status == 401
            assert w.d.url not in await answer.text()


async def test_keys_change_while_the_router_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_KEYS_EVERY_S", 0.01)
    path = tmp_path / "keys"
    path.write_text("alice:k1\n")
    async with world(key_file=KeyFile(path)) as w:

        async def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            async with w.http.get(w.url + "/pdctl/v1/state", headers=headers) as answer:
                return answer.status

        async def until(key: str, wanted: int) -> None:
            for _ in range(500):
                if await status(key) == wanted:
                    return
            raise AssertionError(f"{key} is not {wanted}")

        assert (await status("k1"), await status("k2")) == (200, 401)
        path.write_text("alice:k2\n")
        await until("k2", 200)
        assert await status("k1") == 401
        path.write_text("")
        await until("k2", 200)


# Salts.


async def salted(w: World, key: str, **more: Any) -> tuple[Any, Any]:
    """The salts that prefill and decode saw."""
    w.http.headers["Authorization"] = f"Bearer {key}"
    await post(w, turn(**more))
    return w.p.seen[-1].get("cache_salt"), w.d.seen[-1].get("cache_salt")


async def test_tenants_have_salts_of_their_own_whatever_they_send() -> None:
    keys = parse_keys("alice:k1\nbob:k2\n", "keys")
    async with world(api_keys=keys, tenant_salt=True) as w:
        alice, on_decode = await salted(w, "k1")
        assert alice == on_decode == keys.salt("alice", "")
        assert (await salted(w, "k1"))[0] == alice
        seen = {alice}
        for key in ("k1", "k2"):
            for own in ("x", alice):
                seen.add((await salted(w, key, cache_salt=own))[0])
        seen.add((await salted(w, "k2"))[0])
        assert len(seen) == 6
        # What is wrong with a salt the engine says.
        for wrong in ("", 5):
            assert (await salted(w, "k1", cache_salt=wrong))[1] == wrong


async def test_a_salted_conversation_is_reused() -> None:
    async with world(api_keys=parse_keys("alice:k1", "keys"), tenant_salt=True) as w:
        w.http.headers["Authorization"] = "Bearer k1"
        _, first, _ = await w.ask([user(LONG)])
        _, _, told = await w.ask([user(LONG), answered(first), user("more")])
        assert told["outcome"] == "HIT"


async def test_without_the_option_salts_are_the_clients() -> None:
    async with world(api_keys=parse_keys("alice:k1", "keys")) as w:
        assert await salted(w, "k1") == (None, None)
        assert await salted(w, "k1", cache_salt="x") == ("x", "x")
