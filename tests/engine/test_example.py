"""The example proxy's file, out of a source distribution."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pdctl.base.errors import NotFoundError
from pdctl.engine.example import (
    PATH,
    is_archive,
    missing_command,
    missing_modules,
    read_from_archive,
)


def archive(folder: Path, *members: tuple[str, bytes]) -> Path:
    path = folder / "vllm-0.33.0.tar.gz"
    with tarfile.open(path, "w:gz") as out:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return path


def test_the_one_file_is_taken_out_and_nothing_else(tmp_path: Path) -> None:
    path = archive(
        tmp_path,
        ("vllm-0.33.0/setup.py", b"raise SystemExit"),
        (f"vllm-0.33.0/{PATH}", b"import httpx\n"),
        ("../evil", b"x"),
    )
    assert read_from_archive(path) == b"import httpx\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_of_that_name_is_not_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    with tarfile.open(path, "w:gz") as out:
        link = tarfile.TarInfo(f"vllm/{PATH}")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(link)
    with pytest.raises(NotFoundError, match=r"there is no disagg_proxy_multiturn\.py"):
        read_from_archive(path)


def test_what_cannot_be_read_is_said_with_what_is_expected(tmp_path: Path) -> None:
    broken = archive(tmp_path, (f"v/{PATH}", b"x" * 5000))
    broken.write_bytes(broken.read_bytes()[:60])
    text = tmp_path / "text.tar.gz"
    text.write_text("not an archive")
    for path, said in (
        (broken, "cannot be read"),
        (text, "cannot be read"),
        (tmp_path / "none.tar.gz", "No such file"),
    ):
        with pytest.raises(NotFoundError, match=said) as caught:
            read_from_archive(path)
        assert caught.value.where == str(path)
        assert PATH in (caught.value.expected or "")


@pytest.mark.parametrize(
    ("name", "is_one"), [("a.tar.gz", True), ("a.tgz", True), ("a.py", False), ("vllm", False)]
)
def test_archives_by_name(name: str, is_one: bool) -> None:
    assert is_archive(Path(name)) is is_one


def test_an_interpreter_is_asked_for_what_the_proxy_imports() -> None:
    argv = missing_command(sys.executable).argv()
    modules = ["httpx", "fastapi", "uvicorn"]
    assert argv[-3:] == modules
    asked = [*argv[:-3], "json", "no_such_module", "asyncio"]
    assert subprocess.check_output(asked, text=True).split() == ["no_such_module"]
    assert missing_modules(["httpx", "uvicorn"]).startswith(
        "the example proxy needs `httpx` and `uvicorn`, which the engine's Python does not have"
    )
