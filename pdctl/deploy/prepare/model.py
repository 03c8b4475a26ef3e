"""The model on its hosts before any engine starts: from the hub, or from S3.

This machine asks what files there are, and every host downloads them by itself. Tokens and signed
URLs go there on standard input.
"""

import functools
import hashlib
import json
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from pdctl.base.command import Secret, command
from pdctl.base.errors import (
    BadAnswerError,
    NotFoundError,
    PermissionDeniedError,
    TemporaryError,
    UnreachableError,
)
from pdctl.config.model import Config, Ec2Target, SshTarget
from pdctl.deploy.prepare.task import Task
from pdctl.engine import choices
from pdctl.render.model import Place
from pdctl.targets.base import Host, OutputSink
from pdctl.targets.s3 import list_model

MODEL_TASK = "model"
_ENDPOINT = "https://huggingface.co"
_ASK_LIMIT_S = 30.0
_DOWNLOAD_LIMIT_S = 24 * 3600.0
_ROOM = 1.02  # a little more than the files' own size


@dataclass(frozen=True)
class File:
    """One file to download.

    Attributes:
        headers: secret.
        size: bytes.
        sha256, git, md5: of its content, hexadecimal; `git` is the SHA-1 of a git blob. What the
            source does not say is None.
    """

    path: str
    url: str
    headers: Mapping[str, str]
    size: int | None
    sha256: str | None = None
    git: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Source:
    """What a source says of a model.

    Attributes:
        commit: of the hub; empty for S3.
    """

    commit: str
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        """Size of all of it."""
        return sum(each.size or 0 for each in self.files)


def model_task(
    config: Config, place: Place, hosts: tuple[str, ...], token: Secret | None
) -> Task | None:
    """Download it where it is not yet; None where there is nothing to download."""
    key, ask = _source(config, token)
    if ask is None or place.hub is None:
        return None
    once = _once(ask)
    return Task(
        id=MODEL_TASK,
        what=f"download the model {key}",
        done="an earlier run did it",
        hosts=hosts,
        look=lambda host: _look(host, config, place, key),
        apply=lambda host, tell: _download(host, config, place, key, once(), tell),
        phase="software",
    )


def _source(config: Config, token: Secret | None) -> tuple[str, Callable[[], Source] | None]:
    if (s3 := choices.model_source(config)) is not None:
        return s3, functools.partial(ask_s3, s3)
    if choices.is_offline(config):
        return "", None
    revision = config.model.revision or "main"
    key = f"{config.model.id}@{revision}"
    return key, functools.partial(ask_hub, config.model.id, revision, token)


def _once(ask: Callable[[], Source]) -> Callable[[], Source]:
    """All hosts get what one answer says: an unpinned revision may move meanwhile."""
    lock, answers = threading.Lock(), list[Source]()

    def answer() -> Source:
        with lock:
            if not answers:
                answers.append(ask())
            return answers[0]

    return answer


# --- what there is -------------------------------------------------------------------------------


def ask_hub(model: str, revision: str, token: Secret | None) -> Source:
    """Files of a revision, as the hub's API has them.

    Raises:
        NotFoundError, PermissionDeniedError, UnreachableError: no such model or revision; a token
            is needed; no answer.
    """
    endpoint = os.environ.get("HF_ENDPOINT", _ENDPOINT).rstrip("/")
    headers = {"User-Agent": "pdctl"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token.value}"
    quoted = urllib.parse.quote(revision, safe="")
    answer = _get(f"{endpoint}/api/models/{model}/revision/{quoted}?blobs=true", headers, model)
    commit = str(answer["sha"])
    files = [
        File(
            path=str(each["rfilename"]),
            url=f"{endpoint}/{model}/resolve/{commit}/{urllib.parse.quote(each['rfilename'])}",
            headers=headers,
            size=(each.get("lfs") or each).get("size"),
            sha256=(each.get("lfs") or {}).get("sha256"),
            git=None if each.get("lfs") else each.get("blobId"),
        )
        for each in answer.get("siblings") or ()
    ]
    return Source(commit, tuple(_wanted(files)))


def _wanted(files: Sequence[File]) -> list[File]:
    """Without the same weights in other formats, as vLLM itself chooses."""
    names = [each.path for each in files]
    if not any(name.endswith(".safetensors") for name in names):
        return [each for each in files if not each.path.startswith("original/")]
    unwanted = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ot")
    return [
        each
        for each in files
        if not each.path.endswith(unwanted) and not each.path.startswith("original/")
    ]


