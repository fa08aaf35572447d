"""A home that an earlier release wrote is started by this one."""
