"""The exact request for instances, held against EC2's service model, and its illegal cousins."""

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from pdctl.config.model import Ec2Target
from pdctl.plan.ec2 import CloudPlan, plan_cloud
from pdctl.plan.ec2request import Request, client_token, run_request, wrong_request
from pdctl.render.place import place_of
from pdctl.render.supervise import report_path, supervisor_script
from pdctl.render.user_data import user_data
from pdctl.targets.ec2 import Ec2
from tests.ec2.cloud import REGION
from tests.ec2.facts import AMI, NOW, ZONE, config, facts, reservation, type_named
from tests.targets.programs import wait_until

BLOCK = {"kind": "capacity-block", "reservation_id": "cr-0123456789abcdef0", "max_hours": 4}
ODCR = {**BLOCK, "kind": "odcr"}
SPOT = {"kind": "spot"}


def planned(folder: Path, **target: Any) -> CloudPlan:
    wanted = config(folder, key_name="mine", **target)
    kind = "capacity-block" if target.get("capacity") == BLOCK else "default"
    return plan_cloud(wanted, facts(wanted, reservation=reservation(kind=kind)))


def request(plan: CloudPlan, number: int = 0) -> Request:
    launch = plan.launches[number]
    return run_request(
        plan,
        launch,
        zone=ZONE,
        subnet="subnet-1",
        group="sg-1",
        key_name="mine",
        run="r1",
        token=client_token("r1", launch, ZONE, 0),
        user_data="#!/bin/sh\n",
    )


def expected(**more: Any) -> Request:
    """What the User Guide's layout and a p5en pair come to, written out."""
    nic = {"SubnetId": "subnet-1", "Groups": ["sg-1"], "DeleteOnTermination": True}
    tags = [
        {"Key": "pdctl:deployment", "Value": "demo"},
        {"Key": "pdctl:made-by", "Value": "r1"},
        {"Key": "Name", "Value": "pdctl demo"},
        {"Key": "pdctl:launch", "Value": "engines-p5en-48xlarge"},
    ]
    kinds = ("instance", "volume", "network-interface")
    places = [(0, 0, "interface"), (0, 1, "efa-only"), *((n, 0, "efa-only") for n in range(1, 16))]
    return {
        "ImageId": AMI,
        "InstanceType": "p5en.48xlarge",
        "MinCount": 2,
        "MaxCount": 2,
        "ClientToken": more.pop("ClientToken"),
        "KeyName": "mine",
        "Placement": {"AvailabilityZone": ZONE, "Tenancy": "default"},
        "NetworkInterfaces": [
            {**nic, "NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": kind}
            for card, device, kind in places
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {
                    "VolumeSize": 500,
                    "VolumeType": "gp3",
                    "Iops": 6000,
                    "Throughput": 500,
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 2,
        },
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": more.pop("UserData"),
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in kinds],
        **more,
    }


TARGET = {"CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}}
MARKETS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"kind": "on-demand"}, {}),
    (ODCR, {"CapacityReservationSpecification": TARGET}),
    (
        BLOCK,
        {
            "CapacityReservationSpecification": TARGET,
            "InstanceMarketOptions": {"MarketType": "capacity-block"},
        },
    ),
    (
        SPOT,
        {
            "InstanceMarketOptions": {
                "MarketType": "spot",
                "SpotOptions": {
                    "SpotInstanceType": "one-time",
                    "InstanceInterruptionBehavior": "terminate",
                },
            }
        },
    ),
]


@pytest.mark.parametrize(("capacity", "more"), MARKETS, ids=lambda v: str(v.get("kind", "")))
def test_instances_are_asked_for_exactly_so(
    tmp_path: Path, capacity: dict[str, Any], more: dict[str, Any]
) -> None:
    plan = planned(tmp_path, capacity=capacity)
    made = request(plan)
    client = boto3.client(
        "ec2", region_name=REGION, aws_access_key_id="x", aws_secret_access_key="y"
    )
    with Stubber(client) as stubber:
        wanted = expected(ClientToken=made["ClientToken"], UserData=made["UserData"], **more)
        stubber.add_response("run_instances", {"Instances": []}, wanted)
        Ec2(REGION, clients=lambda _: client).ask("run_instances", **made)
        stubber.assert_no_pending_responses()
    assert list(wrong_request(made, type_named("p5en.48xlarge"))) == []


def test_a_router_is_small_and_on_demand_whatever_the_engines_are(tmp_path: Path) -> None:
    made = request(planned(tmp_path, capacity=BLOCK), 1)
    assert "InstanceMarketOptions" not in made
    assert "CapacityReservationSpecification" not in made
    assert [nic["InterfaceType"] for nic in made["NetworkInterfaces"]] == ["interface"]


