import re
import subprocess
import sys


def test_lines_tell_time_level_and_deployment() -> None:
    code = """
import logging
from pdctl.router import logs
logs.to_stderr("chat")
log = logging.getLogger("pdctl.router")
log.debug("not shown")
for number in range(3):
    log.info("a line %d", number)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = run.stderr.splitlines()
    assert len(lines) == 3
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    for number, line in enumerate(lines):
        assert re.fullmatch(rf"{time} \[INFO\] chat pdctl.router: a line {number}", line)
