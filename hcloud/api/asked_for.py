"""What a job asks for beside its command, target and size, as one line for people."""

from __future__ import annotations

from collections.abc import Iterator

from hcloud.core.model import FailureCause, JobSpec
from hcloud.planner.text import seconds
from hcloud.spec.validation import counted

SHOWN = 5
"""Names of one kind that are shown."""


def asked_for_line(spec: JobSpec, *, whole: bool = True, has_image: bool = True, is_planned: bool = False) -> str:
    """Return what a job asks for, such as ``asks for: image debian:12, output results/``; empty if nothing of it.

    Unless ``whole``, without what only its owner may see. ``has_image``: whether its image is known to be there.
    ``is_planned``: with inputs and checkpoints, of which a timeline has lines of its own.
    """
    found = [*_machine(spec), *(_own(spec, "" if has_image else " (could not be looked up)") if whole else ())]
    found += _of_a_plan(spec) if is_planned else ()
    return f"asks for: {', '.join(found)}" if found else ""


def _machine(spec: JobSpec) -> Iterator[str]:
    if spec.framework is not None:
        own = " in a network of their own" if spec.network == "none" else ""
        yield f"{spec.framework} on its {spec.nodes.count} nodes{own}"
    if spec.resources.gpus is not None:
        yield f"{spec.resources.gpus.words()} for each node"
    if tries := spec.retries.limits.get(FailureCause.OUT_OF_MEMORY.value, 0):
        factor = f"{spec.retries.memory_factor:g} times the memory"
        yield f"{factor} when it runs out of it, at most {counted(tries, 'time')}"


def _own(spec: JobSpec, about_image: str) -> Iterator[str]:
    if spec.image is not None:
        yield f"image {spec.image}{about_image}"
    outputs = [*spec.outputs, *(f"{each.pattern} to {each.to}" for each in spec.bucket_outputs)]
    for word, names in (("secret variable", sorted(spec.secrets)), ("output", outputs)):
        if names:
            more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
            yield f"{word}{'s' if len(names) > 1 else ''} {' and '.join([*names[:SHOWN], *more])}"


def _of_a_plan(spec: JobSpec) -> Iterator[str]:
    if spec.inputs:
        yield counted(len(spec.inputs), "input") + " that its machines fetch"
    if spec.checkpoint is not None:
        yield f"a checkpoint of {spec.checkpoint.path} every {seconds(spec.checkpoint.every_s)}"
