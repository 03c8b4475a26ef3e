"""Every check there is: passes on a healthy pair, and finds what it is for."""

from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.base.configfacts import ConfigFacts
from pdctl.base.durations import format_duration
from pdctl.base.facts import HostFacts, PairFacts, PairState, TwoTurnFacts
from pdctl.base.runfacts import StartLine
from pdctl.doctor.checks import CHECKS
from pdctl.doctor.rows.config import topic_of
from pdctl.doctor.table import Check, Finding, Fix, run_checks
from pdctl.engine.example import LIMITS
from pdctl.observe.settings import facts_of_error
from pdctl.render.check import load_checked
from tests.doctor import cases
from tests.doctor.cases import BAD, GOOD, NOW, both, decode, logged, logs, process, router

OTHERS = ("host.", "aws.")
MINE = [each for each in CHECKS if not each.id.startswith(OTHERS) or each.id == "host.reach"]
TESTS = Path(__file__).parent


def found(facts: PairFacts, id: str) -> list[Finding]:
    return [finding for finding in run_checks(facts, CHECKS) if finding.id == id]


def worst(facts: PairFacts, id: str) -> Finding:
    return found(facts, id)[0]


def bad(facts: PairFacts) -> list[str]:
    return [f.id for f in run_checks(facts, CHECKS) if f.status in ("fail", "warn")]


def test_a_healthy_pair_has_nothing_to_be_done() -> None:
    assert bad(GOOD) == []


@pytest.mark.parametrize("check", MINE, ids=lambda check: check.id)
def test_it_passes_where_it_should_and_says_on_what_ground(check: Check) -> None:
    findings = found(GOOD, check.id)
    assert "pass" in {finding.status for finding in findings}
    assert all(finding.evidence for finding in findings)


@pytest.mark.parametrize("check", MINE, ids=lambda check: check.id)
def test_it_finds_what_it_is_for(check: Check) -> None:
    finding = worst(BAD[check.id](GOOD), check.id)
    assert finding.status in ("fail", "warn")
    assert finding.evidence
    assert finding.fix is not None


@pytest.mark.parametrize("check", MINE, ids=lambda check: check.id)
def test_of_nothing_known_it_says_nothing_and_never_crashes(check: Check) -> None:
    nothing = PairFacts(name="none", taken_at=0.0)
    assert {finding.status for finding in found(nothing, check.id)} <= {"skip"}


def test_checks_of_others_have_tests_of_their_own() -> None:
    said = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    others = [check.id for check in CHECKS if check not in MINE]
    assert [id for id in others if f'"{id}"' not in said] == []


def test_every_row_is_complete() -> None:
    ids = [row.id for row in CHECKS]
    assert len(set(ids)) == len(ids)
    for row in CHECKS:
        assert "." in row.id
        assert row.title
        assert not row.title.endswith(".")
        assert row.meaning.endswith(".")
        assert row.fix.text
        assert not row.fix.text.endswith(".")
        assert set(row.needs) <= set(ids[: ids.index(row.id)])
        assert row.docs == f"docs/checks.md#{row.id.replace('.', '')}"


# --- causes come first -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (
            both(
                BAD["engine.bidirectional"],
                BAD["runtime.two_turn"],
                BAD["router.pair"],
                logs(logged("router.pair.unproven", "router-0")),
            ),
            "engine.bidirectional",
        ),
        (both(BAD["router.ttl"], BAD["runtime.late_reads"]), "router.ttl"),
        (
            both(
                BAD["runtime.late_reads"],
                logs(
                    logged("kv.read.declined"),
                    logged("kv.load.failed", follows="kv.read.declined"),
                    logged("router.cache.lost", "router-0"),
                ),
            ),
            "runtime.late_reads",
        ),
        (cases.RESTARTED, "runtime.restarted"),
        (
            both(BAD["engine.room"], logs(logged("kv.full", "decode-0"))),
            "engine.room",
        ),
        (both(BAD["engine.side_channel"], BAD["runtime.two_turn"]), "engine.side_channel"),
        (
            both(router(ours=False, example=True, ttl=None), cases.decode_process(ttl_file=60.0)),
            "router.ttl",
        ),
        (
            both(BAD["engine.id"], logs(logged("nixl.peer.disconnected", "prefill-0"))),
            "engine.id",
        ),
    ],
)
def test_the_first_that_fails_is_the_cause(change: cases.Change, first: str) -> None:
    failing = [f.id for f in run_checks(change(GOOD), CHECKS) if f.status == "fail"]
    assert failing[0] == first


