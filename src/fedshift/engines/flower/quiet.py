"""Flower and Ray without calls home: usage events, looks for updates and installers are off."""

from __future__ import annotations


def environment() -> dict[str, str]:
    """What must stand in the environment before Flower is imported or started."""
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
