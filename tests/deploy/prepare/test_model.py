"""Downloading a model: from a hub that breaks off and lies, and from S3."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pdctl.base.command import Secret
from pdctl.base.errors import (
    BadAnswerError,
    NotFoundError,
    PermissionDeniedError,
    TemporaryError,
    UnreachableError,
)
from pdctl.config.model import Config
from pdctl.deploy.prepare.model import hub_token, model_task, size_on
from pdctl.deploy.prepare.task import Task
from pdctl.engine import choices
from pdctl.render.deployment import render
from pdctl.render.model import Place
from pdctl.render.place import place_of
from pdctl.targets.local import LocalHost
from tests.deploy.prepare.hub import COMMIT, MODEL, Hub, running

WEIGHTS = bytes(range(256)) * 4096
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"the same again",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running(Hub(dict(FILES))) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def config(tmp_path: Path, *, revision: str | None = COMMIT, **target: Any) -> Config:
    hosts = {"prefill": [{"address": "h"}], "decode": [{"address": "h"}]}
    return Config.model_validate(
        {
            "name": "x",
            "model": {"id": MODEL, **({"revision": revision} if revision else {})},
            "engine": {"install": "existing", "python": sys.executable},
            "target": {"kind": "ssh", "hosts": hosts, "base_dir": str(tmp_path / "opt"), **target},
        }
    )


class Downloading:
    """A configuration's task on this machine."""

    def __init__(self, made: Config, token: Secret | None = None) -> None:
        self.config, self.place = made, place_of(made)
        task = model_task(made, self.place, ("h",), token)
        assert task is not None
        self.task: Task = task
        self.host, self.said = LocalHost("h"), list[str]()

    def look(self) -> str:
        return self.task.look(self.host)

    def apply(self) -> None:
        self.task.apply(self.host, self.said.append)

    @property
    def folder(self) -> Path:
        return Path(str(self.place.hub)) / "hub" / "models--acme--model" / "snapshots" / COMMIT


