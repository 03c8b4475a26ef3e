"""All we know of vLLM and NIXL."""
