"""Settings every test shares."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test depends on timing, hypothesis included; a failure prints the blob that reproduces it.
settings.register_profile(
    "tidemark", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("tidemark")