def test_one_dead_host_is_one_failure_and_the_rest_names_it() -> None:
    facts = replace(GOOD, hosts=(HostFacts("a"), HostFacts("b", "no answer within 10 s")))
    findings = run_checks(facts, CHECKS)
    assert [(f.id, f.target) for f in findings if f.status == "fail"] == [("host.reach", "b")]
    waiting = [f for f in findings if f.evidence == ("needs host.reach on b",)]
    assert len(waiting) > 20
    assert {f.status for f in waiting} == {"skip"}


def test_a_router_on_a_dead_host_is_no_second_failure() -> None:
    dead = replace(GOOD, hosts=(HostFacts("a", "no answer"), HostFacts("b")))
    facts = router(error="no answer")(dead)
    assert [f.id for f in run_checks(facts, CHECKS) if f.status == "fail"] == ["host.reach"]
    assert worst(facts, "router.reach").evidence == ("needs host.reach on a",)
    elsewhere = router(error="no answer", host="")(dead)
    assert worst(elsewhere, "router.reach").status == "fail"


# --- what single checks say --------------------------------------------------------------------


def test_the_ttl_that_counts_is_the_one_in_force() -> None:
    said = worst(BAD["router.ttl"](GOOD), "router.ttl").evidence
    assert said[0] == "decode-0 keeps blocks 30s (set while it runs), the router offers them 7m52s"
    off = cases.decode_process(ttl_file=30.0, levers={"live_ttl": "not-applicable"})
    assert worst(off(GOOD), "router.ttl").status == "pass"
    silent = replace(GOOD, processes=())
    assert worst(silent, "router.ttl").evidence[0].startswith("decode keeps blocks 8m (as conf")
    assert worst(router(ttl=473.0)(silent), "router.ttl").status == "fail"


def test_the_example_proxy_is_flagged_with_each_of_its_limits_and_its_own_ttl() -> None:
    facts = router(ours=False, example=True, ttl=None)(GOOD)
    finding = worst(facts, "router.kind")
    assert (finding.status, finding.severity) == ("warn", "degrade")
    assert len(finding.evidence) == len(LIMITS)
    assert worst(facts, "router.ttl").status == "pass"
    late = worst(cases.decode_process(ttl_file=60.0)(facts), "router.ttl")
    assert "the router offers them 7m30s" in late.evidence[0]
    assert late.fix is not None
    assert "router.kind: pdctl" in late.fix.text
    assert worst(router(ours=False)(GOOD), "router.kind").status == "skip"


def test_a_read_that_failed_before_decode_was_started_again_is_not_its_fault() -> None:
    early = logs(logged("nixl.transfer.failed", last=NOW - 300))
    facts = both(cases.decode_metrics(process_start=NOW - 60), early)(GOOD)
    assert worst(facts, "runtime.restarted").status == "pass"
    assert worst(facts, "runtime.transfers").status == "fail"
    assert "runtime.transfers" not in bad(cases.RESTARTED(GOOD))


def test_a_restart_that_the_router_noticed_is_worth_knowing_and_no_more() -> None:
    facts = logs(logged("router.engine.restarted", "router-0"))(GOOD)
    finding = worst(facts, "runtime.restarted")
    assert (finding.status, finding.severity) == ("warn", "note")
    assert bad(facts) == ["runtime.restarted"]


def test_what_runs_shows_a_restart_by_the_engines_own_word() -> None:
    evidence = worst(cases.RESTARTED(GOOD), "runtime.restarted").evidence
    assert "decode-0 was started again at" in evidence[0]
    assert "2 × blocks could not be read from the other engine, in prefill-0" in evidence[1]
    assert f"{format_duration(30)} ago" in evidence[1]


def test_a_flag_is_read_from_the_log_where_no_process_shows_it() -> None:
    start = StartLine(NOW, None, {"bidirectional_kv_xfer": "false", "kv_role": "kv_consumer"})
    other = process("decode", "b", running={}, starts=(start,), engine_id=None)
    facts = replace(GOOD, processes=(process("prefill", "a"), other))
    assert worst(facts, "engine.bidirectional").evidence == (
        "prefill-0 runs with `bidirectional_kv_xfer` on",
        "decode-0 runs with `bidirectional_kv_xfer` off",
    )
    unknown = replace(other, starts=())
    skipped = replace(GOOD, processes=(unknown,))
    assert worst(skipped, "engine.bidirectional").status == "skip"


