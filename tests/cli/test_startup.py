"""`--help` and completion are typed often; they must not pay for what they do not use."""

import subprocess
import sys

HEAVY = ("boto3", "paramiko", "aiohttp", "jinja2", "plotly", "pydantic", "yaml", "rich.console")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pdctl.cli.app import run\n"
        "run(['--help'])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stderr.strip() == "[]"
    assert "Commands:" in done.stdout


def test_ctrl_c_while_it_loads_leaves_no_traceback() -> None:
    script = (
        "import sys, builtins\n"
        "real = builtins.__import__\n"
        "def stop(name, *more):\n"
        "    if name == 'pdctl.cli.app':\n"
        "        raise KeyboardInterrupt\n"
        "    return real(name, *more)\n"
        "builtins.__import__ = stop\n"
        "from pdctl.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 130
    assert done.stderr == b""
