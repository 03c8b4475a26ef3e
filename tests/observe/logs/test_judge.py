"""What lines mean after those before them."""

import pytest

from pdctl.observe.logs.event import Event
from pdctl.observe.logs.summary import Summary, Wanted
from pdctl.observe.signatures import SIGNATURES
from tests.observe.logs.helpers import events, stream, summed
from tests.observe.logs.lines import API, CORE, ERR, EXAMPLE, OURS, WARN


def example(*said: str) -> list[Event]:
    return events("".join(f"{EXAMPLE}{line}\n" for line in said), role="router")


def test_a_healthy_pair_as_pdctls_router_tells_of_it_is_no_alarm() -> None:
    # Up to this version a handle was told before the line of its own turn.
    kept = "conv=v-0: cached D blocks (remote_request_id=cmpl-1, blocks=19, tokens=2311)"
    found = ours(
        "[r1] Prefill done in 1338ms",
        kept,
        "[r1] conv=v-0: cache MISS (first_turn, reused=0, prompt=2048, retained=kept)",
        kept,
        "[r2] conv=v-0: cache HIT (continued, reused=2311, prompt=2376, retained=kept)",
        "[r3] conv=-: cache MISS (no_conversation, reused=0, prompt=18, retained=not_reusable)",
    )
    assert not summed(*found).bad
    assert [event.fields.get("kind") for event in found if event.id == "router.cache.miss"] == [
        "first_turn",
        "unnamed",
    ]


def ours(*said: str) -> list[Event]:
    return events("".join(f"{OURS}{line}\n" for line in said), role="router")


def miss(conversation: str, reason: str | None = None) -> str:
    tail = f" ({reason}, reused=0, prompt=9, retained=kept)" if reason else ""
    return f"[r] conv={conversation}: cache MISS{tail}"


NOT_KEPT = "[r] conv=a: cache MISS (first_turn, reused=0, prompt=9, retained=no)"
KEPT = "conv=a: cached D blocks (remote_request_id=x, blocks=5)"
SENT = "[r] conv=a: sending D's cached blocks to P (remote_request_id=x)"
HIT = "conv=a: cache HIT (age=0.5s)"
STALE = "conv=a: stale cache entry (age=460.0s > ttl=450.0s), discarding"
READY = "Ready: 1 prefill, 1 decode instances"


@pytest.mark.parametrize(("said", "kind", "why"), [
    ((miss("a"),), "first_turn", None),
    ((miss("b"), KEPT, miss("c")), "first_turn", None),
    ((miss(""),), "unnamed", None),
    ((miss("a"), KEPT, STALE, miss("a")), "late", None),
    ((miss("a"), miss("a")), "lost", "no_handle"),
    ((miss("a"), KEPT, HIT, SENT, miss("a")), "lost", "spent"),
    ((miss("a"), KEPT, READY, miss("a")), "lost", "restarted"),
    ((READY, miss("a")), "first_turn", None),
])  # fmt: skip
def test_a_miss_of_the_example_proxy(said: tuple[str, ...], kind: str, why: str | None) -> None:
    found = example(*said)
    summary = summed(*found)
    assert (found[-1].fields["kind"], found[-1].fields.get("why")) == (kind, why)
    assert found[-1].severity == ("degrade" if kind == "lost" else "note")
    assert summary.signatures["router.cache.lost"] == (kind == "lost")
    assert summary.bad == (kind == "lost")


@pytest.mark.parametrize(("said", "kind", "why"), [
    ((miss("a", "first_turn"),), "first_turn", None),
    ((miss("-", "no_conversation"),), "unnamed", None),
    ((miss("a", "first_turn"), miss("a", "diverged")), "meant", None),
    ((miss("a", "excluded_n"),), "meant", None),
    ((miss("a", "expired"),), "late", None),
    ((miss("a", "first_turn"), KEPT, "conv=a: handle expired", miss("a", "first_turn")),
     "late", None),
    ((miss("a", "pair_not_proven"),), "lost", "pair_not_proven"),
    ((miss("a", "first_turn"), KEPT, miss("a", "first_turn")), "lost", "given_back"),
    ((miss("a", "first_turn"), miss("a", "first_turn")), "lost", "given_back"),
    ((miss("~1f", "first_turn"), miss("~1f", "first_turn")), "first_turn", None),
    ((NOT_KEPT, miss("a", "first_turn")), "lost", "no_handle"),
])  # fmt: skip
def test_a_miss_of_pdctls_router(said: tuple[str, ...], kind: str, why: str | None) -> None:
    found = ours(*said)
    summed(*found)
    assert (found[-1].fields["kind"], found[-1].fields.get("why")) == (kind, why)


