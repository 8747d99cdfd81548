"""What every test shares: helpers beside this file can be imported, and Hypothesis neither times nor stores examples."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "partita", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60
)
settings.load_profile("partita")
