"""`--model` of `analyze` and `size`: a known name, or a file."""

from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.base.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from pdctl.engine.known_models import KnownModel


def named_model(model: str) -> "KnownModel":
    """A model that is known by name, a config.json, or a folder that has one.

    Raises:
        NotFoundError: it is none of them.
    """
    import json

    from pdctl.engine.known_models import KNOWN_MODELS, KnownModel

    if model in KNOWN_MODELS:
        return KNOWN_MODELS[model]
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"`{model}` is no model that is known by name, and no config.json",
            where="--model",
            expected=", ".join(sorted(KNOWN_MODELS)) + ", or a file",
        ) from error
    return KnownModel(config=config, weight_bytes=_weights(path.parent))


def _weights(folder: Path) -> int | None:
    """Bytes of the weights that lie beside a config.json."""
    return sum(each.stat().st_size for each in folder.glob("*.safetensors")) or None


def token_bytes(model: str, kv_dtype: str, tensor_parallel: int) -> int | None:
    """KV bytes of a token on all GPUs; None where no layer grows with a sequence.

    Raises:
        UsageError: the configuration does not say.
    """
    from pdctl.engine.kv_arithmetic import UnknownModelError, kv_model

    try:
        found = kv_model(
            named_model(model).config, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel
        )
    except UnknownModelError as error:
        raise UsageError(f"KV of this model cannot be computed: {error}", where=model) from None
    return found.bytes_per_token or None
