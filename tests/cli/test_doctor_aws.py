"""`pdctl doctor` on an EC2 target: EC2 is asked once, and only when it is to be."""

from pathlib import Path

import pytest

from pdctl.base.awsfacts import AwsFacts, AwsWant
from pdctl.observe import examine
from pdctl.observe.aws import facts_of
from pdctl.targets.ec2_read import Ec2Answers
from tests.cli.helpers import run_cli
from tests.observe import ec2

EXAMPLE = Path(__file__).parents[2] / "examples" / "p5en-1p1d.yaml"

Asked = list[tuple[AwsWant, str | None]]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """EC2 answers as for two healthy hosts whose group lets nothing through."""
    found: Asked = []

    def read(want: AwsWant, profile: str | None = None) -> AwsFacts:
        found.append((want, profile))
        closed = {**ec2.self_rules(), "IpPermissions": []}
        return facts_of(want, Ec2Answers(ec2.parts(groups=[closed], reservation=None)))

    monkeypatch.setattr(examine, "read_aws", read)
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "api-keys.txt").write_text("sk-1\n")
    file = tmp_path / "pd.yaml"
    text = EXAMPLE.read_text()
    file.write_text(text.replace("  region: us-west-2", "  profile: mine\n  region: us-west-2"))
    return file


def test_ec2_is_asked_once_as_the_profile_that_is_named(asked: Asked, file: Path) -> None:
    result = run_cli("doctor", "-f", str(file), "--only", "aws.*", "--json")
    assert result.exit_code == 1
    assert [(want.deployment, profile) for want, profile in asked] == [("p5en-1p1d", "mine")]
    found = {each["id"]: each for each in result.json["checks"]}
    assert found["aws.security_group"]["status"] == "fail"
    assert "authorize-security-group-ingress" in found["aws.security_group"]["fix"]["commands"][0]
    assert found["aws.zone"]["status"] == "pass"
    assert {each["scope"] for each in result.json["checks"]} == {"aws"}


@pytest.mark.parametrize("arguments", [["--offline"], ["--only", "config.*"]])
def test_ec2_is_not_asked_for_nothing(asked: Asked, file: Path, arguments: list[str]) -> None:
    result = run_cli("doctor", "-f", str(file), *arguments, "--json")
    assert asked == []
    skips = {c["evidence"][0] for c in result.json["checks"] if c["scope"] == "aws"}
    assert skips <= {"`--offline` asks no server"}


def test_a_bundle_carries_what_ec2_said(asked: Asked, file: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    saved = run_cli("doctor", "-f", str(file), "--save", str(bundle), "--json")
    again = run_cli("doctor", "--from", str(bundle), "--json")
    assert len(asked) == 1
    assert again.json["checks"] == saved.json["checks"]
