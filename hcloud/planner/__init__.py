"""The planner decides what to do: it takes a snapshot and a policy and returns a plan, without side effects."""

from hcloud.planner.make import make_plan

__all__ = ["make_plan"]
