"""The file of API keys: what a line may say, and what happens when it changes."""

import hashlib
import os
from pathlib import Path

import pytest

from pdctl.base.errors import NotFoundError, PdctlError, UsageError
from pdctl.router.keys import ApiKeys, KeyFile, parse_keys


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def tenant(keys: ApiKeys, key: str) -> str | None:
    return keys.tenant_of(f"Bearer {key}")


def test_a_line_names_a_tenant_or_none_and_a_key_or_its_digest() -> None:
    keys = parse_keys(
        "# clients\n"
        "alice: one # hers\n"
        f"alice:sha256:{digest('two').upper()}\n"
        "three\n"
        f"sha256:{digest('four')}\n"
        "bob:with:colon\n",
        "keys",
    )
    assert tenant(keys, "one") == tenant(keys, "two") == "alice"
    assert tenant(keys, "three") == digest("three")[:12]
    assert tenant(keys, "four") == digest("four")[:12]
    assert tenant(keys, "with:colon") == "bob"
    for wrong in ("One", "alice:one", f"sha256:{digest('two')}", digest("two"), ""):
        assert tenant(keys, wrong) is None
    assert "one" not in repr(keys).replace("alice", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no API key"),
        ("# only a comment\n", "no API key"),
        ("a:x\nb:x\n", "twice"),
        (f"a:x\nb:sha256:{digest('x')}\n", "twice"),
        ("a:\n", "a tenant without a key"),
        ("a:sha256:abc\n", "not a digest"),
        ("sha256:\n", "not a digest"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_keys(text, "keys")
    assert str(caught.value.where).startswith("keys")
    assert digest("x") not in str(caught.value)


def test_a_change_is_read_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("a:one\n")
    file = KeyFile(path)
    assert not file.reread()
    path.write_text("a:one\nb:two\n")
    assert file.reread()
    assert tenant(file.keys, "two") == "b"
    for break_it in (
        lambda: path.write_text("a:sha256:oh\n"),
        lambda: path.write_bytes(b"\xff\xfe"),
        path.unlink,
    ):
        caplog.clear()
        break_it()
        assert not file.reread()
        assert "the API keys stay as they were" in caplog.text
        assert tenant(file.keys, "two") == "b"
        caplog.clear()
        assert not file.reread()
        assert caplog.text == ""
    path.write_text("b:two\n")
    assert file.reread()
    assert tenant(file.keys, "one") is None


def test_a_file_of_the_same_size_put_in_its_place_is_another(tmp_path: Path) -> None:
    path, new = tmp_path / "keys", tmp_path / "new"
    path.write_text("a:one\n")
    file = KeyFile(path)
    new.write_text("a:two\n")
    times = path.stat()
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    new.replace(path)
    assert file.reread()
    assert tenant(file.keys, "two") == "a"


def test_the_first_reading_must_do(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        KeyFile(tmp_path / "none")
    (tmp_path / "empty").write_text("")
    with pytest.raises(PdctlError, match="no API key"):
        KeyFile(tmp_path / "empty")


# Salts.


def test_a_tenants_salt_is_its_own_whatever_it_asks_for() -> None:
    keys = parse_keys("a:one\nb:two\n", "keys")
    salts = {keys.salt(name, asked) for name in ("a", "b") for asked in ("", "x", "y")}
    assert len(salts) == 6
    # Nor can one be made up from another tenant's name.
    assert parse_keys("a:one\naa:two\n", "keys").salt("aa", "") != keys.salt("a", "a")


def test_a_salt_is_the_same_in_every_router_and_outlives_other_keys() -> None:
    salt = parse_keys("a:one\nb:two\n", "keys").salt("a", "")
    later = parse_keys(f"c:three\na:sha256:{digest('one')}\na:four\n", "keys")
    assert later.salt("a", "") == salt
    assert parse_keys("a:four\n", "keys").salt("a", "") != salt
