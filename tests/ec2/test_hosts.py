"""From the record to hosts that can be logged in to, and what is looked at when they start."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.command import Command
from pdctl.base.errors import (
    PdctlError,
    PermissionDeniedError,
    TemporaryError,
    UnreachableError,
    UsageError,
)
from pdctl.base.events import Event, Note
from pdctl.base.exits import ExitCode
from pdctl.config.model import Config, Ec2Target
from pdctl.deploy import ec2, reach
from pdctl.deploy.ec2hosts import _login, with_addresses
from pdctl.deploy.world import World
from pdctl.observe.status import RoleStatus, Status
from pdctl.plan.ec2 import plan_cloud
from pdctl.render.deployment import render
from pdctl.render.model import SHOWN
from pdctl.render.place import place_of
from pdctl.state.cloud import Cloud, CloudHost, CloudStore
from pdctl.targets.base import Result
from pdctl.targets.ssh.access import Login, OpenSsh, route_of
from tests.ec2.cloud import NAME, REGION, quick_clock
from tests.ec2.facts import NOW, config, facts

HOSTS = {
    name: CloudHost(
        name=name,
        role=name.partition("-")[0],  # type: ignore[arg-type]
        instance_type="p5en.48xlarge",
        id=f"i-{number}",
        private_ip=f"10.0.0.{number}",
        public_ip=f"203.0.113.{number}",
        launched_at=NOW,
    )
    for number, name in enumerate(("prefill-0", "decode-0", "router-0"), start=1)
}
CLOUD = Cloud(
    name=NAME,
    region=REGION,
    run="r1",
    created_at=NOW,
    phase="ready",
    made_key=True,
    hosts=HOSTS,
    hourly_usd=100.0,
    max_hours=8.0,
)


def login(wanted: Config, host: str = "prefill-0") -> Login:
    assert isinstance(wanted.target, Ec2Target)
    return _login(wanted.name, wanted.target, CLOUD, CLOUD.hosts[host])


def test_each_access_leads_to_the_host_its_way(tmp_path: Path) -> None:
    nat = {"instance_profile": "hosts"}
    public = login(config(tmp_path))
    assert (public.address, public.proxy, public.pin) == ("203.0.113.1", None, True)
    assert public.key_file == CloudStore(NAME).directory / "ec2-key"
    assert public.pinned == CloudStore(NAME).directory / "known_hosts"
    private = login(config(tmp_path, network={"access": "private"}, access={"jump": "me@bastion"}))
    assert (private.address, private.jump) == ("10.0.0.1", "me@bastion")
    managed = login(config(tmp_path, network={"access": "ssm"}, profile="work", **nat))
    assert managed.address == "i-1"
    assert managed.proxy == (
        "aws ssm start-session --region us-west-2 --profile work --target %h "
        "--document-name AWS-StartSSHSession --parameters portNumber=%p"
    )
    tunnel = login(config(tmp_path, network={"access": "instance-connect"}))
    assert tunnel.proxy is not None
    route = route_of(tunnel, OpenSsh(), ask=lambda *_: {"proxyjump": ["elsewhere"]})
    assert len(route.hops) == 1  # the file's way, not OpenSSH's
    assert route.host.proxy_line() == (
        "aws ec2-instance-connect open-tunnel --region us-west-2 --instance-id i-1 --remote-port 22"
    )


def test_a_host_key_is_kept_at_first_sight_only_for_hosts_that_pdctl_made(tmp_path: Path) -> None:
    wanted = config(tmp_path)
    assert isinstance(wanted.target, Ec2Target)
    adopted = replace(HOSTS["prefill-0"], made=False)
    assert _login(NAME, wanted.target, CLOUD, adopted).pin is False
    strict = config(tmp_path, access={"host_keys": "strict"})
    assert login(strict).pin is False


def test_processes_get_the_addresses_of_their_hosts(tmp_path: Path) -> None:
    wanted = config(tmp_path)
    place = place_of(wanted)
    before = render(wanted, place, with_addresses(wanted, SHOWN))
    assert before.processes[0].url == "http://<address of prefill-0>:8100"
    with pytest.raises(UsageError, match="has no hosts on EC2 yet"):
        reach.world_of(wanted)
    CloudStore(NAME).save(CLOUD)
    after = render(wanted, place, with_addresses(wanted, SHOWN))
    assert [each.url for each in after.processes] == [
        "http://10.0.0.1:8100",
        "http://10.0.0.2:8100",
        "http://10.0.0.3:8000",
    ]
    world = reach.world_of(wanted)
    assert list(world.hosts) == ["prefill-0", "decode-0", "router-0"]


# --- hosts that start ----------------------------------------------------------------------------


@dataclass
class Starting:
    """A host that shows more EFA devices at every look."""

    name: str
    efa: list[int]
    timer: str = "active"

    def run(self, command: Command, **_: Any) -> Result:
        text = " ".join(command.argv())
        if "infiniband" in text:
            count = self.efa.pop(0) if len(self.efa) > 1 else self.efa[0]
            return Result(0, f"{count}\n", "", 0.0)
        assert "pdctl-end.timer" in text
        return Result(0, f"{self.timer}\n", "", 0.0)


def arrive(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    errors: list[PdctlError | None],
    **hosts: Starting,
) -> str:
    """What was warned of."""
    wanted = config(folder)
    found = facts(wanted)
    plan = plan_cloud(wanted, found)
    looked = ec2.Looked(plan, found, (), (), (), CLOUD)
    told: list[Event] = []
    named = {name.replace("_", "-"): host for name, host in hosts.items()}
    world = World(named, told.append)  # type: ignore[arg-type]

    def connect(_: World) -> None:
        error = errors.pop(0) if len(errors) > 1 else errors[0]
        if error is not None:
            raise error

    monkeypatch.setattr(reach, "connect_all", connect)
    ec2.arrive(world, CLOUD, looked, clock=quick_clock())
    return "\n".join(each.text for each in told if isinstance(each, Note))


def test_hosts_may_take_a_while_and_refuse_a_key_at_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    errors: list[PdctlError | None] = [
        UnreachableError("no"),
        PermissionDeniedError("not yet"),
        None,
    ]
    told = arrive(monkeypatch, tmp_path, errors, prefill_0=Starting("p", [0, 8, 16]))
    assert told == ""
    errors = [PermissionDeniedError("never")]
    with pytest.raises(PermissionDeniedError, match="never"):
        arrive(monkeypatch, tmp_path, errors, prefill_0=Starting("p", [16]))
    with pytest.raises(
        TemporaryError, match="1 hosts to answer over SSH: not within 600 s"
    ) as late:
        arrive(monkeypatch, tmp_path, [UnreachableError("no")], prefill_0=Starting("p", [16]))
    assert late.value.exit_code == ExitCode.TRY_AGAIN
    assert any("allow_from" in hint for hint in late.value.hints)


def test_efa_that_does_not_appear_and_a_switch_that_is_not_there_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = arrive(
        monkeypatch,
        tmp_path,
        [None],
        prefill_0=Starting("p", [15]),
        decode_0=Starting("d", [16], timer="inactive"),
    )
    assert "prefill-0 shows 15 EFA devices, expected 16" in told
    assert "decode-0 will NOT end by itself" in told
    assert "prefill-0 will NOT" not in told


# --- what it costs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "after_h", "text"),
    [
        ({}, 2, "$100.00 an hour, $2400 a day; $200.00 since the first one started 2.0 h ago"),
        ({}, 2, "they end by themselves in 6.0 h"),
        ({"max_hours": None}, 2, "nothing ends them but `pdctl down`"),
        ({"ends_at": NOW + 4 * 3600}, 2, "they end by themselves in 1.2 h"),
        ({}, 9, "they should have ended"),
        ({"hourly_usd": None}, 1, "at a price that pdctl does not know"),
    ],
)
def test_the_cost_is_told_with_its_end(change: dict[str, Any], after_h: float, text: str) -> None:
    assert text in ec2.costs(replace(CLOUD, **change), now=NOW + after_h * 3600)


@pytest.mark.parametrize(("idle_s", "told"), [(60.0, False), (7200.0, True)])
def test_status_warns_of_hosts_that_cost_and_do_nothing(
    capsys: pytest.CaptureFixture[str], idle_s: float, told: bool
) -> None:
    from pdctl.cli import status

    CloudStore(NAME).save(CLOUD)
    role = RoleStatus("router", 0, "router-0", 1, 8000, True, "1", None, idle_s=idle_s)
    status._show_cost(Status(NAME, "ec2", (role,), 480.0, 460.0))
    said = capsys.readouterr().err
    assert "3 instances on EC2: about $100.00 an hour" in said
    assert ("nobody has asked anything for 2.0 h: `pdctl down --name demo`" in said) == told
