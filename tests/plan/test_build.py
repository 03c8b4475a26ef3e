from dataclasses import replace

import pytest

from pdctl.base.process import ProcessRef, RunningProcess, Supervision
from pdctl.plan.build import build
from pdctl.plan.chosen import kept
from pdctl.plan.facts import Facts, HeldPort
from pdctl.plan.model import EndLeftovers, Install, Plan, Step, Stop
from pdctl.render.keeper import edition_of
from pdctl.state.model import DeploymentState, Intervals
from tests.plan.samples import FRESH, NAMES, RECIPE, RUNNING, config, deployment, state


def planned(facts: Facts, saved: object = None, **changes: object) -> Plan:
    known = kept(deployment().processes, saved)  # type: ignore[arg-type]
    return build(config(), deployment(known, **changes), facts, saved)  # type: ignore[arg-type]


def todo(plan: Plan) -> list[str]:
    return [step.id for step in plan.steps if step.action is not None]


def step(plan: Plan, step_id: str) -> Step:
    return next(each for each in plan.steps if each.id == step_id)


def test_a_first_up_does_everything_in_order() -> None:
    plan = planned(FRESH)
    assert [(s.id, s.changes) for s in plan.steps] == [
        ("directories", True),
        ("engine-venv", True),
        ("engine-torch", True),
        ("model", True),
        ("files", True),
        ("ports", False),
        ("prefill-0", True),
        ("decode-0", True),
        ("health", False),
        ("router-0", True),
        ("router-health", False),
        ("verify", False),
    ]
    assert todo(plan) == [s.id for s in plan.steps]
    assert all(s.what and s.why for s in plan.steps)
    assert plan.consent == ()


def test_a_second_up_has_nothing_to_do_and_says_why() -> None:
    plan = planned(RUNNING, state())
    assert todo(plan) == []
    assert not plan.changes
    assert {s.id: s.why for s in plan.steps} == {
        "directories": "they are there",
        "engine": "`cpu-1` is complete and unchanged",
        "model": "an earlier run did it",
        "files": "they are there, as rendered",
        "ports": "nothing starts",
        "prefill-0": "pid 100 runs as configured and answers",
        "decode-0": "pid 101 runs as configured and answers",
        "health": "they do",
        "router-0": "pid 102 runs as configured and answers",
        "router-health": "it does",
        "verify": "these very processes reused 77 tokens when it was done",
    }


def test_an_interrupted_installation_goes_on_where_it_stopped() -> None:
    plan = planned(replace(FRESH, pending_install=("torch",)))
    assert step(plan, "engine-venv").why == "an earlier run did it"
    assert step(plan, "engine-torch").action == Install(RECIPE.steps[1])


def test_a_changed_environment_is_made_again_from_the_start_and_asked_for() -> None:
    plan = planned(replace(RUNNING, damage="torch 2.12 instead of 2.13"), state())
    first = step(plan, "engine-venv")
    assert first.action == Install(RECIPE.steps[0], reset=True)
    assert first.why == "the environment changed: torch 2.12 instead of 2.13"
    assert plan.consent == (
        "this rebuilds the engine environment `cpu-1`, which other deployments may use",
    )


def test_one_dead_process_is_the_only_one_started() -> None:
    others = frozenset(NAMES) - {"decode-0"}
    plan = planned(Facts(alive=others, healthy=others), state())
    assert todo(plan) == ["ports", "decode-0", "health", "verify"]
    assert step(plan, "decode-0").why == "pid 101 is gone"
    assert step(plan, "health").what == "wait for decode-0 to answer"
    assert plan.starting == ("decode-0",)


def test_a_process_that_does_not_answer_yet_is_waited_for_not_restarted() -> None:
    plan = planned(replace(RUNNING, healthy=frozenset({"decode-0"})), state(proven=False))
    assert todo(plan) == ["health", "router-health", "verify"]
    assert step(plan, "health").what == "wait for prefill-0 to answer"


def test_a_changed_configuration_shows_the_difference_and_what_restarts() -> None:
    plan = planned(RUNNING, state(), changed=("--max-num-seqs", "16"))
    assert todo(plan) == [
        "drain-decode-0",
        "stop-decode-0",
        "ports-decode-0",
        "decode-0",
        "health-decode-0",
        "pairs-decode-0",
        "admit-decode-0",
        "verify",
    ]
    why = "the configuration changed: --max-num-seqs: not given → 16"
    assert step(plan, "stop-decode-0").why == why
    assert step(plan, "decode-0").why == why
    assert plan.consent == (
        f"this replaces decode-0 ({why}): "
        "nothing can be served meanwhile: requests are answered with 503",
    )


TTL_300 = '{"kv_connector_extra_config": {"decoder_kv_blocks_ttl": 300}}'


def with_ttl(live: Intervals | None, configured: float = 300.0) -> Plan:
    """The file says 300 s now, and decode was started with another TTL."""
    saved = replace(state(), live_ttl=live)
    changed = ("--kv-transfer-config", TTL_300)
    return build(
        config(kv={"decoder_ttl": configured}),
        deployment(kept(deployment().processes, saved), changed=changed),
        RUNNING,
        saved,
    )


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("systemd", "this pdctl writes another unit for it than the one it runs in"),
        ("process", "this pdctl has another supervisor than the one that keeps it running"),
    ],
)
def test_another_edition_of_what_keeps_it_running_restarts_it(how: Supervision, why: str) -> None:
    saved = state()

    def kept_by(edition: str) -> DeploymentState:
        kept_now = saved
        for record in saved.processes.values():
            kept_now = kept_now.with_process(replace(record, supervision=how, keeper=edition))
        return kept_now

    host = saved.processes["decode-0"].host
    there = replace(RUNNING, supervision={host: how})
    assert not planned(there, kept_by(edition_of(how))).changes
    # An older pdctl did not say by which.
    assert not planned(there, kept_by("")).changes
    other = planned(there, kept_by("0123456789ab"))
    assert {step(other, f"stop-{name}").why for name in NAMES} == {why}
    assert any(why in line for line in other.consent)


