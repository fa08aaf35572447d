"""Policies for tests of single rules: the simple ones, with what the test states in addition."""

from collections.abc import Mapping
from typing import Any

from hcloud.spec.policy import Policy, ProfilingPolicy, parse_policy, simple_policy

SIMPLE_KEYS = {
    "admission": {"queues": "one"},
    "provisioning": {"strategy": "best_value"},
    "placement": {"order": "least_loaded"},
}


def simple(**sections: Any) -> Policy:
    """Return the simple rules with ``sections`` replaced; jobs are profiled if these use classifications."""
    return simple_policy(**({"name": "default", "profiling": ProfilingPolicy()} | sections))


def parse_simple(mapping: Mapping[str, Any]) -> Policy:
    """Return the policy of the keys in ``mapping``, with those of the simple rules for keys that it leaves out."""
    merged = {
        key: {**SIMPLE_KEYS.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in mapping.items()
    }
    return parse_policy(SIMPLE_KEYS | merged)
