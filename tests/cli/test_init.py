"""`pdctl init`: a file to start from, never over another one."""

import io
import os
import resource
from pathlib import Path

import pytest
import yaml

from pdctl.base.exits import ExitCode
from pdctl.cli import init as module
from pdctl.config.load import load
from tests.cli.helpers import run_cli

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PDCTL_FILE", raising=False)
    return tmp_path


def test_the_demo_is_the_default(folder: Path) -> None:
    result = run_cli("init")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "wrote pd.yaml (local-cpu)\nnext: pdctl up\n"
    assert load("pd.yaml").config.name == "local-cpu"
    assert os.listdir(folder) == ["pd.yaml"]


@pytest.mark.parametrize(
    ("template", "first"), [("local-cpu", "up"), ("ssh", "render"), ("p5en", "plan")]
)
def test_every_template_loads_and_says_what_comes_next(template: str, first: str) -> None:
    result = run_cli("init", "--template", template, "--file", "own.yaml")
    assert result.exit_code == 0
    assert result.stderr.endswith(f"pdctl {first} --file own.yaml\n")
    assert (
        Path("own.yaml").read_bytes()
        == (ROOT / "templates" / "init" / f"{template}.yaml").read_bytes()
    )
    load("own.yaml")


def test_a_file_that_exists_is_never_overwritten() -> None:
    Path("pd.yaml").write_text("mine")
    result = run_cli("init")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: `pd.yaml` exists; nothing was written\n\n"
        "hint: `--force` replaces it\n"
        "hint: `--file FILE` writes another one\n"
    )
    assert Path("pd.yaml").read_text() == "mine"


def test_nor_is_what_a_dangling_link_stands_for(folder: Path) -> None:
    Path("pd.yaml").symlink_to("elsewhere.yaml")
    assert run_cli("init").exit_code == 2
    assert os.listdir(folder) == ["pd.yaml"]


def test_force_replaces_the_file_and_keeps_a_link(folder: Path) -> None:
    Path("real.yaml").write_text("mine")
    Path("pd.yaml").symlink_to("real.yaml")
    assert run_cli("init", "--force").exit_code == 0
    assert Path("pd.yaml").is_symlink()
    assert load("real.yaml").config.name == "local-cpu"
    assert sorted(os.listdir(folder)) == ["pd.yaml", "real.yaml"]


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_full_disk_leaves_nothing_half_written(folder: Path, force: list[str]) -> None:
    if force:
        Path("pd.yaml").write_text("mine")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        result = run_cli("init", *force)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.exit_code == 2
    assert result.stderr == "error: `pd.yaml` cannot be written: File too large\n"
    assert os.listdir(folder) == (["pd.yaml"] if force else [])
    if force:
        assert Path("pd.yaml").read_text() == "mine"


def test_a_missing_directory() -> None:
    result = run_cli("init", "--file", "conf/pd.yaml")
    assert result.exit_code == 2
    assert result.stderr == "error: there is no directory `conf`\n\nhint: `mkdir -p conf`\n"


def test_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "_write", refuse)  # root may write everywhere
    result = run_cli("init")
    assert result.exit_code == 77
    assert result.stderr == "error: `pd.yaml` may not be written by this user\n"


def test_a_directory_in_its_place() -> None:
    Path("pd.yaml").mkdir()
    assert run_cli("init").exit_code == 2
    result = run_cli("init", "--force")
    assert result.exit_code == 2
    assert result.stderr == ("error: `pd.yaml` is a directory\n\nhint: `--file pd.yaml/pd.yaml`\n")


def test_a_dash_prints(folder: Path) -> None:
    result = run_cli("init", "--file", "-")
    assert result.exit_code == 0
    assert result.stdout == (ROOT / "templates" / "init" / "local-cpu.yaml").read_text()
    assert os.listdir(folder) == []


def test_an_unknown_template_lists_them() -> None:
    result = run_cli("init", "--template", "k8s")
    assert result.exit_code == 2
    assert "'local-cpu', 'ssh', 'p5en'" in result.stderr


def test_the_environment_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_FILE", "other.yaml")
    assert run_cli("init").exit_code == 0
    assert Path("other.yaml").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "hours"), [("\n", 8), ("2.5\n", 2.5), (None, 8), ("never\n", None), ("0\n", None)]
)
def test_init_asks_when_hosts_that_cost_are_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str | None, hours: float | None
) -> None:
    if typed is not None:
        monkeypatch.setattr("sys.stdin", Terminal(typed))
    file = tmp_path / "pd.yaml"
    result = run_cli("init", "--template", "p5en", "--file", str(file))
    assert ("after how many hours? [8]" in result.stderr) == (typed is not None)
    if hours is None:
        assert result.exit_code == ExitCode.USAGE
        assert not file.exists()
    else:
        assert yaml.safe_load(file.read_text())["target"]["capacity"]["max_hours"] == hours


def test_hours_for_a_machine_that_pdctl_does_not_make_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pd.yaml"
    refused = run_cli("init", "--file", str(file), "--max-hours", "3")
    assert refused.exit_code == ExitCode.USAGE
    assert "`--template p5en` beside it" in refused.stderr
    assert not file.exists()


def test_init_takes_the_hours_as_an_option(tmp_path: Path) -> None:
    file = tmp_path / "pd.yaml"
    run_cli("init", "--template", "p5en", "--file", str(file), "--max-hours", "3")
    assert yaml.safe_load(file.read_text())["target"]["capacity"]["max_hours"] == 3
