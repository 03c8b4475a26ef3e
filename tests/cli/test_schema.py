"""`pdctl schema`: the JSON Schema and nothing else on stdout."""

from pdctl.config.schema import json_schema
from tests.cli.helpers import run_cli


def test_schema_is_printed() -> None:
    result = run_cli("schema")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.json == json_schema()
