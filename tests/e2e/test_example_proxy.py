"""Upstream's example proxy in the router's place, out of vLLM's source distribution."""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.engine.example import LIMITS
from tests.e2e.harness import Pairs, Setup, configuration
from tests.e2e.test_cli_real import UP_LIMIT_S, Person, runs

SOURCE_ENV = "PDCTL_EXAMPLE_SOURCE"
SOURCE = os.environ.get(SOURCE_ENV)

NO_SOURCE = (
    f"upstream's file is not in this repository: {SOURCE_ENV} names vLLM's source "
    "distribution (.tar.gz), a checkout or disagg_proxy_multiturn.py"
)

pytestmark = [
    pytest.mark.timeout(UP_LIMIT_S),
    pytest.mark.skipif(SOURCE is None, reason=NO_SOURCE),
]


@pytest.fixture
def person(pairs: Pairs, tmp_path: Path) -> Iterator[Person]:
    """Whose configuration asks for the example proxy."""
    pairs.stop()
    someone = Person(tmp_path)
    value = configuration("example", Setup())
    value["router"] = {"kind": "vllm-example", "source": SOURCE, "port": 0}
    someone.file.write_text(yaml.safe_dump(value))
    try:
        yield someone
    finally:
        someone.types("down", "--yes")


def ask(url: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_it_serves_says_what_it_lacks_and_leaves_nothing(person: Person, tmp_path: Path) -> None:
    up = person.asks("up", "--yes")
    # Of a conversation that only grows, it reuses as well as any router.
    assert up["verify"]["ok"]
    assert up["verify"]["turns"][1]["reused_tokens"] > 0
    assert up["verify"]["router_limits"] == list(LIMITS)

    model = person.asks("render")["processes"][0]["argv"]
    answer = ask(
        up["url"],
        model=model[model.index("--served-model-name") + 1],
        messages=[{"role": "user", "content": "Say something."}],
        max_tokens=8,
        conversation_id="c1",
    )
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"] is None  # one of the things it lacks

    status = person.asks("status")
    assert status["router_limits"] == list(LIMITS)
    assert status["kv"] == {"decoder_ttl": 480, "router_ttl": 450}
    assert all(each["healthy"] for each in status["roles"])

    doctor_names_its_ttl(person)

    pids = [each["pid"] for each in up["processes"]]
    down = person.types("down", "--yes")
    assert "nothing is left" in down.stderr + down.stdout
    assert [pid for pid in pids if runs(pid)] == []
    assert list(tmp_path.rglob("disagg_proxy_multiturn.py")) == []


def doctor_names_its_ttl(person: Person) -> None:
    """It offers handles for 450 s, whatever decode does (FACTS T10)."""
    found = person.asks("doctor")["checks"]
    bad = {each["id"]: each for each in found if each["status"] in ("fail", "warn")}
    assert set(bad) == {"router.kind"}
    assert len(bad["router.kind"]["evidence"]) == len(LIMITS)

    processes = {each["name"]: each for each in person.asks("render")["processes"]}
    ttl_file = Path(processes["decode-0"]["env"]["PDCTL_TTL_FILE"])
    ttl_file.write_text('{"decoder_ttl": 60}')
    told = json.loads(person.types("doctor", "--json", expect=1).stdout)["checks"]
    assert (told[0]["id"], told[0]["status"]) == ("router.ttl", "fail")
    assert told[0]["evidence"][0] == (
        "decode-0 keeps blocks 1m (set while it runs), the router offers them 7m30s"
    )
    assert "router.kind: pdctl" in told[0]["fix"]["text"]
