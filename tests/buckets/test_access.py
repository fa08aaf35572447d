"""What jobs may read of buckets, and what becomes of it in a work directory."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcloud.buckets.access import OBJECTS_MOST, BucketAccess, BucketGrant
from hcloud.buckets.clients import BucketClient, BucketProblem, SignedUrl, StoredObject
from hcloud.core.bucket_urls import BucketInput, BucketOutput, BucketUrl, parse_bucket_url
from hcloud.core.clock import SystemClock


@dataclass
class Shelf:
    """A store in memory, which counts what it is asked."""

    keys: dict[str, int]
    asked: list[str] = field(default_factory=list)

    def list(self, bucket: str, prefix: str, limit: int) -> list[StoredObject]:
        self.asked.append(f"{bucket}/{prefix}")
        found = sorted(key for key in self.keys if key.startswith(prefix))
        return [StoredObject(key=key, size_bytes=self.keys[key]) for key in found[:limit]]

    def sign_get(self, bucket: str, stored: StoredObject, valid_s: float) -> SignedUrl:
        return SignedUrl(url=f"https://store/{bucket}/{stored.key}")

    def sign_put(self, bucket: str, key: str, size_bytes: int, md5: str, valid_s: float) -> SignedUrl:
        return SignedUrl(url=f"https://store/{bucket}/{key}")

    def check_write(self, bucket: str, key: str) -> None:
        self.asked.append(f"write {bucket}/{key}")


def _access(shelf: Shelf, *grants: BucketGrant) -> BucketAccess:
    def connect(_: BucketGrant) -> BucketClient:
        return shelf

    usual = BucketGrant(url=parse_bucket_url("s3://data/team"))
    return BucketAccess(grants or (usual,), SystemClock(), connect)


def _input(source: str, to: str = ".") -> BucketInput:
    return BucketInput(source=source, to=to)


def _places(access: BucketAccess, *inputs: BucketInput) -> list[str]:
    return [each.path for each in access.files(inputs, "anna", 1.0)]


def test_an_object_is_one_file_and_a_folder_all_that_is_in_it() -> None:
    access = _access(Shelf({"team/a": 1, "team/set/": 0, "team/set/x": 1, "team/set/y/z": 1, "team/settings": 1}))
    assert _places(access, _input("s3://data/team/a", "m.bin")) == ["m.bin"]
    assert _places(access, _input("s3://data/team/a", "in/")) == ["in/a"]
    assert _places(access, _input("s3://data/team/set", "d"), _input("s3://data/team/a")) == ["d/x", "d/y/z", "a"]
    assert _places(access, _input("s3://data/team/set/", "d/")) == ["d/x", "d/y/z"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("s3://data/teams/a", "may not be read for anna; those that may be: s3://data/team "),
        ("s3://data", "may not be read"),
        ("s3://other/team/a", "may not be read"),
        ("gs://data/team/a", "may not be read"),
        ("s3://data/team/missing", "there is no such object, nor one below it"),
        ("s3://data/team/odd", "'../x', which can be no file: it leads outside with '..'"),
        ("s3://data/team/huge", "are more than the job's disk of 1 GiB; raise resources.disk"),
        ("s3://data/team/many", f"holds more than {OBJECTS_MOST} objects"),
        ("s3://data/team/both", "both/x would be a file and a folder"),
    ],
)
def test_what_a_job_cannot_have_is_one_sentence(source: str, words: str) -> None:
    keys = {"team/a": 1, "team/odd/../x": 1, "team/huge": 2**31, "team/both/x": 1, "team/both/x/y": 1}
    shelf = Shelf({**keys, **{f"team/many/{each}": 0 for each in range(OBJECTS_MOST + 5)}})
    with pytest.raises(BucketProblem) as caught:
        _access(shelf).check_inputs([_input(source, "both" if "both" in source else ".")], "anna", 1.0, exist=True)
    assert words in str(caught.value) and str(caught.value).startswith("inputs") and "\n" not in str(caught.value)


def test_nothing_is_asked_of_a_bucket_that_the_user_may_not_read() -> None:
    shelf = Shelf({"x": 1})
    access = _access(shelf, BucketGrant(url=parse_bucket_url("s3://data"), users=frozenset({"bert"})))
    with pytest.raises(BucketProblem, match="none may be"):
        access.check_inputs([_input("s3://data/x")], "anna", 1.0, exist=True)
    assert shelf.asked == []
    access.check_inputs([_input("s3://data/x")], "bert", 1.0, exist=True)
    assert shelf.asked == ["data/x"]  # one list for the check of each and of all


def test_what_is_only_read_is_not_written() -> None:
    url = parse_bucket_url("s3://data/team")
    read = BucketGrant(url=url)
    with pytest.raises(BucketProblem, match="may not be written"):
        _access(Shelf({}), read).grant_for(url.joined("x"), "anna", write=True)
    written = replace(read, may_write=True)
    assert _access(Shelf({}), read, written).grant_for(url.joined("x"), "anna", write=True) is written


def test_a_folder_is_tried_once_a_while_for_all_that_write_there() -> None:
    shelf = Shelf({})
    access = _access(shelf, BucketGrant(url=parse_bucket_url("s3://data/team"), may_write=True))
    output = BucketOutput(pattern="r", to="s3://data/team/run")
    for _ in range(2):
        access.check_outputs([output, output], "anna")
    assert shelf.asked == ["data/team/run", "write data/team/run/.hcloud-write-check"]


def test_two_objects_for_one_file_are_refused() -> None:
    access = _access(Shelf({"team/a/x": 1, "team/b/x": 1}))
    with pytest.raises(BucketProblem, match="two objects would become the file x"):
        _places(access, _input("s3://data/team/a"), _input("s3://data/team/b"))


def test_a_job_that_waits_need_not_find_its_inputs_yet() -> None:
    shelf = Shelf({})
    _access(shelf).check_inputs([_input("s3://data/team/later")], "anna", 1.0, exist=False)
    assert shelf.asked == []


_parts = st.sampled_from(["a", "b", "ab", "..", ".", "", "team", "team2"])
_keys = st.lists(_parts, max_size=4).map("/".join)


def _is_within_by_prefix(url: BucketUrl, other: BucketUrl) -> bool:
    """A seeded fault: a folder's name as a mere prefix."""
    return url.bucket == other.bucket and url.key.startswith(other.key)


def _outside(url: BucketUrl, folder: BucketUrl, check: object) -> bool:
    """Return whether ``check`` lets an address through that a walk along its parts takes out of the folder."""
    place = list[str]()
    for part in url.key.split("/"):
        if part == "..":
            place = place[:-1]
        elif part not in ("", "."):
            place.append(part)
    wanted = [each for each in folder.key.split("/") if each]
    return bool(check(url, folder)) and place[: len(wanted)] != wanted  # type: ignore[operator]


@given(_keys, _keys)
def test_no_address_that_parses_leads_out_of_what_is_granted(key: str, folder: str) -> None:
    try:
        url, granted = parse_bucket_url(f"s3://data/{key}"), parse_bucket_url(f"s3://data/{folder}")
    except ValueError:
        return
    assert not _outside(url, granted, BucketUrl.is_within)


def test_the_property_catches_a_mere_prefix() -> None:
    assert _outside(BucketUrl("s3", "data", "team2/x"), BucketUrl("s3", "data", "team"), _is_within_by_prefix)
    assert _outside(BucketUrl("s3", "data", "team/../x"), BucketUrl("s3", "data", "team"), BucketUrl.is_within)