def test_conversations_of_two_routers_are_two() -> None:
    first = events(f"{EXAMPLE}{miss('a')}\n", name="r1", role="router")
    second = events(f"{EXAMPLE}{miss('a')}\n", name="r2", role="router")
    assert not summed(*first, *second).bad


def test_no_hit_at_all_is_said_when_there_were_turns_to_hit() -> None:
    few = example(*[miss("a")] * 3)
    assert "router.cache.never_hits" not in summed(*few).findings
    many = example(*[miss("a")] * 5)
    assert summed(*many).findings["router.cache.never_hits"].line == "follow_ups 4"
    assert "router.cache.never_hits" not in summed(*many, *example(HIT)).findings
    firsts = example(*(miss(str(number)) for number in range(50)))
    assert not summed(*firsts).bad


INVALID = (
    ERR + "Potentially invalid KV blocks for unrecognized request {} were retrieved by a decode "
    "worker. They may have expired.\n"
)
RELEASED = (
    WARN + "Releasing expired KV blocks for request {} which were retrieved by 0 remote worker(s) "
    "before lease expired.\n"
)


def test_an_invalid_read_alone_is_no_alarm_and_after_a_release_it_is() -> None:
    alone = summed(*events(INVALID.format("cmpl-1")))
    assert not alone.bad
    other = summed(*events(RELEASED.format("cmpl-2") + INVALID.format("cmpl-1")))
    assert not other.bad
    real = summed(*events(RELEASED.format("cmpl-1") + INVALID.format("cmpl-1")))
    assert real.findings["kv.read.after_release"].severity == "block"
    assert real.findings["kv.read.invalid"].severity == "note"
    # Another engine's release says nothing of this one's.
    apart = [*events(RELEASED.format("cmpl-1"), name="a"), *events(INVALID.format("cmpl-1"))]
    assert not summed(*apart).bad


STOPPING = (
    "(APIServer pid=1) INFO 11-29 15:30:29 [l.py:1] [shutdown] API server: shutdown triggered"
)
ENDING = "\n".join(
    f"(APIServer pid=1) ERROR 11-29 15:30:29 [async_llm.py:906] {line}"
    for line in (
        "AsyncLLM output_handler failed.", "Traceback (most recent call last):", "  File x",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See above.",
    )
)  # fmt: skip


def test_what_an_engine_says_while_it_ends_is_no_fault() -> None:
    assert not summed(*events(f"{STOPPING}\n{ENDING}\n")).bad
    assert summed(*events(f"{ENDING}\n")).findings.keys() == {"engine.dead"}
    started = "INFO:     Started server process [9]"
    assert summed(*events(f"{STOPPING}\n{started}\n{ENDING}\n")).bad


@pytest.mark.parametrize("said", ["KeyboardInterrupt: terminated", "KeyboardInterrupt"])
def test_a_server_that_is_ended_while_it_starts_is_no_fault(said: str) -> None:
    # Recorded: before it listens it says nothing of a shutdown.
    trace = f'Traceback (most recent call last):\n  File "x.py", line 3, in f\n{said}\n'
    died = f"{CORE}Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down.\n"
    assert not summed(*events(trace + died, role="decode")).bad
    other = trace.replace("KeyboardInterrupt", "KeyError")
    assert summed(*events(other, role="decode")).bad


def test_a_crash_while_an_engine_ends_is_no_fault() -> None:
    crash = "!!!!!!! Segfault encountered !!!!!!!\n"
    ending = f"{API}[shutdown] API server: shutdown triggered\n"
    assert summed(*events(crash, role="decode")).bad
    assert not summed(*events(ending + crash, role="decode")).bad


def test_eight_workers_that_say_the_same_say_it_once() -> None:
    text = "".join(
        f"(Worker_TP{rank} pid={rank}) WARNING 11-29 15:29:23 [a.py:1] Declining expired remote "
        f"read for chatcmpl-{request}-8187488a from engine e.\n"
        for request in range(3)
        for rank in range(8)
    )
    assert summed(*events(text)).signatures["kv.read.declined"] == 3
    # One worker that says it twice says it twice.
    again = text.split("\n")[0] + "\n"
    assert summed(*events(again * 2)).signatures["kv.read.declined"] == 2