@pytest.mark.parametrize(
    ("kind", "interfaces", "efa", "first"),
    [
        ("p5en.48xlarge", 17, 16, "efa-only"),
        ("p6-b300.48xlarge", 17, 16, None),
        ("p5.48xlarge", 33, 32, "efa-only"),
        ("p6-b200.48xlarge", 9, 8, "efa-only"),
        ("g6e.48xlarge", 5, 4, "efa-only"),
        ("p4d.24xlarge", 5, 4, "efa-only"),
    ],
)
def test_the_layout_of_each_type_is_legal(
    tmp_path: Path, kind: str, interfaces: int, efa: int, first: str | None
) -> None:
    made = request(planned(tmp_path, instance_type=kind))
    nics = made["NetworkInterfaces"]
    assert len(nics) == interfaces
    assert sum(each["InterfaceType"] == "efa-only" for each in nics) == efa
    on_first = [n["InterfaceType"] for n in nics if n["NetworkCardIndex"] == 0][1:]
    assert on_first == ([first] if first else [])
    assert list(wrong_request(made, type_named(kind))) == []


def nic(number: int, **change: Any) -> Callable[[Request], None]:
    return lambda made: made["NetworkInterfaces"][number].update(change)


def put(key: str, value: Any) -> Callable[[Request], None]:
    return lambda made: made.__setitem__(key, value)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (put("NetworkInterfaces", []), "no network interface"),
        (nic(0, InterfaceType="efa-only"), "the first interface is efa-only"),
        (nic(0, DeviceIndex=2), "there is no first interface"),
        (
            nic(0, AssociatePublicIpAddress=True),
            "no public address is given to a host with several",
        ),
        (nic(1, PrivateIpAddress="10.0.0.9"), "an efa-only interface has no address"),
        (nic(1, Ipv6AddressCount=1), "an efa-only interface has no address"),
        (nic(2, NetworkCardIndex=0, DeviceIndex=2), "card 0 has 2 EFA interfaces"),
        (nic(2, DeviceIndex=4), "device 4 on card 1, which takes 4 interfaces"),
        (nic(2, NetworkCardIndex=99), "has no card 99"),
        (nic(2, NetworkCardIndex=2), "card 2 device 0 is there 2 times"),
        (nic(2, DeleteOnTermination=False), "the interface would outlive the instance"),
        (put("SubnetId", "subnet-1"), "`SubnetId` belongs into the interfaces"),
        (put("ClientToken", "x" * 65), "the client token has 65 characters"),
        (
            put("InstanceMarketOptions", {"MarketType": "capacity-block"}),
            "a capacity block has to be named",
        ),
        (
            lambda made: made.update(
                CapacityReservationSpecification=TARGET,
                Placement={"GroupName": "cluster"},
            ),
            "a placement group together with a reservation",
        ),
        (
            lambda made: made.update(
                CapacityReservationSpecification=TARGET,
                InstanceMarketOptions={"MarketType": "spot"},
            ),
            "a spot instance cannot run in a reservation",
        ),
        (put("MetadataOptions", {"HttpTokens": "optional"}), "IMDSv1"),
        (
            lambda made: made["BlockDeviceMappings"][0]["Ebs"].update(Encrypted=False),
            "is not encrypted",
        ),
        (
            lambda made: made["BlockDeviceMappings"][0]["Ebs"].pop("DeleteOnTermination"),
            "would outlive the instance",
        ),
    ],
)
def test_what_ec2_would_refuse_or_get_wrong_is_found(
    tmp_path: Path, spoil: Callable[[Request], None], text: str
) -> None:
    made = copy.deepcopy(request(planned(tmp_path)))
    spoil(made)
    assert any(text in line for line in wrong_request(made, type_named("p5en.48xlarge")))


def test_efa_on_the_first_card_of_a_p6_b300_is_found(tmp_path: Path) -> None:
    made = copy.deepcopy(request(planned(tmp_path, instance_type="p6-b300.48xlarge")))
    made["NetworkInterfaces"][1] |= {"NetworkCardIndex": 0, "DeviceIndex": 1}
    told = list(wrong_request(made, type_named("p6-b300.48xlarge")))
    assert any("card 0 of p6-b300.48xlarge takes no efa-only" in line for line in told)


