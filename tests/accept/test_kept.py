"""Which bundles speak for a configuration on EC2, and that no other does."""

import copy
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdctl.accept import kept
from pdctl.accept.bundle import write_bundle
from pdctl.accept.model import Found, Report, Result
from pdctl.config.model import Config
from tests.ec2.facts import config

Change = Callable[[dict[str, Any]], None]
RESULTS = ("doctor", "pair.prefill-0.decode-0", "exact", "bench", "efa")


def passed() -> dict[str, Any]:
    """The document of a whole run of the p5en example on EC2. None was ever made."""
    versions = {
        "vllm": {"prefill-0": "0.33.0", "decode-0": "0.33.0"},
        "hosts": {"prefill-0": {"nixl": "1.5.0"}, "decode-0": {"nixl": "1.5.0"}},
    }
    found = {"doctor": {"versions": versions}}
    return Report(
        name="demo",
        began_at="2026-11-30T08:00:00Z",
        results=[Result(id, id, Found("pass", "", found.get(id, {}))) for id in RESULTS],
        environment={
            "target": "ec2", "transport": "LIBFABRIC (EFA)", "nixl": "1.5.0", "pdctl": "0.1",
        },
        cells=[],
        budget={},
    ).as_dict()  # fmt: skip


def put(path: Path, document: Any, name: str = "accept.json") -> None:
    """A bundle with this for its report."""
    data = json.dumps(document).encode()
    entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
    entry.size = len(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(entry, io.BytesIO(data))


@pytest.fixture
def p5en(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    return config(tmp_path)


def test_what_accept_writes_is_found_again(p5en: Config, tmp_path: Path) -> None:
    assert kept.find(p5en) == (None, ())
    document = passed()
    results = [
        Result(each["id"], each["title"], Found(each["status"], "", each["data"]))
        for each in document["results"]
    ]
    report = Report("demo", "2026", results, document["environment"], [], {})
    bundle = tmp_path / "accept-demo.tar.gz"
    write_bundle(bundle, report, config="name: demo", folder=tmp_path / "none", secrets=())
    kept.keep(bundle)
    found, bad = kept.find(p5en)
    assert found is not None
    assert (found.file.name, found.began_at, bad) == ("accept-demo.tar.gz", "2026", ())


def test_the_latest_is_told(p5en: Config) -> None:
    for name, began_at in (("b", "2026-01-01"), ("a", "2026-02-02"), ("c", "2025-01-01")):
        put(kept.folder() / f"{name}.tar.gz", {**passed(), "began_at": began_at})
    found, _ = kept.find(p5en)
    assert found is not None
    assert found.file.name == "a.tar.gz"


def at(*path: str | int, value: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def without(id: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        document["results"] = [each for each in document["results"] if each["id"] != id]

    return change


@pytest.mark.parametrize(
    "change",
    [
        at("ok", value=False),
        at("ok", value="yes"),
        at("kind", value="something else"),
        at("schema_version", value=99),
        at("environment", "target", value="ssh"),
        at("environment", "transport", value="UCX (tcp)"),
        at("results", 0, "data", "versions", "vllm", "decode-0", value="0.32.0"),
        at("results", 0, "data", "versions", "vllm", value={}),
        at("results", 0, "data", "versions", "hosts", "decode-0", "nixl", value="1.5.1"),
        at("results", 0, "status", value="skip"),
        at("results", 2, "status", value="skip"),
        without("doctor"),
        without("pair.prefill-0.decode-0"),
        without("efa"),
        at("results", value=None),
        at("environment", value=["no"]),
    ],
)
def test_another_run_does_not_speak_for_it(p5en: Config, change: Change) -> None:
    document = passed()
    assert kept.speaks_for(copy.deepcopy(document), p5en)
    change(document)
    assert not kept.speaks_for(document, p5en)


@pytest.mark.parametrize("document", [None, [], "text", 3, {}])
def test_what_accept_never_wrote_does_not_either(p5en: Config, document: Any) -> None:
    assert not kept.speaks_for(document, p5en)


def test_files_that_are_no_bundles_are_named_and_do_no_harm(p5en: Config) -> None:
    put(kept.folder() / "good.tar.gz", passed())
    (kept.folder() / "text.tar.gz").write_text("no archive")
    (kept.folder() / "empty.tar.gz").write_bytes(b"")
    whole = (kept.folder() / "good.tar.gz").read_bytes()
    (kept.folder() / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    (kept.folder() / "folder.tar.gz").mkdir()
    put(kept.folder() / "other.tar.gz", passed(), name="other.json")
    (kept.folder() / "notes.txt").write_text("not looked at")
    found, bad = kept.find(p5en)
    assert found is not None
    assert found.file.name == "good.tar.gz"
    names = ("cut", "empty", "folder", "other", "text")
    assert [Path(each.split()[0]).name for each in bad] == [f"{name}.tar.gz" for name in names]