def test_clocks_that_differ_are_told_and_slowness_is_not() -> None:
    router = example("[abc] conv=c: cache MISS", "[abc] Prefill done in 9ms")
    engine = "(Worker pid=1) WARNING 11-29 15:{}:{} [a.py:1] Declining expired remote read for "
    engine += "chatcmpl-abc-8187488a from engine e.\n"
    same = events(engine.format("29", "10"), name="prefill.log", role="prefill")
    assert "logs.clock_skew" not in summed(*router, *same).findings
    later = events(engine.format("30", "10"), name="prefill.log", role="prefill")
    found = summed(*router, *later).findings["logs.clock_skew"]
    assert found.line == "source prefill.log, seconds 60.0, request abc"
    assert found.severity == "note"
    # While the router still waits for prefill, any delay is one.
    waiting = example("[abc] conv=c: cache MISS")
    assert "logs.clock_skew" not in summed(*waiting, *later).findings


def test_what_is_not_wanted_is_judged_but_not_counted() -> None:
    found = example(miss("a"), KEPT, HIT, miss("a"))
    for number, event in enumerate(found):
        event.ts = float(number)
    summary = Summary()
    shown = [event.id for event, _ in summary.of(found, Wanted(since=3.0))]
    assert shown == ["router.cache.miss"]
    assert (summary.hit, summary.miss, summary.kinds) == (0, 1, {"lost": 1})
    assert [e.id for e, _ in Summary().of(example(miss("a")), Wanted(role="prefill"))] == []


METRICS = (
    "KV Transfer metrics: Num successful transfers={}, Avg xfer time (ms)={}, P90 xfer time (ms)={}"
    ", Avg post time (ms)=0, P90 post time (ms)=0, Avg MB per transfer=2.0, Throughput (MB/s)=7"
    ", Avg number of descriptors=1, Num failed transfers={}, Num KV expired reqs={}\n"
)


def test_the_summary_has_rates_percentiles_and_the_worst_first() -> None:
    found = example(miss("a"), KEPT, HIT, *(f"[r] Prefill done in {ms}ms" for ms in range(1, 101)))
    one = stream("prefill.log", "prefill")
    text = API + METRICS.format(1, 4.0, 5.0, 0, 0) + API + METRICS.format(3, 8.0, 9.0, 2, 1)
    text += RELEASED.format("cmpl-1")
    text += "RuntimeError: NIXL compatibility hash mismatch. Local: a1, Remote: b2.\n"
    text += WARN + "Declining expired remote read for chatcmpl-1-8187488a from engine e.\n" * 2
    text += "Request chatcmpl-1 failed with an internal error during generation\n"
    summary = summed(*found, *one.feed(text.encode(), last=True))
    told = summary.as_dict()["summary"]
    assert isinstance(told, dict)
    assert (told["hit"], told["miss"], told["miss_rate"]) == (1, 1, 0.5)
    assert told["prefill_ms"] == {"count": 100, "p50": 50, "p90": 90, "p99": 99}
    assert told["transfers"] == {
        "prefill": {"count": 4, "failed": 2, "expired": 1, "mb": 8.0, "avg_ms": 7.0,
                    "worst_p90_ms": 9.0},
    }  # fmt: skip
    assert [finding.signature.id for finding in summary.worst()] == [
        "nixl.compat.mismatch", "kv.read.declined", "engine.request.error", "router.cache.miss",
        "kv.lease.expired",
    ]  # fmt: skip
    assert summary.findings["engine.request.error"].follows == "kv.read.declined"


def test_what_came_later_is_no_cause() -> None:
    failed = events(CORE + "Failing 1 request(s) due to KV load failure (failure_policy=fail)\n")
    declined = events(WARN + "Declining expired remote read for r from engine e.\n")
    assert summed(*declined, *failed).findings["kv.load.failed"].follows == "kv.read.declined"
    declined[0].ts = (failed[0].ts or 0) + 60
    assert summed(*failed, *declined).findings["kv.load.failed"].follows is None


def test_the_rate_is_of_the_last_minute() -> None:
    summary = Summary()
    for ts, said in ((0.0, HIT), (50.0, miss("b")), (100.0, HIT)):
        (event,) = example(said)
        event.ts = ts
        list(summary.of([event]))
    assert summary.rate(100.0) == (1, 1)
    assert summary.rate(155.0) == (1, 0)
    assert summary.rate(500.0) == (0, 0)


def test_all_that_is_concluded_was_concluded_in_a_test() -> None:
    assert {signature.id for signature in SIGNATURES if signature.derived} == {
        "router.cache.lost", "router.cache.never_hits", "kv.read.after_release", "logs.clock_skew",
    }  # fmt: skip
