"""The multi-turn router: a pure core and a thin aiohttp shell."""
