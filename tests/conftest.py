"""What holds for all tests."""

from hypothesis import settings

# A busy machine is no error; whatever has to be fast is measured in benchmarks/.
settings.register_profile("pdctl", deadline=None)
settings.load_profile("pdctl")
