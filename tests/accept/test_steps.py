"""What is made of what was seen: exactness, features, EFA's counters, cells of the table."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pdctl.accept.exact import Compared
from pdctl.accept.measured import cells
from pdctl.accept.model import Found, Result
from pdctl.accept.steps import Means, efa, judged, steps_of
from pdctl.base.facts import PairFacts
from pdctl.base.hostfacts import EfaFacts, HostFacts, RdmaDevice
from pdctl.config.load import loads
from pdctl.observe.endpoints import Endpoint, Endpoints
from pdctl.router.audit import Comparison

GOOD = Compared("HIT", 700, Comparison("ok", 0.01, 0.02), tokens_equal=True)
OFF = replace(GOOD, comparison=Comparison("breach", 2.0, 0.02), tokens_equal=False)
UNSTABLE = replace(GOOD, comparison=Comparison("unstable", noise=float("inf")), tokens_equal=False)


@pytest.mark.parametrize(
    ("compared", "exact", "status", "said"),
    [
        ([GOOD, GOOD], True, "pass", "2 of 2 equal token for token, 1400 reused"),
        ([GOOD, GOOD], False, "pass", "2 of 2 equal within the band of cold runs, 1400 reused"),
        ([GOOD, replace(GOOD, tokens_equal=False)], True, "fail", "differs from the cold ones"),
        ([GOOD, replace(GOOD, tokens_equal=False)], False, "pass", "within the band"),
        ([GOOD, OFF], False, "fail", "1 of 2: the first token is 2.000 nats off"),
        ([replace(GOOD, outcome="MISS", reused=0)], False, "fail", "turn 2 was no reuse (MISS)"),
        ([replace(GOOD, comparison=Comparison("unreadable"))], False, "fail", "no logprobs"),
        ([UNSTABLE, GOOD], False, "pass", "within the band"),
        ([UNSTABLE, UNSTABLE], False, "fail", "cold runs do not agree"),
    ],
)
def test_exactness(compared: list[Compared], exact: bool, status: str, said: str) -> None:
    found = judged(compared, exact=exact)
    assert found.status == status
    assert said in found.said
    assert len(found.data["compared"]) == len(compared)


def config(**model: Any) -> Any:
    head = {"name": "pair", "model": {"id": "m", "dtype": "bfloat16", **model}}
    target = {"kind": "external", "prefill": ["http://p:1"], "decode": ["http://d:1"]}
    return head | {"target": target}


def means(document: dict[str, Any], **other: Any) -> Means:
    made = mock.create_autospec(Means, instance=True)
    made.config = loads(json.dumps(document).encode(), file="pd.yaml", base=Path()).config
    made.cells, made.no_restart = {}, "pdctl did not start these engines"
    for name, value in other.items():
        setattr(made, name, value)
    return made


def endpoints(prefill: int = 1, decode: int = 1) -> Endpoints:
    made = [
        Endpoint(f"{role}-{i}", role, "h", f"http://{role}{i}")  # type: ignore[arg-type]
        for role, count in (("prefill", prefill), ("decode", decode))
        for i in range(count)
    ]
    return Endpoints("pair", tuple(made), None)


def test_every_prefill_with_every_decode_of_its_cell() -> None:
    told = {"prefill-0": "a", "prefill-1": "b", "decode-0": "a", "decode-1": "b"}
    every = [s.id for s in steps_of(means(config()), endpoints(2, 2))]
    kept = [s.id for s in steps_of(means(config(), cells=told), endpoints(2, 2))]
    assert [each for each in every if each.startswith("pair")] == [
        "pair.prefill-0.decode-0",
        "pair.prefill-0.decode-1",
        "pair.prefill-1.decode-0",
        "pair.prefill-1.decode-1",
    ]
    assert [each for each in kept if each.startswith("pair")] == [
        "pair.prefill-0.decode-0",
        "pair.prefill-1.decode-1",
    ]


def test_what_the_configuration_has_is_judged_by_the_exactness_of_these_engines() -> None:
    made = {s.id: s for s in steps_of(means(config(kv_cache_dtype="fp8")), endpoints())}
    assert made["speculative"].skip == "the configuration has no `model.speculative`"
    assert "async_scheduling: true" in made["async_scheduling"].skip
    fp8 = made["fp8_kv"]
    assert fp8.skip == ""
    told = fp8.run(60.0, {"exact": Found("fail", "1 of 4 is off")})
    assert (told.status, told.said) == ("fail", "these engines run with it: 1 of 4 is off")
    assert fp8.run(60.0, {}).status == "skip"
    assert fp8.run(60.0, {"exact": Found("skip", "no time")}).status == "skip"


def test_a_step_or_all_of_a_kind_is_left_out() -> None:
    def left_out(*skip: str) -> set[str]:
        made = steps_of(means(config(), no_restart=""), endpoints(), skip=skip)
        return {step.id for step in made if step.skip.startswith("`--skip`")}

    assert left_out("restart") == {"restart.prefill", "restart.decode"}
    assert left_out("restart.decode", "bench") == {"restart.decode", "bench"}


def hosts(*read: int | None) -> PairFacts:
    made = []
    for index, count in enumerate(read):
        device = RdmaDevice(name="rdmap0", driver="efa", read_bytes=count)
        made.append(HostFacts(f"h{index}", efa=EfaFacts(devices=(device,), others=())))
    facts = mock.create_autospec(PairFacts, instance=True)
    facts.hosts = tuple(made)
    return facts


@pytest.mark.parametrize(
    ("backend", "before", "after", "status", "said"),
    [
        ("LIBFABRIC", {"h0": 10, "h1": 0}, (5010, 0), "pass", "5000 bytes were read by RDMA"),
        ("LIBFABRIC", {"h0": 10, "h1": 0}, (10, 0), "fail", "no EFA device read a byte"),
        ("UCX", {"h0": 10, "h1": 0}, (10, 0), "skip", "does not go over LIBFABRIC"),
        ("LIBFABRIC", {}, (None, None), "skip", "no host has an EFA device"),
    ],
)
def test_efas_own_counters(
    backend: str, before: dict[str, int], after: tuple[int | None, ...], status: str, said: str
) -> None:
    document = config() | {"kv": {"backends": [backend]}}
    made = means(document, hosts=lambda: hosts(*after))
    found = efa(made, {"doctor": Found("pass", "", {"efa": before})})
    assert found.status == status
    assert said in found.said


def results(version: str | None = "0.33.0", reason: str = "continued") -> list[Result]:
    turns = [{"reason": "first_turn"}, {"reason": reason}]
    vllm = {"prefill-0": version, "decode-0": "0.33.0"}
    return [
        Result("doctor", "", Found("pass", "", {"versions": {"vllm": vllm}})),
        Result("pair.prefill-0.decode-0", "", Found("pass", "", {"turns": turns})),
    ]


def test_cells_of_the_table_that_a_proof_cannot_pass_without() -> None:
    made = means(config() | {"engine": {"plugin": "off"}}).config
    assert [(c["column"], c["value"], c["agrees"]) for c in cells(made, results())] == [
        ("remote_cached_tokens", True, True),
        ("streaming_handles", True, True),
    ]
    (counts, _) = cells(made, results(reason="not_counted_by_engine"))
    assert (counts["value"], counts["agrees"], counts["evidence_now"]) == (False, False, "read")


def test_nothing_is_measured_of_a_mixture_or_without_a_proof() -> None:
    made = means(config()).config
    assert cells(made, results("0.32.0")) == []
    assert cells(made, results(None)) == []
    assert cells(made, results()[:1]) == []
