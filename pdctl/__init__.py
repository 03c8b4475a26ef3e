"""pdctl: from one YAML file to a prefill/decode pair that provably reuses KV cache."""

__version__ = "0.1.0"
