"""`pdctl schema`."""

from pdctl.cli import ui


def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    from pdctl.config.schema import json_schema

    ui.json(json_schema())
