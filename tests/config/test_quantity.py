"""Durations, sizes and times are read as people write them, and slips are refused."""

import pytest

from hcloud.core.units import parse_duration_s, parse_size_mib, parse_utc_s, shown, utc_text


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90), (0.5, 0.5), ("90s", 90), ("10m", 600), ("10 min", 600), ("1h30m", 5400), ("1h 30m", 5400),
        ("2d", 172800), ("1w", 604800), ("250ms", 0.25), ("1.5h", 5400), (" 5s ", 5), ("0s", 0),
    ],
)  # fmt: skip
def test_duration_is_read(written: object, seconds: float) -> None:
    assert parse_duration_s(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    ["", "10", "10x", "m10", "-5s", "1h-30m", "ten minutes", "1e3s", "10 m x", True, None, [], float("nan"),
     float("inf"), -1, 10**400, "9999999w", "1s" * 100],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration_s(written)


@pytest.mark.parametrize(
    ("written", "mib"),
    [
        (512, 512),
        ("512MiB", 512),
        ("1.5GiB", 1536),
        ("2Gi", 2048),
        ("1 TiB", 1048576),
        ("1024KiB", 1),
        ("2GB", 1907.35),
    ],
)
def test_size_is_read(written: object, mib: float) -> None:
    assert parse_size_mib(written) == pytest.approx(mib, rel=1e-5)


@pytest.mark.parametrize("written", ["", "10", "GiB", "-1GiB", "1PiB", "big", True, None, {}, float("inf"), 10**400])
def test_what_is_no_size_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="must be a size"):
        parse_size_mib(written)


def test_size_with_an_ambiguous_unit_is_refused_with_both_meanings() -> None:
    with pytest.raises(ValueError, match=r"is ambiguous: write 2GiB \(binary\) or 2GB \(decimal\)"):
        parse_size_mib("2G")


def test_time_is_read_with_its_zone_and_written_back() -> None:
    assert parse_utc_s("2030-05-01T18:00:00+02:00") == parse_utc_s("2030-05-01T16:00:00Z")
    assert utc_text(parse_utc_s("2030-05-01T16:00:00Z")) == "2030-05-01T16:00:00Z"


def test_time_without_a_zone_is_refused_since_it_could_mean_two_moments() -> None:
    with pytest.raises(ValueError, match="must say its time zone, for example 2030-05-01T18:00:00Z"):
        parse_utc_s("2030-05-01 18:00")


@pytest.mark.parametrize("written", ["", "tomorrow", "2030-13-01", 5, None, True, "0001-01-01T00:00:00+14:00"])
def test_what_is_no_time_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="must be a time"):
        parse_utc_s(written)


def test_values_in_messages_stay_short_and_on_one_line() -> None:
    for value in ("x" * 1000, "a\nb\x1b[31m", 10**5000, {"a": 1}, [1], None, True):
        assert len(shown(value)) <= 60
        assert shown(value).isprintable()
