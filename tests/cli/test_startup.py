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
