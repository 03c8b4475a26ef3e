"""Where engine environments and built-in models live on a host, as POSIX paths.

`root` is the host's folder for what can be made again: the user's cache on this machine,
`base_dir` on others. Nothing here touches a disk.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class EngineLayout:
    """One engine environment that pdctl builds.

    Attributes:
        root: folder of this environment and nothing else; removing it is a full reset.
        key: `cpu-vllm0.32.0-nixl1.5.1-<digest of the recipe>`, also the folder's name.
    """

    root: PurePosixPath
    key: str

    @property
    def venv(self) -> PurePosixPath:
        """The virtual environment."""
        return self.root / "venv"

    @property
    def python(self) -> PurePosixPath:
        """The interpreter that runs the engine."""
        return self.venv / "bin" / "python"

    @property
    def recipe(self) -> PurePosixPath:
        """Scripts and requirement files the steps use."""
        return self.root / "recipe"

    @property
    def complete(self) -> PurePosixPath:
        """Written last: versions, and checksums of what each distribution says it installed."""
        return self.root / "COMPLETE"

    def marker(self, step: str) -> PurePosixPath:
        """Where a finished step leaves its fingerprint."""
        return self.root / "steps" / step


def engines_dir(root: PurePosixPath) -> PurePosixPath:
    """All engine environments of a host."""
    return root / "engines"


def models_dir(root: PurePosixPath) -> PurePosixPath:
    """The models pdctl makes by itself."""
    return root / "models"
