"""The hosts that tests of more than one machine use."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.hosts import Lab, leftovers, make_lab, why_not


@pytest.fixture(scope="session")
def lab_possible() -> None:
    """Skip, with the reason, where there can be no lab."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def lab(lab_possible: None, tmp_path: Path) -> Iterator[Callable[[int], Lab]]:
    """`lab(2)` makes two hosts; they are gone, to the last process, when the test ends."""
    with ExitStack() as labs:
        made: list[Lab] = []

        def make(count: int) -> Lab:
            directory = tmp_path / f"lab{len(made)}"
            directory.mkdir()
            made.append(labs.enter_context(make_lab(count, directory)))
            return made[-1]

        yield make
    assert [leftover for lab in made for leftover in leftovers(lab.id)] == []
