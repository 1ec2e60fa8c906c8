from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "counterveil",
    deadline=None,  # these machines are shared; speed is measured in benchmarks/
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("counterveil")
