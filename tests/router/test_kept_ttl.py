"""The TTL that was set while a router ran, for its next start."""

from pathlib import Path

import pytest

from pdctl.router.kept_ttl import UNKNOWN_S, read_ttl, write_ttl


def test_what_was_set_holds_at_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "ttl.json"
    assert read_ttl(file, 450.0) == 450.0
    write_ttl(file, 30.5)
    assert read_ttl(file, 450.0) == 30.5
    assert [each.name for each in tmp_path.iterdir()] == ["ttl.json"]


@pytest.mark.parametrize("content", [b"", b'{"ttl": 4', b'{"ttl": -1}', b"[]", b"\xff"])
def test_what_cannot_be_read_offers_hardly_anything(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "ttl.json"
    file.write_bytes(content)
    assert read_ttl(file, 450.0) == UNKNOWN_S
