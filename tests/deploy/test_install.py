import os
import threading
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from filelock import FileLock

from pdctl.base import paths
from pdctl.base.command import command
from pdctl.base.errors import BadAnswerError, NotFoundError, TemporaryError
from pdctl.base.events import StepDone, StepProgress, StepSkipped, StepWaiting
from pdctl.base.exits import ExitCode
from pdctl.config.model import Config
from pdctl.deploy import install
from pdctl.engine.install import InstallRecipe, InstallStep, StepFile
from pdctl.engine.layout import EngineLayout
from pdctl.targets.local import LocalHost
from tests.deploy.pair import NAME, Pair, names

STEPS = ("venv", "torch", "seal")


@pytest.fixture
def layout(pair: Pair) -> EngineLayout:
    return EngineLayout(PurePosixPath(paths.cache_root() / "engines" / "cpu-1"), "cpu-1")


def recipe(layout: EngineLayout, **scripts: str) -> InstallRecipe:
    """Each step appends its name to a file; `scripts` replace what a step does."""

    def step(name: str) -> InstallStep:
        script = scripts.get(
            name, f"echo {name} step && cat {layout.recipe}/{name} >> {layout.root}/did"
        )
        return InstallStep(
            id=name,
            what=f"install {name}",
            why="a test",
            marker=layout.marker(name),
            fingerprint=f"fp-{name}",
            commands=(command("sh", "-c", script),),
            files=(StepFile(layout.recipe / name, f"{name}\n".encode()),),
            hints=(f"about {name}",),
        )

    return InstallRecipe(
        kind="cpu",
        layout=layout,
        steps=tuple(step(name) for name in STEPS),
        needed_bytes=1000,
        about=(),
        check=command("sh", "-c", scripts.get("check", "true")),
    )


def did(layout: EngineLayout) -> list[str]:
    return Path(layout.root / "did").read_text().split()


def test_a_recipe_is_applied_in_order_and_told(pair: Pair, layout: EngineLayout) -> None:
    pair.recipe = recipe(layout)
    pair.up()
    assert did(layout) == list(STEPS)
    assert Path(layout.marker("torch")).read_text() == "fp-torch"
    told = [event.text for event in pair.told(StepProgress)]
    assert told == [f"install {name}: {name} step" for name in STEPS]
    log = pair.log("install").splitlines()
    assert log[1::2] == [f"{name} step" for name in STEPS]
    assert all(line.startswith("$ sh -c") for line in log[::2])

    pair.up()
    assert did(layout) == list(STEPS)
    assert "engine" in names(pair.told(StepSkipped))


def test_a_failed_step_shows_its_last_lines_and_the_next_up_goes_on(
    pair: Pair, layout: EngineLayout
) -> None:
    pair.recipe = recipe(layout, torch="seq 1 50; echo no such version >&2; exit 3")
    with pytest.raises(BadAnswerError) as caught:
        pair.up()
    error = caught.value
    assert error.message == "could not install torch: sh ended with status 3"
    assert error.where == f"localhost, whole output in {paths.log_dir(NAME) / 'install.log'}"
    assert error.detail == (*map(str, range(32, 51)), "no such version")
    assert error.hints == ("about torch", "`pdctl up` goes on with this step")
    assert pair.running() == []

    pair.recipe = recipe(layout)
    pair.up()
    assert did(layout) == list(STEPS)  # venv once
    assert "engine-venv" in names(pair.told(StepSkipped))


def test_a_full_disk_is_explained(pair: Pair, layout: EngineLayout) -> None:
    pair.recipe = recipe(layout, torch="head -c 9 /dev/zero > /dev/full")
    with pytest.raises(TemporaryError) as caught:
        pair.up()
    error = caught.value
    assert error.exit_code == ExitCode.TRY_AGAIN
    assert error.message == "no space left while pdctl was to install torch"
    assert any("No space left on device" in line for line in error.detail)
    assert "free some space and run `pdctl up` again; it goes on with this step" in error.hints
    assert any("PDCTL_CACHE_DIR" in hint for hint in error.hints)

    pair.recipe = recipe(layout)
    pair.up()
    assert did(layout) == list(STEPS)


