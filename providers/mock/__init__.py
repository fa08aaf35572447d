"""A simulated cloud for tests, dry runs and the simulator. It fails as real clouds do, repeatably by seed."""

from providers.mock.faults import Fault, FaultKind
from providers.mock.machine import MachineRecord
from providers.mock.provider import MockProvider
from providers.mock.settings import MockSettings, parse_settings

__all__ = ["Fault", "FaultKind", "MachineRecord", "MockProvider", "MockSettings", "parse_settings"]
