"""Parts of a job file about files: what a job finds in its work directory, and what is kept of it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_serializer, model_validator

from hcloud.core.bucket_urls import BucketInput, BucketOutput, is_bucket_url, parse_bucket_url, why_no_path
from hcloud.core.errors import ConfigError
from hcloud.core.model import Checkpoint
from hcloud.core.units import NonEmptyText, PositiveSeconds, shown
from hcloud.spec.job_variables import JobFilePart
from hcloud.spec.validation import AtKey

INPUTS_MOST: Final = 100
CHECKPOINT_LEAST_S: Final = 5.0


def output_pattern(text: str) -> str:
    """Return a pattern that stays below the work directory. Raises ValueError."""
    parts = text.split("/")
    if text.startswith(("/", "~")) or ".." in parts or "\0" in text:
        raise ValueError(f"must be below the work directory, such as results/ or *.csv, not {shown(text)}")
    return text


def _input_place(text: str) -> str:
    place = text.removeprefix("./")
    if place in ("", "."):
        return "."
    if problem := why_no_path(place.removesuffix("/")):
        raise ValueError(
            f"must be a path below the work directory, such as data/ or model.bin; {shown(text)} {problem}"
        )
    return place


class InputPart(JobFilePart):
    """Files that the job finds in its work directory."""

    source: NonEmptyText = Field(
        alias="from",
        description="A file or folder beside the job file, which `hcloud submit` uploads, or s3://BUCKET/KEY or "
        "gs://BUCKET/KEY: an object, or all objects of a folder, which each machine fetches.",
    )
    """Where it comes from."""
    to: Annotated[NonEmptyText, AfterValidator(_input_place)] = ""
    """Where, below the work directory: a file's name, or a folder. Default: the last name of `from`."""

    @model_validator(mode="before")
    @classmethod
    def _default_place(cls, given: object) -> object:
        if not isinstance(given, dict) or given.get("to") is not None or not isinstance(given.get("from"), str):
            return given
        source = str(given["from"])
        path = parse_bucket_url(source).key if _is_valid_url(source) else source
        return {**given, "to": PurePosixPath(path).name or "."}

    @model_validator(mode="after")
    def _known(self) -> InputPart:
        if is_bucket_url(self.source):
            try:
                parse_bucket_url(self.source)
            except ValueError as error:
                raise AtKey("from", str(error)) from None
        return self

    @model_serializer
    def _as_written(self) -> dict[str, str]:
        return {"from": self.source, "to": self.to}

    @property
    def is_local(self) -> bool:
        """Whether it is a path of the submitter's machine."""
        return not is_bucket_url(self.source)


def _is_valid_url(text: str) -> bool:
    try:
        parse_bucket_url(text)
    except ValueError:
        return False
    return True


def input_from_text(value: object) -> object:
    """Return the short form ``data/train.csv`` as a mapping."""
    return {"from": value} if isinstance(value, str) else value


InputParts = Annotated[
    tuple[Annotated[InputPart, BeforeValidator(input_from_text, json_schema_input_type=InputPart | NonEmptyText)], ...],
    Field(max_length=INPUTS_MOST),
]


def check_inputs(inputs: tuple[InputPart, ...]) -> None:
    """Raise AtKey where two inputs come to one place, or one below a file that another may be."""
    places = dict[str, int]()
    for index, each in enumerate(inputs):
        place = each.to.rstrip("/")
        if place in places and (place != "." or inputs[places[place]].source == each.source):
            raise AtKey("inputs", f"has two that come to {place}: {inputs[places[place]].source} and {each.source}")
        places[place] = index


def bucket_inputs(inputs: tuple[InputPart, ...]) -> tuple[BucketInput, ...]:
    """Return the inputs as a job has them. Raises ConfigError: one is of the submitter's machine."""
    for index, each in enumerate(inputs):
        if each.is_local:
            raise ConfigError(
                "is a path on the submitter's machine, which `hcloud submit` uploads with the work directory",
                where=f"inputs[{index}].from",
            )
    return tuple(BucketInput(source=each.source, to=each.to) for each in inputs)


class OutputPart(JobFilePart):
    """Files that are brought back, or sent to a bucket."""

    source: Annotated[NonEmptyText, AfterValidator(output_pattern)] = Field(
        alias="from", description="A file, folder or pattern below the work directory."
    )
    """What is kept."""
    to: NonEmptyText | None = None
    """A folder of a bucket, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER; left out: it is brought back."""

    @model_validator(mode="after")
    def _known(self) -> OutputPart:
        if self.to is not None:
            try:
                parse_bucket_url(self.to)
            except ValueError as error:
                raise AtKey("to", str(error)) from None
        return self

    @model_serializer
    def _as_written(self) -> str | dict[str, str]:
        return self.source if self.to is None else {"from": self.source, "to": self.to}


OutputParts = Annotated[
    tuple[
        Annotated[OutputPart, BeforeValidator(input_from_text, json_schema_input_type=OutputPart | NonEmptyText)], ...
    ],
    Field(max_length=100),
]


def brought_back(outputs: tuple[OutputPart, ...]) -> tuple[str, ...]:
    """Return the patterns of what is brought back."""
    return tuple(each.source for each in outputs if each.to is None)


def bucket_outputs(outputs: tuple[OutputPart, ...]) -> tuple[BucketOutput, ...]:
    """Return what goes to buckets, as a job has it."""
    return tuple(BucketOutput(pattern=each.source, to=each.to) for each in outputs if each.to is not None)


def checkpoint_from_path(value: object) -> object:
    """Return the short form ``checkpoint: state`` as a mapping."""
    return {"path": value} if isinstance(value, str) else value


class CheckpointPart(JobFilePart):
    """What the job writes so that its next attempt goes on from there."""

    path: Annotated[NonEmptyText, AfterValidator(output_pattern)]
    """A file or folder in the work directory; it is kept off the machine, and restored there for the next attempt."""
    every: Annotated[PositiveSeconds, Field(ge=CHECKPOINT_LEAST_S)] = 300.0
    """It is copied so often, and when the provider announces to take the machine back."""
    signal: Literal["USR1", "USR2", "HUP"] | None = None
    """Sent to the command (not to its children) before each copy, upon which it writes its state. Default: none."""

    def to_checkpoint(self) -> Checkpoint:
        """Return the same as a job has it."""
        return Checkpoint(path=self.path, every_s=self.every, signal=self.signal or "")