def test_the_same_request_has_the_same_token_and_no_other_has(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    engines, routers = plan.launches
    token = client_token("r1", engines, ZONE, 0)
    assert token == client_token("r1", engines, ZONE, 0)
    fewer = replace(engines, hosts=engines.hosts[:1])
    others = {
        client_token("r2", engines, ZONE, 0),
        client_token("r1", routers, ZONE, 0),
        client_token("r1", engines, "us-west-2a", 0),
        client_token("r1", engines, ZONE, 1),
        client_token("r1", fewer, ZONE, 0),
    }
    assert token not in others
    assert len(others) == 5
    assert len(token) <= 64


# --- the switch that ends a host -----------------------------------------------------------------


def script(folder: Path, *, ends_at: float | None = None, **capacity: Any) -> str:
    target = config(folder, capacity={"kind": "on-demand", **capacity}).target
    assert isinstance(target, Ec2Target)
    return user_data("demo", target, ends_at=ends_at)


def run_script(text: str, folder: Path) -> tuple[int, str]:
    """Run it with its folders and programs replaced; gives status and the timer it wrote."""
    units = folder / "units"
    units.mkdir()
    bin_ = folder / "bin"
    bin_.mkdir()
    for name in ("systemctl", "install"):
        (bin_ / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/ran\n')
        (bin_ / name).chmod(0o755)
    text = text.replace("/etc/systemd/system", str(units))
    text = text.replace("/usr/local/sbin", str(bin_))
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": f"{bin_}:/usr/bin:/bin"},
        capture_output=True,
        timeout=20,
        check=False,
    )
    timer = units / "pdctl-end.timer"
    return done.returncode, timer.read_text() if timer.exists() else ""


def minutes_left(timer: str) -> float:
    import time
    from datetime import UTC, datetime

    line = next(line for line in timer.splitlines() if line.startswith("OnCalendar="))
    at = datetime.strptime(line, "OnCalendar=%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    return (at.timestamp() - time.time()) / 60


def test_a_host_ends_by_itself_after_max_hours(tmp_path: Path) -> None:
    status, timer = run_script(script(tmp_path, max_hours=2), tmp_path)
    assert status == 0
    assert 113 < minutes_left(timer) < 117  # five minutes to finish what it is at
    assert "Persistent=true" in timer
    ran = (tmp_path / "ran").read_text()
    assert "systemctl enable --now pdctl-end.timer" in ran
    assert "install -d -m 755 -o ubuntu -g ubuntu /opt/pdctl" in ran
    service = (tmp_path / "units" / "pdctl-end.service").read_text()
    assert f"ExecStart=-{tmp_path}/bin/pdctl-drain\nExecStart=/sbin/shutdown -h +5" in service


def test_before_the_end_routers_finish_under_units_and_under_the_supervisor(
    tmp_path: Path,
) -> None:
    """The very script of the host, with a real supervisor that is not to start it again."""
    wanted = config(tmp_path, base_dir=str(tmp_path / "base"))
    place, target = place_of(wanted), wanted.target
    assert isinstance(target, Ec2Target)
    assert target.capacity.max_hours is not None
    run_script(user_data(wanted.name, target), tmp_path)
    (tmp_path / "supervise.py").write_bytes(supervisor_script())

    def supervised(name: str, report: str) -> "subprocess.Popen[bytes]":
        done = tmp_path / f"{name}.done"
        words = (
            f"trap 'echo > {done}; exit 0' TERM; echo > {done}.ready; while :; do sleep 0.05; done"
        )
        argv = [
            *(sys.executable, "-I", "-S", str(tmp_path / "supervise.py"), "--name", name),
            *("--report", report, "--", "sh", "-c", words),
        ]
        Path(report).parent.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL)

    other = str(tmp_path / "base" / "deployments" / "another" / "supervised" / "router-0.json")
    running = [
        supervised("router-0", str(report_path(place, "router-0"))),
        supervised("prefill-0", str(report_path(place, "prefill-0"))),
        supervised("router-9", other),
    ]
    try:
        for name in ("router-0", "prefill-0", "router-9"):
            wait_until(lambda n=name: (tmp_path / f"{n}.done.ready").exists())  # type: ignore[misc]
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        subprocess.run(
            [tmp_path / "bin" / "pdctl-drain"], env={"PATH": path}, timeout=20, check=True
        )
        assert running[0].wait(10) == 0
        assert (tmp_path / "router-0.done").exists()
        assert [each.poll() for each in running[1:]] == [None, None]
        stopped = f"systemctl stop --no-block pdctl-{wanted.name}-router-*.service"
        assert stopped in (tmp_path / "ran").read_text()
    finally:
        for each in running:
            each.terminate()
            each.wait(10)


@pytest.mark.parametrize(("hours", "block_in", "ends_in"), [(8, 3600, 55), (0.5, 7200, 25)])
def test_whichever_end_comes_first_counts(
    tmp_path: Path, hours: float, block_in: float, ends_in: float
) -> None:
    import time

    text = script(tmp_path, max_hours=hours, ends_at=time.time() + block_in)
    _, timer = run_script(text, tmp_path)
    assert ends_in - 2 < minutes_left(timer) < ends_in + 2


def test_without_an_end_there_is_no_timer(tmp_path: Path) -> None:
    status, timer = run_script(script(tmp_path), tmp_path)
    assert (status, timer) == (0, "")


def test_the_end_of_a_block_alone_sets_it(tmp_path: Path) -> None:
    assert "block_end='2026-11-18" in script(tmp_path, ends_at=NOW)