def _get(url: str, headers: Mapping[str, str], model: str) -> dict[str, Any]:
    try:
        request = urllib.request.Request(url, headers=dict(headers))
        with urllib.request.urlopen(request, timeout=_ASK_LIMIT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise PermissionDeniedError(
                f"the hub does not give us `{model}`: HTTP {error.code}",
                where=url,
                hints=[
                    "set HF_TOKEN in your environment, or `hf auth login`; for a gated model its "
                    "terms must be accepted on the hub first"
                ],
            ) from error
        if error.code == 404:
            raise NotFoundError(
                f"the hub has no such model or revision: `{model}`",
                where="keys `model.id` and `model.revision`",
            ) from error
        raise TemporaryError(f"the hub answers HTTP {error.code}", where=url) from error
    except (OSError, ValueError) as error:
        raise UnreachableError(f"the hub cannot be asked: {error}", where=url) from error


def ask_s3(source: str) -> Source:
    """Objects under a prefix, with URLs that are good for a day.

    Raises:
        NotFoundError, PermissionDeniedError, UnreachableError: as `targets.s3` has it.
    """
    files = [
        File(each.path, each.url, {}, each.size, sha256=each.sha256, md5=each.md5)
        for each in list_model(source)
    ]
    return Source("", tuple(files))


def hub_token() -> Secret | None:
    """The user's token for the hub, where the hub's own tools look for it."""
    if found := os.environ.get("HF_TOKEN", "").strip():
        return Secret(found)
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    try:
        text = Path(os.environ.get("HF_TOKEN_PATH") or home / "token").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Secret(text) if text else None


# --- on a host -----------------------------------------------------------------------------------


def marker_of(config: Config, place: Place) -> PurePosixPath:
    """Says that a model is whole; its content says which, and its size."""
    key, _ = _source(config, None)
    assert place.hub is not None
    return place.hub / "pdctl" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def size_on(host: Host, config: Config, place: Place) -> int:
    """Bytes of a downloaded model; 0 when nobody knows."""
    if place.hub is None or not isinstance(config.target, SshTarget | Ec2Target):
        return 0
    return int(_read(host, marker_of(config, place)).get("bytes") or 0)


def _read(host: Host, marker: PurePosixPath) -> dict[str, Any]:
    try:
        found = json.loads(host.read_file(marker) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _look(host: Host, config: Config, place: Place, key: str) -> str:
    made = _read(host, marker_of(config, place))
    if made.get("model") != key:
        return "it is not there, or not whole"
    return "" if host.exists(PurePosixPath(str(made.get("folder")))) else "its folder is gone"


def _folder(config: Config, place: Place, commit: str) -> PurePosixPath:
    assert place.hub is not None
    if (path := choices.source_path(config, place.hub)) is not None:
        return path
    name = f"models--{config.model.id.replace('/', '--')}"
    return place.hub / "hub" / name / "snapshots" / commit


def _download(
    host: Host, config: Config, place: Place, key: str, source: Source, tell: OutputSink
) -> None:
    folder = _folder(config, place, source.commit)
    _require_space(host, folder, source)
    script = _script()
    path = place.cache / "scripts" / f"fetch-{hashlib.sha256(script).hexdigest()[:12]}.py"
    host.write_file(path, script)
    order = {"out": str(folder), "files": [asdict(each) for each in source.files]}
    done = host.run(
        command("python3", "-I", "-S", str(path)),
        timeout=_DOWNLOAD_LIMIT_S,
        stdin=json.dumps(order).encode(),
        on_line=tell,
    )
    if not done.ok:
        raise BadAnswerError(
            f"the model {key} could not be downloaded",
            where=f"{host.name}: {folder}",
            detail=done.stderr.strip().splitlines()[-8:],
            hints=["`pdctl up` goes on with what is missing; whole files are kept"],
        )
    revision = config.model.revision or "main"
    if source.commit and revision != source.commit:
        host.write_file(folder.parent.parent / "refs" / revision, source.commit.encode())
    said = {"model": key, "folder": str(folder), "bytes": source.bytes, "commit": source.commit}
    host.write_file(marker_of(config, place), json.dumps(said).encode() + b"\n")


def _require_space(host: Host, folder: PurePosixPath, source: Source) -> None:
    have = command("sh", "-c", 'du -sk "$1" 2>/dev/null | cut -f1', "sh", str(folder))
    there = int(host.run(have, timeout=120.0).stdout.strip() or 0) * 1024
    needed, free = int(source.bytes * _ROOM) - there, host.free_bytes(folder)
    if free < needed:
        raise TemporaryError(
            f"not enough space for the model: {needed / 2**30:.1f} GiB are needed, "
            f"{free / 2**30:.1f} GiB are free",
            where=f"{host.name}: {folder}",
            hints=["free some space, or set `target.model_dir` to a folder on a larger disk"],
        )


def _script() -> bytes:
    return (resources.files("pdctl.engine.scripts") / "fetch_model.py").read_bytes()