def test_an_environment_that_cannot_be_seen_is_no_drift() -> None:
    unseen = cases.decode_process(wanted_env={"A": "1"})
    assert "engine.drift" not in bad(unseen(GOOD))
    other = cases.decode_process(env={"A": "2"}, wanted_env={"A": "1"})
    (said,) = worst(other(GOOD), "engine.drift").evidence
    assert said == "A: 2 → 1 (running → configured)"


def test_a_key_that_vllm_would_ignore_is_named_with_what_was_meant() -> None:
    (said,) = worst(BAD["engine.keys"](GOOD), "engine.keys").evidence
    assert said.startswith("`remote_pull_threshold` is not a key of any vLLM release; did you mean")
    old = both(decode(version="0.21.0"), cases.decode_process())(GOOD)
    assert worst(old, "engine.keys").evidence == (
        "`decoder_kv_blocks_ttl` is not read by vLLM 0.21.0, though by other releases",
    )


def test_reuse_that_is_off_on_purpose_is_a_warning_and_no_failure() -> None:
    key = "--kv-transfer-config kv_connector_extra_config.bidirectional_kv_xfer"
    off = tuple(
        process(role, host, running=cases.running(role, **{key: "false"}))
        for role, host in (("prefill", "a"), ("decode", "b"))
    )
    facts = replace(cases.settings(bidirectional=False)(GOOD), processes=off, two_turn=None)
    failing = [f.id for f in run_checks(facts, CHECKS) if f.status == "fail"]
    assert failing == []
    assert "config.bidirectional" in bad(facts)


def test_a_busy_engine_is_a_warning_one_without_room_a_failure() -> None:
    busy = cases.decode_metrics(kv_usage=0.9, waiting=3, running=8)
    assert worst(busy(GOOD), "engine.room").status == "warn"
    assert worst(BAD["engine.room"](GOOD), "engine.room").status == "fail"
    assert worst(cases.decode_metrics(kv_usage=0.2, waiting=1)(GOOD), "engine.room").status == (
        "pass"
    )


def test_counters_speak_only_where_there_are_no_logs_and_only_warn() -> None:
    counted = both(
        cases.decode_metrics(nixl_after_expiry=3, nixl_failed=2),
    )(GOOD)
    assert "runtime.late_reads" not in bad(counted)
    alone = replace(counted, logs=None)
    assert worst(alone, "runtime.late_reads").status == "warn"
    assert worst(alone, "runtime.transfers").status == "skip"  # a restart cannot be ruled out


def test_misses_are_a_fault_only_when_several_turns_should_have_been_reused() -> None:
    def counted(**reasons: float) -> str:
        named = {f"MISS {reason}": count for reason, count in reasons.items()}
        metrics = cases.RouterMetrics(reasons=named)
        return worst(router(metrics=metrics)(GOOD), "runtime.misses").status

    assert counted(first_turn=500) == "pass"
    assert counted(first_turn=5, expired=9, excluded_images=4) == "pass"
    assert counted(pair_not_proven=2) == "pass"
    assert counted(pair_not_proven=3) == "fail"


def test_each_cause_in_the_logs_is_a_finding_with_its_own_fix() -> None:
    facts = logs(
        logged("gpu.oom", "decode-0"),
        logged("router.keys.broken", "router-0"),
        logged("engine.dead", follows="gpu.oom"),
        logged("kv.lease.expired"),
    )(GOOD)
    told = {f.target: (f.status, f.severity) for f in found(facts, "logs.signature")}
    assert told == {"gpu.oom": ("fail", "block"), "router.keys.broken": ("warn", "degrade")}
    first = worst(facts, "logs.signature")
    assert first.evidence[0].startswith("2 × the GPU's memory is full, in decode-0 (1), last at ")
    assert first.evidence[1] == "the line itself"


def test_requests_without_a_conversation_are_no_fault() -> None:
    facts = logs(logged("router.conversation.unnamed", "router-0"))(GOOD)
    assert worst(facts, "logs.signature").status == "pass"


def test_an_engine_that_was_down_and_answers_again_is_worth_knowing() -> None:
    was = logs(logged("router.engine.down", "router-0"))
    finding = worst(was(GOOD), "logs.signature")
    assert (finding.status, finding.severity) == ("warn", "note")
    assert finding.evidence[-1] == "all engines answer now"
    still = both(was, decode(error="refused"))(GOOD)
    assert worst(still, "logs.signature").severity == "degrade"


def test_nothing_is_told_twice() -> None:
    facts = BAD["runtime.late_reads"](GOOD)
    assert bad(facts) == ["runtime.late_reads"]


