"""Files, compressed files, rotated files, files that grow, are cut off, or are replaced."""

import gzip
import os
from pathlib import Path

import pytest

from pdctl.base.errors import NotFoundError
from pdctl.observe.logs.follow import Follower
from pdctl.observe.logs.read import Source, Tail, events, rotated, source_of
from tests.observe.logs.helpers import SCANNER
from tests.observe.logs.lines import EXAMPLE, POSITIVE

DECLINED = POSITIVE["kv.read.declined"][0]
MISS = POSITIVE["router.cache.miss"][0]


def found(*paths: Path) -> list[str | None]:
    return [event.id for event in events([source_of(str(path)) for path in paths], SCANNER)]


def test_compressed_files_are_known_by_their_content(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.gz", tmp_path / "b.log"
    plain.write_text(f"{DECLINED}\n")
    packed.write_bytes(gzip.compress(f"{DECLINED}\n".encode()))
    assert found(plain) == found(packed) == ["kv.read.declined"]


def test_what_can_be_read_of_a_broken_file_is_read_and_the_rest_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(f"{DECLINED}\n".encode() * 5000)
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: len(whole) // 2])
    source = source_of(str(path))
    ids = {event.id for event in events([source], SCANNER)}
    assert ids <= {"kv.read.declined"}
    assert source.problems
    assert source.problems[0].startswith(f"{path} could not be read to its end: ")


def test_a_missing_file_or_a_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="No such file"):
        source_of(str(tmp_path / "no.log"))
    with pytest.raises(NotFoundError, match="Is a directory"):
        source_of(str(tmp_path))


def test_files_that_were_put_aside_come_first(tmp_path: Path) -> None:
    for age, name in enumerate(["x.log.2.gz", "x.log.1", "x.log", "x.log-20261129", "x.logger"]):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (age, age))
    names = [Path(path).name for path in rotated(str(tmp_path / "x.log"))]
    assert names == ["x.log.2.gz", "x.log.1", "x.log-20261129", "x.log"]
    assert rotated(str(tmp_path / "none" / "x.log")) == [str(tmp_path / "none" / "x.log")]


def test_lines_of_several_hosts_are_put_in_order_and_each_host_keeps_its_own(
    tmp_path: Path,
) -> None:
    # The second file's clock is set back between its lines.
    one, two = tmp_path / "one-prefill.log", tmp_path / "two-prefill.log"
    line = "(Worker pid=1) WARNING 11-29 15:29:{} [a.py:1] Declining expired remote read for r{} "
    line += "from engine e.\n"
    one.write_text(line.format("10", 1) + line.format("40", 4))
    two.write_text(line.format("20", 2) + line.format("15", 3) + line.format("50", 5))
    seen = events([source_of(str(one)), source_of(str(two))], SCANNER)
    assert [event.fields["request"] for event in seen] == ["r1", "r2", "r3", "r4", "r5"]


def test_a_tail_follows_growth_truncation_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    tail = Tail(str(path))
    assert tail.read() == b""  # it is not there yet
    path.write_bytes(b"one\n")
    assert tail.read() == b"one\n"
    with path.open("ab") as file:
        file.write(b"two\n")
    assert (tail.read(), tail.restarted) == (b"two\n", False)
    path.write_bytes(b"3\n")
    assert (tail.read(), tail.restarted) == (b"3\n", True)
    path.rename(tmp_path / "x.log.1")
    assert (tail.read(), tail.restarted) == (b"", False)
    with (tmp_path / "x.log.1").open("ab") as file:
        file.write(b"late\n")
    assert tail.read() == b"late\n"
    path.write_bytes(b"new\n")
    assert (tail.read(), tail.restarted) == (b"new\n", True)
    tail.close()


def test_following_gives_events_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "router-0.log"
    path.write_text(f"{MISS}\n")

    def add(text: str) -> None:
        with path.open("a") as file:
            file.write(text)

    steps = [
        lambda: add(f"{EXAMPLE}[x] Prefill done in 9ms\n{MISS}"),
        lambda: add("\n"),
        lambda: None,
        lambda: None,
        lambda: path.write_text(f"{EXAMPLE}[y] Prefill done in 8ms\n"),
    ]
    told: list[tuple[bool, str | None]] = []
    said: list[str] = []
    sources = [Source("router-0", (str(path),), "router")]
    for batch in Follower(sources, SCANNER, wait=lambda _: steps.pop(0)() if steps else None):
        told += [(batch.old, event.id) for event in batch.events]
        said += batch.said
        if not steps and said:
            break
    assert told == [
        (True, "router.cache.miss"),
        (False, "router.prefill.done"),
        (False, "router.cache.miss"),
        (False, "router.prefill.done"),
    ]
    assert said == ["router-0 was truncated or put aside; it is read on"]
