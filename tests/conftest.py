"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A busy machine is no error; whatever has to be fast is measured in benchmarks/.
settings.register_profile("pdctl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pdctl")
