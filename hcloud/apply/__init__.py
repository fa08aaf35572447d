"""Effects out: applies plans. Each action is re-checked on fresh rows and may be refused."""

from hcloud.apply.applier import Applier, ApplyResult, Refusal
from hcloud.apply.machines import emit_provider_error

__all__ = ["Applier", "ApplyResult", "Refusal", "emit_provider_error"]
