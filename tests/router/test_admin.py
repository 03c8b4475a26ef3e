"""Changing reuse and the TTL at run time: who may, what it does at once, and for whom it stays."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.router.admin import WrongSetting, parse_setting, parse_ttl
from pdctl.router.core import Policy
from pdctl.router.handle import Conversation
from pdctl.router.keys import parse_keys
from tests.router.fake import FakeEngine
from tests.router.test_server import LONG, World, user, world

KEYS = "acme:a-key\nbeta:b-key\nadmin:root-key\n"


async def put(
    w: World, setting: Any, key: str = "", path: str = "/pdctl/v1/reuse"
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with w.http.put(f"{w.url}{path}", json=setting, headers=headers) as answer:
        return answer.status, await answer.json()


async def get(w: World, key: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with w.http.get(f"{w.url}/pdctl/v1/reuse", headers=headers) as answer:
        return answer.status, await answer.json()


async def begin(w: World, *, key: str = "", conversation: str = "c") -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": "m", "messages": [user(LONG)], "conversation_id": conversation}
    async with w.http.post(f"{w.url}/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status == 200


async def kept(w: World) -> int:
    return sum(total.handles for total in (await w.router.shared.store.totals()).values())


async def test_off_gives_back_what_is_kept_and_keeps_nothing_new() -> None:
    async with world() as w:
        for name in ("c1", "c2"):
            await begin(w, conversation=name)
        assert len(w.d.held) == await kept(w) == 2
        assert await put(w, {"share": 0}) == (200, {"share": 0.0, "tenants": {}, "released": 2})
        await w.until(lambda: not w.d.held)
        _, _, told = await w.ask([user(LONG)])
        assert (told["outcome"], told["reason"]) == ("OFF", "reuse_off")
        await w.until(lambda: not w.d.held)
        assert await kept(w) == 0
        metrics = w.router.shared.metrics.exposition().decode()
        assert 'pdctl_router_releases_total{reason="reuse_off"} 2.0' in metrics


async def test_on_again_reuses_again() -> None:
    async with world(reuse_share=0.0) as w:
        assert (await get(w))[1] == {"share": 0.0, "tenants": {}}
        await put(w, {"share": 1})
        _, first, _ = await w.ask([user(LONG)])
        said = first["choices"][0]["message"]
        _, _, told = await w.ask([user(LONG), said, user("and more of it")])
        assert told["outcome"] == "HIT"


async def test_a_turn_that_runs_when_it_is_switched_off_leaves_nothing_pinned() -> None:
    async with world() as w:
        w.d.words, w.d.gap = 20, 0.02
        turn = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await w.until(lambda: len(w.d.seen) == 1)
        await put(w, {"share": 0})
        assert (await turn)[0] == 200
        await w.until(lambda: not w.d.held)
        assert await kept(w) == 0


async def test_a_share_stays_with_the_same_conversations_and_frees_the_others() -> None:
    async with world() as w:
        names = [f"c{number}" for number in range(40)]
        for name in names:
            await begin(w, conversation=name)
        _, said = await put(w, {"share": 0.5})
        stay = await kept(w)
        assert stay + said["released"] == 40
        assert 8 < stay < 32
        assert (await put(w, {"share": 0.5}))[1]["released"] == 0
        await w.until(lambda: len(w.d.held) == stay)


def test_a_larger_share_only_adds_conversations() -> None:
    policy = Policy(2, 100.0, 60.0, 5.0, 10.0)
    names = [Conversation(f"c{number}", "") for number in range(500)]
    on: set[Conversation] = set()
    for share in (0.0, 0.1, 0.5, 1.0):
        policy.share = share
        now = {name for name in names if policy.reuses("", name)}
        assert on <= now
        assert abs(len(now) / 500 - share) < 0.1
        on = now


async def test_a_tenant_alone() -> None:
    async with world(api_keys=parse_keys(KEYS, "keys")) as w:
        await begin(w, key="a-key")
        await begin(w, key="b-key")
        setting = {"share": 1, "tenants": {"acme": 0}}
        assert (await put(w, setting, "root-key"))[1]["released"] == 1
        await begin(w, key="a-key")
        await begin(w, key="b-key", conversation="another")
        assert await kept(w) == 2
        # Said without the tenant, it is over for that one.
        await put(w, {"share": 1}, "root-key")
        assert (await get(w, "root-key"))[1] == {"share": 1.0, "tenants": {}}


async def test_with_keys_only_the_admin_may() -> None:
    async with world(api_keys=parse_keys(KEYS, "keys")) as w:
        assert (await put(w, {"share": 0}))[0] == 401
        for status, said in (await put(w, {"share": 0}, "a-key"), await get(w, "a-key")):
            assert status == 403
            assert "`admin`" in said["error"]["message"]
        assert w.router.policy.share == 1.0
        assert (await get(w, "root-key"))[0] == 200


async def addresses(w: World, key: str) -> tuple[int, str, str]:
    """The status of the state, and which servers an answer names."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with w.http.get(f"{w.url}/pdctl/v1/state", headers=headers) as state:
        status = state.status
    body = {"model": "m", "messages": [user(LONG)]}
    async with w.http.post(
        f"{w.url}/v1/chat/completions", json=body, headers=headers | {"x-pdctl-explain": "1"}
    ) as answer:
        told = json.loads(answer.headers["x-pdctl-turn"])
    return status, told["prefill"], told["decode"]