def test_space_is_asked_for_before_the_first_step(
    pair: Pair, layout: EngineLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalHost, "free_bytes", lambda self, path: 2**30)
    pair.recipe = replace(recipe(layout), needed_bytes=5 * 2**30)
    with pytest.raises(TemporaryError) as caught:
        pair.up()
    assert caught.value.message == (
        "not enough space for the engine: 5.0 GiB are needed, 1.0 GiB are free"
    )
    assert not os.path.exists(layout.root)


def test_what_is_there_already_need_not_fit_again(
    pair: Pair, layout: EngineLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalHost, "free_bytes", lambda self, path: 1_000_000)
    whole = replace(recipe(layout), needed_bytes=2_000_000)
    Path(layout.root).mkdir(parents=True)
    (Path(layout.root) / "wheels").write_bytes(b"x" * 1_500_000)
    install.require_space(pair.host, whole)


def test_an_environment_that_changed_is_made_anew(pair: Pair, layout: EngineLayout) -> None:
    pair.recipe = recipe(layout)
    pair.up()
    stray = Path(layout.root / "stray")
    stray.write_text("x")
    pair.recipe = recipe(layout, check="echo torch was replaced; exit 1")
    pair.up()
    assert not stray.exists()
    assert did(layout) == list(STEPS)


def test_an_interrupted_step_leaves_no_installer(
    pair: Pair, layout: EngineLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.recipe = recipe(layout, torch=f"echo $$ > {layout.root}/pid; echo up; sleep 600")
    real = pair.events.append

    def interrupt(event: object) -> None:
        real(event)  # type: ignore[arg-type]
        if isinstance(event, StepProgress) and event.text.endswith(": up"):
            raise KeyboardInterrupt

    world = replace(pair.world, listen=interrupt)
    with pytest.raises(KeyboardInterrupt):
        pair.up(world=world)
    pid = int(Path(layout.root / "pid").read_text())
    assert not os.path.exists(f"/proc/{pid}")
    pair.recipe = recipe(layout)
    pair.up()
    assert did(layout) == list(STEPS)


def test_two_deployments_do_not_install_the_same_at_once(
    pair: Pair, layout: EngineLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pdctl holds the environment, and does the first step meanwhile."""
    monkeypatch.setattr(install, "_WORD_EVERY_S", 0.05)
    locks = paths.cache_root() / "locks"
    locks.mkdir(parents=True)
    lock = FileLock(locks / "cpu-1.lock", thread_local=False)
    lock.acquire()
    told = threading.Event()
    real = pair.events.append

    def listen(event: object) -> None:
        real(event)  # type: ignore[arg-type]
        if isinstance(event, StepWaiting) and event.id == "engine-venv" and not told.is_set():
            told.set()
            marker = Path(layout.marker("venv"))
            marker.parent.mkdir(parents=True)
            marker.write_text("fp-venv")
            lock.release()

    pair.recipe = recipe(layout)
    pair.up(world=replace(pair.world, listen=listen))
    assert told.is_set()
    assert did(layout) == ["torch", "seal"]
    done = {event.id: event.result for event in pair.told(StepDone)}
    assert done["engine-venv"] == "another run did it meanwhile"


def test_a_model_that_is_not_there_is_named_before_anything_is_done(pair: Pair) -> None:
    pair.config = Config.model_validate(
        {
            "name": NAME,
            "model": {"id": "/no/such/model", "dtype": "float32"},
            "engine": {"install": "existing", "python": "/usr/bin/env"},
            "target": {"kind": "local"},
        }
    )
    with pytest.raises(NotFoundError) as caught:
        pair.up()
    assert caught.value.message == "there is no model at `/no/such/model`"
    assert caught.value.where == "localhost, key `model.id`"
    assert pair.store.load() is None


def test_an_interpreter_that_is_not_there_is_named(pair: Pair) -> None:
    pair.config = Config.model_validate(
        {
            "name": NAME,
            "model": {"id": "Qwen/Qwen3-0.6B"},
            "engine": {"install": "existing", "python": "/no/such/python"},
            "target": {"kind": "local"},
        }
    )
    with pytest.raises(NotFoundError, match="no interpreter at `/no/such/python`"):
        pair.up()
