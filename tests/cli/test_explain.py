import pytest

from pdctl.base.exits import ExitCode
from pdctl.doctor.checks import CHECKS
from pdctl.observe.signatures import SIGNATURES
from tests.cli.helpers import run_cli


@pytest.mark.parametrize("id", [*(c.id for c in CHECKS), *(s.id for s in SIGNATURES)])
def test_every_id_is_explained(id: str) -> None:
    result = run_cli("explain", id)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{id} (")
    assert "\nfound: " in result.stdout
    assert "\nfix: " in result.stdout


def test_it_says_what_how_and_what_to_do() -> None:
    text = run_cli("explain", "kv.read.declined").stdout
    assert text.startswith(
        "kv.read.declined (degrade): prefill declined to read blocks that had expired\n"
    )
    assert "found: a line of prefill (vLLM 0.27 and later" in text
    assert "source: run: recorded on vLLM 0.32.0; FACTS T1; vllm#47021" in text
    assert "more: docs/signatures.md#kvreaddeclined" in text
    assert "`pdctl doctor` judges each host" in run_cli("explain", "host.reach").stdout


def test_json() -> None:
    told = run_cli("explain", "--json", "router.cache.lost").json
    assert told["kind"] == "signature"
    assert told["found"].startswith("concluded from several lines of router")
    everything = run_cli("explain", "--json").json
    assert len(everything) == len(CHECKS) + len(SIGNATURES)


def test_what_is_nearly_an_id_is_asked_for() -> None:
    result = run_cli("explain", "kv.read.decline")
    assert result.exit_code == ExitCode.USAGE
    assert "`kv.read.decline` is no check and no signature" in result.stderr
    assert "expected: `kv.read.declined`" in result.stderr
    assert "`router.cache.miss`" in run_cli("explain", "miss").stderr


def test_without_an_id_all_are_listed() -> None:
    listed = run_cli("explain").stdout
    assert "kv.read.declined" in listed
    assert "host.reach" in listed


def test_ids_are_of_one_thing() -> None:
    assert not {c.id for c in CHECKS} & {s.id for s in SIGNATURES}
