"""The plugin as a folder on PYTHONPATH."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pdctl
from pdctl.engine import plugin_bundle
from pdctl.engine.plugin_bundle import bundle_digest, bundle_files, bundle_name, write_bundle

DISCOVER = """
import importlib.metadata, json, sys
(point,) = importlib.metadata.entry_points(group="vllm.general_plugins")
register = point.load()
register()
module = sys.modules[register.__module__]
files = [str(f.locate()) for f in importlib.metadata.files("pdctl-plugin")]
print(json.dumps([point.name, point.value, point.dist.name, point.dist.version, module.__file__,
    files]))
"""


def _python(bundle: Path, script: str, **env: str) -> str:
    # -S: no site-packages, so what is found is found in the bundle.
    return subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": str(bundle), **env},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_engine_finds_the_entry_point(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path)
    name, value, dist, version, file, files = json.loads(_python(bundle, DISCOVER))
    assert (name, value) == ("pdctl", "pdctl.plugin:register")
    assert (dist, version) == ("pdctl-plugin", pdctl.__version__)
    assert Path(file) == bundle / "pdctl" / "plugin" / "__init__.py"
    assert all(Path(each).is_file() for each in files)
    assert write_bundle(tmp_path) == bundle  # bytecode that Python added does not matter


def test_it_is_enough_by_itself(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path)
    script = "import pdctl.plugin, sys; print(*[m for m in sys.modules if m.startswith('pdctl')])"
    loaded = set(_python(bundle, script).split())
    assert all(name == "pdctl" or name.startswith("pdctl.plugin") for name in loaded)


def test_files() -> None:
    files = bundle_files()
    source = Path(pdctl.__file__).parent / "plugin"
    expected = {f"pdctl/plugin/{path.name}": path.read_bytes() for path in source.glob("*.py")}
    assert {k: v for k, v in files.items() if k.startswith("pdctl/plugin/")} == expected
    others = {path for path in files if not path.startswith("pdctl/plugin/")}
    info = f"pdctl_plugin-{pdctl.__version__}.dist-info"
    assert others == {"pdctl/__init__.py"} | {
        f"{info}/{name}" for name in ("METADATA", "RECORD", "entry_points.txt")
    }
    assert bundle_files() == files


def test_record_lists_every_file_with_its_hash() -> None:
    files = bundle_files()
    record = next(content for path, content in files.items() if path.endswith("/RECORD")).decode()
    rows = [line.split(",") for line in record.splitlines()]
    assert {row[0] for row in rows} == files.keys()
    for path, digest, size in rows:
        if path.endswith("/RECORD"):
            assert (digest, size) == ("", "")
        else:
            assert digest.startswith("sha256=")
            assert int(size) == len(files[path])


def test_digest_depends_on_paths_and_contents() -> None:
    digest = bundle_digest({"a": b"1", "b": b"2"})
    assert digest == bundle_digest({"b": b"2", "a": b"1"})
    assert len(digest) == len(hashlib.sha256().hexdigest())
    others = [{"a": b"1", "b": b"3"}, {"a": b"1", "c": b"2"}, {"a": b"1b", "b": b""}, {"a": b"1"}]
    assert len({digest, *map(bundle_digest, others)}) == 5


def test_written_once_and_complete(tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    bundle = write_bundle(root)
    files = bundle_files()
    assert bundle == root / f"plugin-{bundle_digest(files)[:12]}"
    assert [path.name for path in root.iterdir()] == [bundle.name]
    before = bundle.stat().st_mtime_ns, (bundle / "pdctl/__init__.py").stat().st_ino
    assert write_bundle(root) == bundle
    assert before == (bundle.stat().st_mtime_ns, (bundle / "pdctl/__init__.py").stat().st_ino)


@pytest.mark.parametrize("harm", ["changed", "missing", "additional", "a file"])
def test_a_wrong_folder_is_replaced(tmp_path: Path, harm: str) -> None:
    bundle = write_bundle(tmp_path)
    if harm == "changed":
        (bundle / "pdctl/plugin/_guard.py").write_text("")
    elif harm == "missing":
        (bundle / "pdctl/plugin/_guard.py").unlink()
    elif harm == "additional":
        (bundle / "json.py").write_text("raise SystemExit")
    else:
        bundle.rename(tmp_path / "elsewhere")
        bundle.write_text("")
    assert write_bundle(tmp_path) == bundle
    assert plugin_bundle.is_intact(bundle, bundle_files())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_another_process_may_be_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = bundle_files()
    rename = os.rename

    def late(source: Path, target: Path) -> None:
        plugin_bundle._write(tmp_path / bundle_name(files), files)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    assert plugin_bundle.is_intact(write_bundle(tmp_path), files)


def test_a_failure_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="no"):
        write_bundle(tmp_path)
    assert list(tmp_path.iterdir()) == []