def test_secrets_do_not_get_into_evidence() -> None:
    error = "no answer from redis://user:hunter22@store:6379, Authorization: Bearer abcdef123456"
    (said,) = worst(decode(error=error)(GOOD), "engine.health").evidence
    assert "hunter22" not in said
    assert "abcdef123456" not in said


def test_an_engine_that_is_down() -> None:
    finding = worst(BAD["engine.health"](GOOD), "engine.health")
    assert (finding.target, finding.status) == ("decode-0", "fail")
    assert finding.evidence == ("http://b:2: refused",)
    gone = both(decode(error="refused"), cases.decode_process(alive=False))(GOOD)
    assert worst(gone, "engine.health").evidence[0] == "pid 7 is gone"


def test_pairs_out_of_use() -> None:
    good, off = PairState("http://a:1", "http://b:2", True), BAD["router.pair"](GOOD).router
    assert off is not None
    assert worst(BAD["router.pair"](GOOD), "router.pair").status == "fail"
    some = router(pairs=(good, *off.pairs))(GOOD)
    assert worst(some, "router.pair").status == "warn"
    assert worst(router(pairs=())(GOOD), "router.pair").status == "fail"


def test_a_proof_that_failed_brings_its_own_fix() -> None:
    proof = TwoTurnFacts(False, 0, 300, 0, None, "reused nothing", "decode", ("turn it on",))
    finding = worst(replace(GOOD, two_turn=proof), "runtime.two_turn")
    assert finding.evidence == ("reused nothing",)
    assert finding.fix == Fix("turn it on")
    unrun = replace(GOOD, two_turn=None, no_proof="`--no-proof` was given")
    assert worst(unrun, "runtime.two_turn").evidence == (
        "the two-turn proof was not run: `--no-proof` was given",
    )


# --- the configuration's own rules -------------------------------------------------------------


def config_of(tmp_path: Path, text: str) -> ConfigFacts:
    file = tmp_path / "pd.yaml"
    base = "name: x\nmodel: {id: pdctl/tiny-random}\nengine: {install: cpu}\ntarget: {kind: local}"
    file.write_text(f"{base}\n{text}")
    with pytest.raises(Exception, match="problem") as caught:
        load_checked(file)
    return facts_of_error(file, caught.value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("kv: {recompute_treshold: 3}", "config.keys"),
        ("kv: {decoder_ttl: 5}", "config.ttl"),
        ("router: {ttl: 479}", "config.ttl"),
        ("kv: {lease_duration: 1}", "config.ttl"),
        ("kv: {load_failure_policy: recompute}", "config.failure_policy"),
        ("kv: {buffer_device: cuda}", "config.buffer_device"),
        ("kv: {backends: [LIBFABRIC]}", "config.backends"),
        (
            "prefill: {tensor_parallel_size: 3}\ndecode: {tensor_parallel_size: 2}",
            "config.parallel",
        ),
        ("decode: {extra_args: [-pcp, '2']}", "config.parallel"),
        ("decode: {extra_args: [--kv-transfer-config, '{}']}", "config.connector"),
        ("decode: {extra_args: [--block-size, '16']}", "config.equal"),
        ("decode: {extra_args: [--tokenizer, x]}", "config.equal"),
        ("decode: {env: {VLLM_KV_CACHE_LAYOUT: HND}}", "config.equal"),
        ("router: {replicas: 2}", "config.valid"),
    ],
)
def test_the_rules_that_commands_load_by_are_told_by_topic(
    tmp_path: Path, text: str, row: str
) -> None:
    facts = config_of(tmp_path, text)
    assert row in {topic_of(each) for each in facts.problems}
    finding = worst(replace(GOOD, config=facts), row)
    assert finding.status == "fail"
    assert "line" in finding.evidence[0]


def test_a_version_that_is_too_old(tmp_path: Path) -> None:
    file = tmp_path / "pd.yaml"
    file.write_text("name: x\nmodel: {id: m/m}\ntarget: {kind: local}\nengine: {vllm: '0.24.0'}\n")
    with pytest.raises(Exception, match="problem") as caught:
        load_checked(file)
    facts = facts_of_error(file, caught.value)  # type: ignore[arg-type]
    assert worst(replace(GOOD, config=facts), "config.version").status == "fail"


def test_no_file_at_all_is_no_fault() -> None:
    facts = PairFacts("none", 0.0, config=ConfigFacts("pd.yaml", missing=True))
    findings = run_checks(facts, CHECKS)
    assert {f.status for f in findings} == {"skip"}
    assert "pdctl init" in worst(facts, "config.file").evidence[0]
