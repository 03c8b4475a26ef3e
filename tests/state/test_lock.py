import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pdctl.base.errors import TemporaryError
from pdctl.base.exits import ExitCode
from pdctl.base.paths import deployment_dir
from pdctl.state.lock import hold, read_holder

# Holds the lock and starts a child, as `up` starts engines; the child must not keep the lock.
HOLDER = """
import subprocess, sys, time
from pdctl.state.lock import hold
with hold("demo", "pdctl up"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
    time.sleep(60)
"""


@contextmanager
def another_pdctl() -> Iterator["tuple[subprocess.Popen[str], int]"]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        process.kill()
        os.kill(child, 9)
        process.communicate()


def test_busy_names_the_holder_and_a_kill_frees_it() -> None:
    with another_pdctl() as (process, _):
        with pytest.raises(TemporaryError) as caught, hold("demo", "pdctl down"):
            pass
        error = caught.value
        assert error.exit_code == ExitCode.TRY_AGAIN
        assert error.message == "another pdctl works on `demo`"
        assert f"held by pid {process.pid} (`pdctl up`, user " in error.detail[0]
        assert ", since " in error.detail[0]
        assert error.hints == ("wait for it to end, or give `--lock-wait SECONDS`",)

        process.kill()
        process.wait()
        assert read_holder("demo") is None  # the file is stale, and known to be
        with hold("demo", "pdctl down"):  # though the child of the killed one still runs
            holder = read_holder("demo")
            assert holder is not None
            assert (holder.pid, holder.command) == (os.getpid(), "pdctl down")


def test_waiting_has_a_limit() -> None:
    with (
        hold("demo", "pdctl up"),
        pytest.raises(TemporaryError, match=r"did not end within 0\.1 s"),
        hold("demo", "pdctl down", wait=0.1),
    ):
        pass


def test_other_deployments_are_not_held() -> None:
    with hold("demo", "pdctl up"), hold("other", "pdctl up"):
        pass


def test_a_lock_given_back_leaves_no_holder() -> None:
    with pytest.raises(RuntimeError), hold("demo", "pdctl up"):
        raise RuntimeError
    assert read_holder("demo") is None
    assert os.listdir(deployment_dir("demo")) == ["lock"]


@pytest.mark.parametrize("content", ["", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_holder_file_that_says_nothing_is_no_trouble(content: str) -> None:
    with hold("demo", "pdctl up"):
        (deployment_dir("demo") / "lock.holder").write_text(content)
        with pytest.raises(TemporaryError) as caught, hold("demo", "pdctl down"):
            pass
        assert caught.value.detail == ()
