"""What a host has of the model: enough of its files to tell one revision from another, cheaply.

Weight files are compared by name, size and first 64 KiB (in which safetensors keep names, types and
places of all tensors), everything small by its whole content.
"""

from pathlib import PurePosixPath

from pdctl.base.command import Command, command
from pdctl.base.errors import PdctlError
from pdctl.base.runfacts import WeightFacts
from pdctl.targets.base import Host

_LIMIT_S = 30.0
COMPARED = "names, sizes and first 64 KiB of weight files; small files whole"

_SCRIPT = """
cd -- "$1" 2>/dev/null || { echo "there is no folder $1"; exit 3; }
if [ -d refs ] || [ -d snapshots ]; then
    r=$2; [ -f "refs/${r:-main}" ] && r=$(cat "refs/${r:-main}")
    cd -- "snapshots/$r" 2>/dev/null || { echo "there is no snapshot of ${2:-main}"; exit 3; }
fi
pwd -P
for f in *; do
    [ -f "$f" ] || continue
    case "$f" in
    *.safetensors|*.bin|*.pt|*.pth|*.gguf)
        echo "$(head -c 65536 -- "$f" | sha256sum | cut -c1-16) $(stat -Lc %s -- "$f") $f" ;;
    *.json|*.model|*.txt|*.jinja|*.tiktoken|*.py)
        echo "$(sha256sum < "$f" | cut -c1-16) $(stat -Lc %s -- "$f") $f" ;;
    esac
done
"""


def weights_command(model: str, revision: str | None, hub: str | None) -> Command:
    """Lists the files of a model.

    Args:
        model: path, or id on the hub.
        hub: folder of the hub's cache (`HF_HOME`), for an id.
    """
    if model.startswith("/"):
        return command("sh", "-c", _SCRIPT, "sh", model, "")
    folder = f"hub/models--{model.replace('/', '--')}"
    home = hub or "$HOME/.cache/huggingface"
    script = f'set -- "{home}/$1" "$2"\n{_SCRIPT}' if hub is None else _SCRIPT
    where = folder if hub is None else f"{hub}/{folder}"
    return command("sh", "-c", script, "sh", where, revision or "")


def read_weights(host: Host, model: str, revision: str | None, hub: str | None) -> WeightFacts:
    """The model's files on a host; never raises for one that does not say."""
    try:
        result = host.run(weights_command(model, revision, hub), timeout=_LIMIT_S)
    except PdctlError as error:
        return WeightFacts(host.name, model, error=error.message)
    lines = result.stdout.splitlines()
    if not result.ok or not lines:
        said = (lines or result.stderr.splitlines() or ["nothing was said"])[-1]
        return WeightFacts(host.name, model, error=said)
    parts: dict[str, str] = {}
    for line in lines[1:]:
        digest, size, name = line.split(" ", 2)
        parts[name] = f"{size} bytes, {digest}"
    return WeightFacts(host.name, lines[0], parts, _config(host, lines[0]))


_KEYS = (
    "architectures",
    "model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "attention_chunk_size",
)


def _config(host: Host, folder: str) -> dict[str, str]:
    """What the model's own config.json says of its attention."""
    import json

    try:
        content = host.read_file(PurePosixPath(folder) / "config.json")
        value = json.loads(content or b"{}")
    except (PdctlError, ValueError):
        return {}
    if isinstance(value, dict) and isinstance(value.get("text_config"), dict):
        value = {**value, **value["text_config"]}
    found: dict[str, str] = {}
    for key in _KEYS if isinstance(value, dict) else ():
        if (said := value.get(key)) is None:
            continue
        if isinstance(said, list):
            said = ", ".join(sorted({str(each) for each in said}))
        found[key] = str(said)
    return found
