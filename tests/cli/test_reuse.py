"""`pdctl reuse` against real routers, whose engines nobody ever starts."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from pdctl.router.keys import parse_keys
from pdctl.router.serve import serving
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings
from pdctl.state.store import StateStore
from tests.cli.helpers import run_cli
from tests.state.samples import PREFILL, STATE

KEYS = "acme:a-key\nadmin: root-key # ours\n"


class Loop:
    """A loop in a thread, so that the command line has this thread's for itself."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def a_router(loop: Loop, keys: str = "") -> Iterator[tuple[Router, str]]:
    router = Router(
        RouterSettings(("http://127.0.0.1:9",), ("http://127.0.0.1:19",), port=0),
        api_keys=parse_keys(keys, "keys") if keys else None,
    )
    world = serving(router)
    try:
        yield router, loop.run(world.__aenter__())
    finally:
        loop.run(world.__aexit__(None, None, None))


class Deployed:
    def __init__(self, folder: Path, loop: Loop, stack: ExitStack) -> None:
        self.file = folder / "pd.yaml"
        self.keys = folder / "keys"
        self.loop, self._stack = loop, stack
        self.routers: list[Router] = []
        self.urls: list[str] = []

    def __call__(self, count: int = 1, keys: str = "") -> "Deployed":
        for _ in range(count):
            router, url = self._stack.enter_context(a_router(self.loop, keys))
            self.routers.append(router)
            self.urls.append(url)
        self.record()
        self.keys.write_text(keys)
        router_section = "{api_keys_file: keys}" if keys else "{}"
        self.file.write_text(
            "name: demo\nmodel: {id: pdctl/tiny-random}\nengine: {install: cpu}\n"
            f"target: {{kind: local}}\nrouter: {router_section}\n"
        )
        return self

    def record(self) -> None:
        processes = {"prefill-0": PREFILL}
        for index, url in enumerate(self.urls):
            name = f"router-{index}"
            port = urlsplit(url).port or 0
            processes[name] = replace(
                PREFILL, name=name, role="router", index=index, port=port, engine_id=None
            )
        StateStore("demo").save(replace(STATE, processes=processes))

    def types(self, *args: str) -> Any:
        return run_cli("reuse", *args, "--file", str(self.file))

    def shares(self) -> list[float]:
        return [router.policy.share for router in self.routers]


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "120")
    loop = Loop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        yield Deployed(tmp_path, loop, stack)


def test_every_router_of_the_deployment_is_set_and_shown(deployed: Deployed) -> None:
    deployed(2)
    result = deployed.types("off")
    assert result.exit_code == 0, result.stderr
    assert deployed.shares() == [0.0, 0.0]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines == [
        ["router", "url", "reuse", "tenants", "given", "back"],
        ["router-0", deployed.urls[0], "off", "-", "0"],
        ["router-1", deployed.urls[1], "off", "-", "0"],
    ]
    shown = deployed.types()
    assert shown.exit_code == 0
    assert [line.split()[2] for line in shown.stdout.splitlines()[1:]] == ["off", "off"]


@pytest.mark.parametrize(
    ("said", "share"), [("off", 0.0), ("on", 1.0), ("25", 0.25), ("12.5%", 0.125), ("100", 1.0)]
)
def test_settings(deployed: Deployed, said: str, share: float) -> None:
    assert deployed().types(said).exit_code == 0
    assert deployed.shares() == [share]


@pytest.mark.parametrize("said", ["of", "101", "-1", "nan", "0.5.1", ""])
def test_what_is_no_setting(deployed: Deployed, said: str) -> None:
    result = run_cli("reuse", "--file", str(deployed().file), "--", said)
    assert result.exit_code == 2
    assert "is no setting" in result.stderr
    assert deployed.shares() == [1.0]


def test_a_dry_run_shows_and_switches_nothing(deployed: Deployed) -> None:
    result = deployed(2).types("off", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert deployed.shares() == [1.0, 1.0]
    assert [line.split()[2] for line in result.stdout.splitlines()[1:]] == ["on", "on"]
    assert "reuse would be off; nothing was changed (`--dry-run`)" in result.stderr


def test_json_has_the_documented_shape(deployed: Deployed) -> None:
    deployed()
    assert deployed.types("30", "--json").json == {
        "name": "demo",
        "routers": [
            {
                "name": "router-0",
                "url": deployed.urls[0],
                "share": 0.3,
                "tenants": {},
                "released": 0,
                "error": None,
            }
        ],
    }


def test_a_tenant_alone_with_the_admins_key_from_the_file(deployed: Deployed) -> None:
    deployed(1, KEYS)
    assert deployed.types("off", "--tenant", "acme").exit_code == 0
    assert deployed.shares() == [1.0]
    assert deployed.routers[0].policy.tenant_shares == {"acme": 0.0}
    assert "acme off" in deployed.types().stdout
    # For everybody is for everybody.
    assert deployed.types("40").exit_code == 0
    assert deployed.routers[0].policy.tenant_shares == {}
    unknown = deployed.types("off", "--tenant", "acmee")
    assert unknown.exit_code == 1
    assert "No API key has the tenant `acmee`" in unknown.stderr


def test_without_an_admins_key_it_says_what_to_do(deployed: Deployed) -> None:
    deployed(1, "acme:a-key\n")
    result = deployed.types("off")
    assert result.exit_code == 77
    assert "only a key of the tenant `admin` may switch reuse" in result.stderr
    assert "hint: add a line `admin:KEY`" in result.stderr


def test_a_router_that_is_gone_does_not_keep_the_others_from_it(deployed: Deployed) -> None:
    deployed(2)
    deployed.urls[0] = "http://127.0.0.1:9"
    deployed.record()
    result = deployed.types("off")
    assert result.exit_code == 69
    assert deployed.shares() == [1.0, 0.0]
    assert "router-0: no answer from http://127.0.0.1:9/pdctl/v1/reuse" in result.stderr
    assert "the routers do not say the same" in result.stderr


def test_routers_that_no_file_names(deployed: Deployed) -> None:
    deployed(1, KEYS)
    args = ("reuse", "off", "--url", deployed.urls[0] + "/")
    assert run_cli(*args).exit_code == 77
    assert run_cli(*args, "--api-keys", str(deployed.keys)).exit_code == 0
    assert deployed.shares() == [0.0]
    assert run_cli(*args, "--api-keys", "/none").exit_code == 66


def test_another_router_is_named_as_such(deployed: Deployed) -> None:
    async def start() -> tuple[web.AppRunner, str]:
        runner = web.AppRunner(web.Application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    runner, url = deployed.loop.run(start())
    try:
        result = run_cli("reuse", "--url", url)
    finally:
        deployed.loop.run(runner.cleanup())
    assert result.exit_code == 1
    assert "it has no switch: it is not pdctl's router, or an older one" in result.stderr


def test_nothing_started_says_what_to_do(deployed: Deployed) -> None:
    deployed(0)
    result = deployed.types("off")
    assert result.exit_code == 69
    assert "no router of `demo` was started" in result.stderr
    assert "hint: `pdctl up` starts it" in result.stderr


def test_a_tenant_without_a_setting_and_the_example_proxy(deployed: Deployed) -> None:
    assert deployed().types("--tenant", "acme").exit_code == 2
    text = deployed.file.read_text()
    deployed.file.write_text(text.replace("{}", "{kind: vllm-example, source: ./vllm}"))
    result = deployed.types("off")
    assert result.exit_code == 2
    assert "the example proxy has no switch" in result.stderr
