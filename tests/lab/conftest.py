"""The hosts that tests of more than one machine use."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.hosts import Lab, leftovers, make_lab, why_not
from tests.lab.site import Site, made


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


@pytest.fixture(scope="session", params=["stand-in", "real"])
def site(
    lab_possible: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Site]:
    """The lab of `examples/lab.yaml` and two hosts more; one deployment for all its tests.

    First with engines that start in a second, then with vLLM. It is down when they end, and what
    `down` should have ended and did not fails the last.
    """
    folder = tmp_path_factory.mktemp("site")
    with made(5, folder, real=request.param == "real") as site:
        yield site
        last = replace(site.operator, file=site.edited) if site.edited.exists() else site.operator
        last.types("down", "--yes")
        assert site.left() == []
    assert leftovers(site.lab.id) == []


@pytest.fixture
def running(site: Site) -> Site:
    """The site with all of the example's deployment up, whatever the test before has done."""
    for host in site.lab.hosts:
        host.run("ip", "link", "set", "eth0", "up")
        host.run("iptables", "-F")
    if site.operator.tries("status").status != 0:
        site.operator.types("up", "--yes")
    return site
