"""The pure decision core: snapshot and policy in, plan out (architecture.md, ground rule 1)."""

from hcloud.planner.make import make_plan

__all__ = ["make_plan"]
