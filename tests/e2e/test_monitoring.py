"""A real Prometheus on the real pair: what is rendered finds what engines and router export."""

import asyncio
import contextlib
import json
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pdctl.render.alerts import alert_rules, alerts
from pdctl.render.dashboard import dashboard
from pdctl.render.scrape import Scraped, scrape_config
from tests.e2e.harness import Routed, random_ids

PROMETHEUS = shutil.which("prometheus")

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="Debian's package prometheus")

QUIET = {
    # Counters by label, of what did not happen on a healthy pair.
    "Legs run again",
    "Renewals by result",
    "Releases by reason",
    "Store errors and alarms",
}


@contextlib.asynccontextmanager
async def prometheus(router: Routed, folder: Path) -> AsyncIterator[str]:
    """One that looks every second, until the block ends."""
    name = router.pair.config.name
    servers = [
        Scraped("prefill-0", "prefill", router.pair.prefill),
        Scraped("decode-0", "decode", router.pair.decode),
        Scraped("router-0", "router", router.url),
    ]
    config = scrape_config(name, servers, ["alerts.yml"])
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (folder / "prometheus.json").write_text(json.dumps(config))
    (folder / "alerts.yml").write_text(json.dumps(alert_rules(name)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert PROMETHEUS is not None
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.json'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def ask(session: aiohttp.ClientSession, url: str, **params: str) -> Any:
    async with session.get(url, params=params) as answer:
        value = await answer.json()
        assert value["status"] == "success", value
        return value["data"]


async def series(session: aiohttp.ClientSession, at: str, expr: str) -> list[Any]:
    query = expr.replace("$__rate_interval", "30s")
    return list((await ask(session, f"{at}/api/v1/query", query=query))["result"])


async def until(session: aiohttp.ClientSession, at: str, expr: str) -> None:
    """Until the query returns something."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError, aiohttp.ContentTypeError):
                if await series(session, at, expr):
                    return
            await asyncio.sleep(0.2)


async def test_a_real_prometheus_finds_what_the_dashboard_asks_for_and_raises_no_alert(
    router: Routed, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    name = router.pair.config.name
    async with prometheus(router, tmp_path) as at:
        await until(session, at, f'sum(up{{deployment="{name}"}}) == 3')
        for seed in (1, 2):
            _, second, _ = await router.conversation(
                session, random_ids(seed, 400), random_ids(9, 20), conversation_id=f"c{seed}"
            )
            assert second.ok
        # A counter with labels appears with its first turn: its rate needs one scrape more than
        # the rate of one that was there from the start.
        await until(
            session,
            at,
            f'rate(pdctl_router_turns_total{{deployment="{name}",outcome="HIT"}}[30s]) >= 0'
            f' and on() rate(pdctl_router_reused_tokens_total{{deployment="{name}"}}[30s]) > 0',
        )

        empty = {}
        for panel in dashboard(name)["panels"]:
            for target in panel.get("targets", ()):
                if not await series(session, at, target["expr"]):
                    empty.setdefault(panel["title"], []).append(target["expr"])
        assert set(empty) - QUIET == set(), empty

        rules = (await ask(session, f"{at}/api/v1/rules"))["groups"][0]["rules"]
        assert [rule["name"] for rule in rules] == [alert.name for alert in alerts(name)]
        assert {rule["health"] for rule in rules} == {"ok"}
        assert {rule["state"] for rule in rules} == {"inactive"}, rules
