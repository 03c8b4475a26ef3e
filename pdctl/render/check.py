"""The way every command loads a configuration: all problems of all kinds, in one error."""

from pathlib import Path

from pdctl.config.load import Loaded, load
from pdctl.engine.validate import problems


def load_checked(path: str | Path) -> Loaded:
    """Load a configuration and judge it with what is known of vLLM and NIXL; `-` is stdin.

    Raises:
        ConfigError: with every problem of the file, each at its line and column.
        NotFoundError: when there is no such file or it cannot be read.
    """
    return load(path, checks=[problems])
