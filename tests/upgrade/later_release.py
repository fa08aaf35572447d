"""What a later release has renamed and removed; importing this makes this release that one."""

from hcloud.spec.key_changes import KEY_CHANGES, KeyChange

IMPORTED = 0.0
"""Set in the processes that are to be of that release, which import it for that."""
KEY_CHANGES["config"] += (
    KeyChange(old="tick_s", new="cycle_interval_s", since="0.2.0"),
    KeyChange(old="engine.log_level", since="0.2.0", advice="use log_level"),
)
KEY_CHANGES["policy"] += (KeyChange(old="caps.machines", new="caps.max_instances", since="0.2.0"),)