def test_a_process_that_is_to_be_on_another_host_is_ended_there_and_started_here() -> None:
    """Its command may be the same: a router listens on all addresses of whatever host it is on."""
    saved = state()
    there = saved.with_process(replace(saved.processes["router-0"], host="r1"))
    plan = planned(RUNNING, there)
    why = "the configuration changed: host: r1 → " + saved.processes["router-0"].host
    assert step(plan, "stop-router-0").why == step(plan, "router-0").why == why
    assert "this ends router-0, which serves now" in plan.consent


def test_a_ttl_that_is_in_force_already_restarts_nothing() -> None:
    assert todo(with_ttl(Intervals(300.0, 292.0))) == []


def test_a_ttl_that_is_not_in_force_restarts_what_has_another() -> None:
    for live in (None, Intervals(300.0, 100.0), Intervals(60.0, 52.0)):
        plan = with_ttl(live)
        assert "stop-decode-0" in todo(plan), live
        assert "decoder_kv_blocks_ttl: not given → 300" in step(plan, "decode-0").why
        assert ("ttl" in todo(plan)) == (live is not None)


def test_a_process_that_the_configuration_has_no_more_is_ended() -> None:
    saved = state()
    extra = replace(saved.processes["router-0"], name="router-1", index=1)
    facts = replace(RUNNING, alive=frozenset({*NAMES, "router-1"}))
    plan = planned(facts, saved.with_process(extra))
    assert step(plan, "stop-router-1").action == Stop("router-1")
    assert "verify" in todo(plan)  # what was proven was another set of processes


def test_an_intent_that_was_never_started_is_started() -> None:
    saved = state(proven=False)
    saved = saved.with_process(replace(saved.processes["router-0"], ref=None))
    two = frozenset({"prefill-0", "decode-0"})
    plan = planned(Facts(alive=two, healthy=two), saved)
    assert todo(plan) == ["ports", "router-0", "router-health", "verify"]
    assert step(plan, "router-0").why == "an earlier run did not get to start it"


def test_leftovers_are_ended_first_and_without_a_state_only_with_consent() -> None:
    stray = RunningProcess(ProcessRef(9, 1, "boot", "/st/demo/prefill-0"), ("python",))
    for saved, consent in (
        (None, ("this ends pid 9: they carry this deployment's mark, but it has no state",)),
        (state(), ()),
    ):
        plan = planned(replace(FRESH, leftovers=(stray,)), saved)
        assert plan.steps[0].action == EndLeftovers((stray.ref,))
        assert plan.consent == consent


def test_a_held_port_is_a_conflict_only_for_what_starts() -> None:
    held = (HeldPort("prefill-0", 8100, "pid 7 (nginx)"),)
    assert planned(replace(FRESH, held_ports=held)).conflicts == (
        "port 8100 is held by pid 7 (nginx), which prefill-0 needs",
    )
    assert planned(replace(RUNNING, held_ports=held), state()).conflicts == ()


def test_no_verify_says_so() -> None:
    plan = build(config(), deployment(), FRESH, None, verify=False)
    assert step(plan, "verify").why == "`--no-verify` was given"


def test_an_own_engine_and_model_need_nothing() -> None:
    shown = replace(deployment(), recipe=None, model_step=None, files=(), directories=())
    own = config(
        model={"id": "Qwen/Qwen3-0.6B"}, engine={"install": "existing", "python": "/e/bin/python"}
    )
    plan = build(own, shown, Facts(), None)
    assert step(plan, "engine").what == "use the vLLM of /e/bin/python"
    assert step(plan, "model").why == "the engines load it"
    assert step(plan, "files").why == "there are none"
    assert step(plan, "directories").why == "it needs none"


def test_json_has_the_shape_of_the_contract() -> None:
    value = planned(FRESH).as_dict()
    assert set(value) == {"steps", "resources", "cost"}
    assert value["resources"] == {"instances": []}
    assert value["cost"] == {"hourly_usd": 0.0, "as_of": None}
    steps = value["steps"]
    assert isinstance(steps, list)
    assert steps[0] == {
        "id": "directories",
        "what": "make the deployment's folders",
        "why": "logs, sockets and control files of this deployment, private to this user",
        "changes": True,
    }


def test_hosts_that_were_not_asked_get_the_steps_of_a_first_up() -> None:
    target = {
        "kind": "ec2",
        "region": "us-east-2",
        "zones": ["us-east-2b"],
        "prefill": {"count": 2},
    }
    far = config(target=target)
    plan = build(far, deployment(), Facts(known=False), None)
    assert todo(plan) == [s.id for s in plan.steps]
    assert plan.as_dict()["cost"] == {"hourly_usd": None, "as_of": None}


def test_engines_that_something_else_runs_are_only_used() -> None:
    target = {"kind": "external", "prefill": ["http://p"], "decode": ["http://d"]}
    whole = deployment()
    router = replace(whole, processes=whole.processes[2:], files=(), recipe=None, model_step=None)
    plan = build(config(target=target), router, Facts(known=False), None)
    assert step(plan, "engine").why == "something else runs them"
    assert step(plan, "model").why == "the engines have it"
    assert todo(plan) == ["directories", "ports", "router-0", "router-health", "verify"]
