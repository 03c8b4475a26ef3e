"""`pdctl version`."""

import platform

from pdctl import __version__
from pdctl.cli import options, ui


def version(json: options.Json = False) -> None:
    """Print the version of pdctl, of Python, and the platform."""
    facts = {
        "pdctl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if json:
        ui.json(facts)
    else:
        ui.data(f"pdctl {facts['pdctl']} (Python {facts['python']}, {facts['platform']})")
