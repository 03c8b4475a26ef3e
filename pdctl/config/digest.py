"""A name for what a configuration says."""

import hashlib

from pdctl.config.model import Config


def digest_of(config: Config) -> str:
    """SHA-256 of what the configuration says, whatever its comments and order."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()
