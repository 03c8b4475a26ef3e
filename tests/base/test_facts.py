"""Facts survive a file unchanged; what is no facts is refused in words."""

import json
from dataclasses import FrozenInstanceError

import pytest

from pdctl.base.errors import BadAnswerError
from pdctl.base.facts import (
    EngineMetrics,
    HostFacts,
    PairFacts,
    PairState,
    RouterFacts,
    RouterMetrics,
    ServingFacts,
    TwoTurnFacts,
    from_json,
    to_json,
)

FACTS = PairFacts(
    name="demo",
    taken_at=1.75e9,
    hosts=(HostFacts("localhost"), HostFacts("other", error="no route")),
    engines=(
        ServingFacts(
            "prefill-0", "prefill", "localhost", "http://x:1", metrics=EngineMetrics(kv_usage=0.5)
        ),
        ServingFacts("decode-0", "decode", "localhost", "http://x:2", error="refused"),
    ),
    router=RouterFacts(
        "http://x:3",
        ours=True,
        pairs=(PairState("http://x:1", "http://x:2", False, "no handle"),),
        metrics=RouterMetrics(turns={"HIT": 2.0}),
    ),
    two_turn=TwoTurnFacts(False, 0, 10, None, None, "why", "decode", ("do this",)),
)


def test_json_round_trip() -> None:
    assert from_json(PairFacts, json.loads(json.dumps(to_json(FACTS)))) == FACTS


def test_facts_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        FACTS.name = "other"  # type: ignore[misc]


def test_roles_are_picked_in_order() -> None:
    assert [engine.name for engine in FACTS.role("decode")] == ["decode-0"]
    assert FACTS.role("router") == ()


def test_what_is_no_facts_is_refused_with_its_place() -> None:
    value = to_json(FACTS)
    value["engines"][0]["role"] = "chef"
    with pytest.raises(BadAnswerError) as caught:
        from_json(PairFacts, value)
    assert caught.value.message == "these are not PairFacts"
    assert caught.value.detail[0].startswith("engines.0.role: Input should be 'prefill'")
