"""What an impatient, unlucky or careless operator does, by the real commands."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from pdctl.base.exits import ExitCode
from pdctl.deploy import ec2
from pdctl.state.cloud import CloudStore
from tests.cli.helpers import run_cli
from tests.ec2.account import ARRIVED, Account
from tests.ec2.cloud import NAME, REGION, Region
from tests.ec2.test_denied import MAKING

Hook = Callable[[], None]


def ids(account: Account) -> list[str]:
    return [each["InstanceId"] for each in account.region.running()]


def after(region: Region, operation: str, hook: Hook) -> None:
    """Once, when a call was done and before its answer is used."""
    real = region.done

    def done(asked: str, arguments: dict[str, Any], do: Callable[..., Any]) -> Any:
        answer = real(asked, arguments, do)
        if asked == operation and not arguments.get("DryRun"):
            region.done = real  # type: ignore[method-assign]
            hook()
        return answer

    region.done = done  # type: ignore[method-assign]


def lost() -> None:
    raise KeyboardInterrupt


# --- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", MAKING)
def test_a_call_whose_answer_ctrl_c_took_is_told_and_nothing_is_lost(
    account: Account, operation: str
) -> None:
    after(account.region, operation, lost)
    up = account.up()
    assert up.exit_code == ExitCode.INTERRUPTED
    assert "Traceback" not in up.stderr
    if operation == "run_instances":
        assert "a request for prefill-0, decode-0 was under way" in up.stderr
    else:
        assert [id for id in ids(account) if id not in up.stderr] == []
    down = account.run("down")
    assert down.exit_code == 0, down.stderr
    assert account.region.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_ctrl_c_waits_until_instances_are_written_down(
    account: Account, number: signal.Signals
) -> None:
    after(account.region, "run_instances", lambda: signal.raise_signal(number))
    up = account.up()
    assert up.exit_code == ExitCode.INTERRUPTED
    assert len(ids(account)) == 2
    assert [id for id in ids(account) if id not in up.stderr] == []
    assert "under way" not in up.stderr
    again = account.up()
    assert ARRIVED in again.stderr
    assert len(ids(account)) == 3


@pytest.mark.parametrize("operation", ["terminate_instances", "release_address"])
def test_an_interrupted_down_is_run_again(account: Account, operation: str) -> None:
    account.up()
    after(account.region, operation, lost)
    assert account.run("down").exit_code == ExitCode.INTERRUPTED
    shown = account.run("plan")
    assert "was begun and did not end: run `pdctl down` again" in shown.stderr
    refused = account.up()
    assert refused.exit_code == ExitCode.USAGE
    assert "`pdctl down` of `demo` was begun" in refused.stderr
    assert account.run("down").exit_code == 0
    assert account.region.left() == []


def test_ctrl_c_while_hosts_are_waited_for_keeps_and_names_them(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    account.write(capacity={"kind": "on-demand", "max_hours": 8, "on_failure": "end"})
    monkeypatch.setattr(ec2, "arrive", wait)
    up = account.up()
    assert up.exit_code == ExitCode.INTERRUPTED
    assert len(ids(account)) == 3
    (kept,) = [line for line in up.stderr.splitlines() if line.startswith("kept: ")]
    assert [id for id in ids(account) if id not in kept] == []
    assert "they end by themselves in 8.0 h" in kept


def test_another_region_in_the_file_is_told(account: Account) -> None:
    account.up()
    account.write(region="us-east-1", zones=["us-east-1a"])
    assert "are in us-west-2, and the file says us-east-1" in account.run("plan").stderr


def test_ctrl_c_while_a_failed_up_ends_its_hosts_says_that_they_cost(account: Account) -> None:
    account.write(capacity={"kind": "on-demand", "max_hours": 8, "on_failure": "end"})
    after(account.region, "terminate_instances", lost)
    up = account.up()
    assert up.exit_code == ExitCode.INTERRUPTED
    assert "IT MAY COST ON; run `pdctl down`" in up.stderr


# --- throttling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["describe_volumes", "terminate_instances"])
def test_a_down_that_is_throttled_to_the_end_says_to_run_it_again(
    account: Account, operation: str
) -> None:
    account.up()
    account.region.refuse(operation, "RequestLimitExceeded")
    down = account.run("down")
    assert down.exit_code == ExitCode.TRY_AGAIN
    assert "AWS asks to slow down" in down.stderr
    assert "run the same command again" in down.stderr
    assert account.run("down").exit_code == 0
    assert account.region.left() == []


def test_a_plan_that_is_throttled_says_what_it_does_not_know(account: Account) -> None:
    account.region.refuse("describe_images", "RequestLimitExceeded", times=9)
    shown = account.run("plan")
    assert shown.exit_code == 0
    assert "no host can be made without: the image: AWS asks to slow down" in shown.stderr
    up = account.up()
    assert up.exit_code == ExitCode.TRY_AGAIN
    assert account.region.left() == []


# --- records -------------------------------------------------------------------------------------


def test_hosts_that_another_operator_may_have_made_are_never_ended_by_a_failed_up(
    account: Account,
) -> None:
    account.write(capacity={"kind": "on-demand", "max_hours": 8, "on_failure": "keep"})
    account.up()
    before = ids(account)
    account.region.ec2.terminate_instances(InstanceIds=before[:1])
    CloudStore(NAME).path.unlink()
    account.write(capacity={"kind": "on-demand", "max_hours": 8, "on_failure": "end"})
    up = account.up()
    assert ARRIVED in up.stderr
    assert "things on EC2 carry the tags of `demo`, and there is no record of them here" in (
        up.stderr
    )
    assert set(before[1:]) < set(ids(account))
    assert len(ids(account)) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "demo"}', "\x00"])
def test_a_damaged_record_keeps_nobody_from_ending_hosts(account: Account, text: str) -> None:
    account.up()
    CloudStore(NAME).path.write_text(text)
    listed = account.run("orphans", "--json")
    assert listed.exit_code == ExitCode.BAD_ANSWER
    assert [each for each in listed.json["things"] if each["known"]] == []
    refused = account.run("down")
    assert refused.exit_code == ExitCode.BAD_ANSWER
    assert "--forget-damaged-state" in refused.stderr
    named = ("--name", NAME, "--region", REGION)
    down = run_cli("down", *named, "--forget-damaged-state")
    assert down.exit_code == 0, down.stderr
    assert "kept the record of its hosts as" in down.stderr
    assert account.region.left() == []
    (kept,) = CloudStore(NAME).directory.glob("cloud.json.damaged-*")
    assert kept.read_text() == text


# --- files that changed --------------------------------------------------------------------------


def test_another_type_in_the_file_is_not_taken_for_the_hosts_that_are_there(
    account: Account,
) -> None:
    account.up()
    account.write(instance_type="c7i.4xlarge")
    assert "is a `c7i.2xlarge`, and the file says `c7i.4xlarge`" in account.run("plan").stderr
    up = account.up()
    assert up.exit_code == ExitCode.CONFIG
    assert "`pdctl down` first, or put the type back" in up.stderr


def test_an_end_that_comes_before_engines_have_started_is_warned_of(account: Account) -> None:
    account.write(capacity={"kind": "on-demand", "max_hours": 0.05})
    assert "the hosts end 6 minutes after they start" in account.run("plan").stderr


def test_orphans_of_another_profile_are_ended_with_it(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.up()
    CloudStore(NAME).path.unlink()
    lost = run_cli("orphans", "--region", REGION, "--profile", "my work")
    assert f"AWS_PROFILE='my work' pdctl down --name {NAME} --region {REGION}" in lost.stderr