async def test_only_the_admin_learns_the_engines_addresses() -> None:
    async with world(api_keys=parse_keys(KEYS, "keys")) as w:
        assert await addresses(w, "a-key") == (403, "", "")
        assert await addresses(w, "root-key") == (200, w.p.url, w.d.url)


@pytest.mark.parametrize(("keys", "key"), [(None, ""), ("acme:a-key\n", "a-key")])
async def test_without_an_admin_who_asks_learns_them(keys: str | None, key: str) -> None:
    async with world(api_keys=parse_keys(keys, "keys") if keys else None) as w:
        assert await addresses(w, key) == (200, w.p.url, w.d.url)


async def test_a_tenant_that_is_not_there_is_no_silent_success() -> None:
    for keys, key in ((None, ""), (parse_keys(KEYS, "keys"), "root-key")):
        async with world(api_keys=keys) as w:
            status, said = await put(w, {"share": 0, "tenants": {"acmee": 0}}, key)
            assert status == 400
            assert "No API key has the tenant `acmee`" in said["error"]["message"]
            assert w.router.policy.share == 1.0


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"0.5",
        b"{}",
        b'{"share": true}',
        b'{"share": "1"}',
        b'{"share": -0.1}',
        b'{"share": 1.1}',
        b'{"share": NaN}',
        b'{"share": 1, "shares": 1}',
        b'{"share": 1, "tenants": []}',
        b'{"share": 1, "tenants": {"a": null}}',
    ],
)
def test_what_is_no_setting(raw: bytes) -> None:
    with pytest.raises(WrongSetting):
        parse_setting(raw)


async def test_what_is_no_setting_changes_nothing() -> None:
    async with world() as w:
        status, said = await put(w, {"share": 2})
        assert (status, said["error"]["type"]) == (400, "invalid_request")
        assert w.router.policy.share == 1.0


TTL = "/pdctl/v1/ttl"


async def deadlines(w: World) -> list[float]:
    handles = await w.router.shared.store.take_all(lambda tenant, conversation: True)
    return [handle.deadline - asyncio.get_running_loop().time() for handle in handles]


async def test_a_changed_ttl_holds_from_the_next_finished_turn() -> None:
    async with world(ttl=100.0) as w:
        await begin(w, conversation="before")
        assert await put(w, {"ttl": 30}, path=TTL) == (200, {"ttl": 30.0})
        await begin(w, conversation="after")
        assert (await w.router.state())["ttl"] == 30.0
        assert sorted(await deadlines(w)) == pytest.approx([30.0, 100.0], abs=3)


async def test_a_changed_ttl_is_written_down_for_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "ttl.json"
    async with world(ttl=100.0, ttl_file=file) as w:
        assert await put(w, {"ttl": 30}, path=TTL) == (200, {"ttl": 30.0})
    async with world(ttl=100.0, ttl_file=file) as w:
        assert w.router.policy.ttl == 30.0
    async with world(ttl=100.0, ttl_file=tmp_path / "gone" / "ttl.json") as w:
        status, said = await put(w, {"ttl": 20}, path=TTL)
        assert status == 500
        assert "the next start will not know: No such file" in said["error"]["message"]
        assert w.router.policy.ttl == 20.0


@pytest.mark.parametrize("new", [30, 200])
async def test_a_turn_that_runs_while_the_ttl_changes_gets_the_shorter_one(new: float) -> None:
    """Decode may have finished it before or after its own TTL was changed."""
    async with world(ttl=100.0, d=FakeEngine("decode", gap=0.1)) as w:
        turn = asyncio.create_task(w.ask([user(LONG)], stream=True))
        await w.until(lambda: len(w.d.seen) > 0)
        await put(w, {"ttl": new}, path=TTL)
        await turn
        assert await deadlines(w) == pytest.approx([min(new, 100.0)], abs=3)


async def test_only_the_tenant_admin_may_change_the_ttl() -> None:
    async with world(ttl=100.0, api_keys=parse_keys(KEYS, where="keys")) as w:
        assert (await put(w, {"ttl": 30}, "a-key", TTL))[0] == 403
        assert (await put(w, {"ttl": 30}, path=TTL))[0] == 401
        assert w.router.policy.ttl == 100.0
        assert (await put(w, {"ttl": 30}, "root-key", TTL))[0] == 200


@pytest.mark.parametrize(
    "raw", [b"", b"30", b"{}", b'{"ttl":0}', b'{"ttl":-1}', b'{"ttl":true}', b'{"ttl":"30"}',
            b'{"ttl":30,"x":1}', b'{"ttl":1e999}'],
)  # fmt: skip
def test_what_is_no_ttl_changes_nothing(raw: bytes) -> None:
    with pytest.raises(WrongSetting):
        parse_ttl(raw)