def test_a_model_is_downloaded_once_and_engines_find_it_offline(tmp_path: Path, hub: Hub) -> None:
    work = Downloading(config(tmp_path))
    assert work.look() == "it is not there, or not whole"
    work.apply()
    assert work.look() == ""
    asked = len(hub.asked)
    assert Downloading(work.config).look() == ""  # without asking the hub
    assert len(hub.asked) == asked
    assert sorted(each.name for each in work.folder.iterdir()) == [
        "config.json",
        "model.safetensors",  # and not the same weights once more
    ]
    assert (work.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert size_on(work.host, work.config, work.place) == len(WEIGHTS) + len(FILES["config.json"])
    env = render(work.config, work.place).processes[0].command.environ()
    assert env["HF_HUB_OFFLINE"] == "1"
    read = "import sys; from huggingface_hub import snapshot_download as s; "
    read += "print(s(sys.argv[1], revision=sys.argv[2]))"
    found = subprocess.run(
        [sys.executable, "-c", read, MODEL, COMMIT],
        env={**os.environ, "HF_HOME": env["HF_HOME"], "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.stdout.strip() == str(work.folder), found.stderr


def test_a_revision_that_moves_is_named_for_the_engines(tmp_path: Path, hub: Hub) -> None:
    work = Downloading(config(tmp_path, revision=None))
    work.apply()
    assert (work.folder.parent.parent / "refs" / "main").read_text() == COMMIT
    (tmp_path / "opt").rename(tmp_path / "gone")
    assert work.look() == "it is not there, or not whole"


def test_what_broke_off_is_resumed_where_it_stopped(tmp_path: Path, hub: Hub) -> None:
    hub.cut["model.safetensors"] = 300_000
    work = Downloading(config(tmp_path))
    work.apply()
    assert hub.downloads("model.safetensors") == [None, "bytes=300000-"]
    assert (work.folder / "model.safetensors").read_bytes() == WEIGHTS


def test_an_interrupted_download_goes_on_and_keeps_whole_files(tmp_path: Path, hub: Hub) -> None:
    work = Downloading(config(tmp_path))
    work.folder.mkdir(parents=True)
    (work.folder / "config.json").write_bytes(FILES["config.json"])
    (work.folder / "model.safetensors.part").write_bytes(WEIGHTS[:1000])
    work.apply()
    assert hub.downloads("config.json") == []
    assert hub.downloads("model.safetensors") == ["bytes=1000-"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_wrong_checksum_is_told_and_nothing_wrong_stays(
    tmp_path: Path, hub: Hub, name: str
) -> None:
    hub.lie.add(name)
    work = Downloading(config(tmp_path))
    with pytest.raises(BadAnswerError, match="could not be downloaded") as caught:
        work.apply()
    kind = "git SHA-1" if name == "config.json" else "SHA-256"
    assert f"{name} has the {kind} " in caught.value.detail[0]
    assert not [each for each in work.folder.iterdir() if each.name.startswith(name)]
    assert work.look()
    hub.lie.clear()
    work.apply()
    assert not work.look()
    other = "config.json" if name != "config.json" else "model.safetensors"
    assert len(hub.downloads(other)) == 1


def test_a_file_that_was_changed_is_downloaded_again(tmp_path: Path, hub: Hub) -> None:
    work = Downloading(config(tmp_path))
    work.apply()
    (work.folder / "config.json").write_bytes(b"{}")
    work.apply()
    assert (work.folder / "config.json").read_bytes() == FILES["config.json"]


def test_a_token_is_shown_to_the_hub_alone_and_to_no_process_list(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated = "hf_secret"
    with pytest.raises(PermissionDeniedError, match="does not give us"):
        Downloading(config(tmp_path)).apply()
    seen: list[str] = []
    plain = LocalHost.run

    def watched(self: LocalHost, command: Any, **options: Any) -> Any:
        seen.append(command.shell())
        return plain(self, command, **options)

    monkeypatch.setattr(LocalHost, "run", watched)
    with running(Hub(dict(FILES))) as cdn:
        hub.cdn = cdn.url
        Downloading(config(tmp_path), Secret("hf_secret")).apply()
        assert {token for _, _, token in cdn.asked} == {None}
        assert len(cdn.asked) == 1
    assert not any("hf_secret" in line for line in seen)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"hf_secret" not in file.read_bytes()


def test_what_the_hub_does_not_have_or_cannot_say(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFoundError, match="no such model or revision"):
        Downloading(config(tmp_path, revision="another")).apply()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(UnreachableError, match="cannot be asked"):
        Downloading(config(tmp_path)).apply()


def test_a_disk_that_is_too_small_is_told_before(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalHost, "free_bytes", lambda self, path: 1000)
    with pytest.raises(TemporaryError, match="not enough space for the model"):
        Downloading(config(tmp_path)).apply()
    assert hub.downloads("model.safetensors") == []


def test_where_a_token_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert hub_token() is None
    (tmp_path / "token").write_text("from-file\n")
    assert hub_token() == Secret("from-file")
    monkeypatch.setenv("HF_TOKEN", "from-env")
    assert hub_token() == Secret("from-env")


def test_engines_may_need_the_hub_for_more_than_the_model(tmp_path: Path) -> None:
    made = config(tmp_path)
    assert choices.is_fetched(made)
    draft = made.model.model_copy(update={"speculative": {"model": "acme/draft"}})
    assert not choices.is_fetched(made.model_copy(update={"model": draft}))
    place = replace(place_of(made), hub=None)
    assert model_task(made, place, ("h",), None) is None


# --- S3 ------------------------------------------------------------------------------------------


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    import boto3

    client = boto3.client("s3")
    client.create_bucket(Bucket="models")
    yield client
    server.stop()


def test_a_model_from_s3_needs_no_credentials_on_the_host(tmp_path: Path, s3: Any) -> None:
    for name, content in FILES.items():
        s3.put_object(Bucket="models", Key=f"qwen/{name}", Body=content)
    s3.put_object(Bucket="models", Key="qwen-other/config.json", Body=b"not this one")
    made = config(tmp_path, model_source="s3://models/qwen/")
    work = Downloading(made)
    work.apply()
    assert work.look() == ""
    path = choices.source_path(made, PurePosixPath(str(work.place.hub)))
    assert {each.name: each.read_bytes() for each in Path(str(path)).iterdir()} == FILES
    command = render(made, work.place).processes[0].command
    argv = command.argv()
    assert argv[argv.index("--model") + 1] == str(path)
    assert argv[argv.index("--served-model-name") + 1] == MODEL
    assert command.environ()["HF_HUB_OFFLINE"] == "1"


def test_what_s3_does_not_have(tmp_path: Path, s3: Any) -> None:
    with pytest.raises(NotFoundError, match="no objects"):
        Downloading(config(tmp_path, model_source="s3://models/none")).apply()
    with pytest.raises(NotFoundError, match="no such bucket"):
        Downloading(config(tmp_path, model_source="s3://another/none")).apply()


def test_an_object_that_changes_meanwhile_is_noticed(
    tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="models", Key="m/config.json", Body=b"one")
    work = Downloading(config(tmp_path, model_source="s3://models/m"))
    from pdctl.deploy.prepare import model

    plain = model.list_model

    def listed(source: str) -> Any:
        found = plain(source)
        s3.put_object(Bucket="models", Key="m/config.json", Body=b"two")
        return found

    monkeypatch.setattr(model, "list_model", listed)
    with pytest.raises(BadAnswerError) as caught:
        work.apply()
    assert "config.json has the MD5" in caught.value.detail[0]


def test_the_marker_is_json(tmp_path: Path, hub: Hub) -> None:
    work = Downloading(config(tmp_path))
    work.apply()
    place: Place = work.place
    (marker,) = Path(str(place.hub), "pdctl").iterdir()
    assert json.loads(marker.read_text())["commit"] == COMMIT
    marker.write_text("[]")
    assert work.look()
