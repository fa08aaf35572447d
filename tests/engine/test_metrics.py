"""Request rate and latency from what a service says of itself."""

import pytest

from hcloud.engine.metrics import histogram_quantile, parse_probe, parse_prometheus, rate_and_latency

BEFORE = """
# HELP http_request_duration_seconds Latency.
# TYPE http_request_duration_seconds histogram
http_request_duration_seconds_bucket{path="/",le="0.01"} 100
http_request_duration_seconds_bucket{path="/",le="0.1"} 100
http_request_duration_seconds_bucket{path="/",le="+Inf"} 100
http_request_duration_seconds_count{path="/"} 100
http_request_duration_seconds_sum{path="/"} 0.5
process_start_time_seconds 1.7e9
"""
AFTER = (
    BEFORE.replace("} 100\n", "} 200\n", 1)
    .replace('le="0.1"} 100', 'le="0.1"} 300')
    .replace('+Inf"} 100', '+Inf"} 300')
)
AFTER = AFTER.replace('count{path="/"} 100', 'count{path="/"} 300')


def test_histogram_gives_rate_and_percentiles_of_the_span() -> None:
    measured = rate_and_latency(parse_prometheus(BEFORE), parse_prometheus(AFTER), seconds=10.0)
    assert measured["requests_per_s"] == pytest.approx(20.0)
    assert measured["latency_ms"]["50"] == pytest.approx(10.0)
    assert measured["latency_ms"]["99"] == pytest.approx(10 + 90 * 0.98)


def test_summary_in_milliseconds_is_taken_as_it_is() -> None:
    text = 'api_latency_ms{quantile="0.5"} 3\napi_latency_ms{quantile="0.99"} 12.5\napi_latency_ms_count 50\n'
    measured = rate_and_latency([], parse_prometheus(text), seconds=5.0)
    assert measured == {"requests_per_s": 10.0, "latency_ms": {"50": 3.0, "99": 12.5}}


def test_plain_counter_gives_a_rate_only() -> None:
    before, after = (
        parse_prometheus('my_requests_total{code="200"} 10\n'),
        parse_prometheus('my_requests_total{code="200"} 30\n'),
    )
    assert rate_and_latency(before, after, 4.0) == {"requests_per_s": 5.0, "latency_ms": {}}


def test_service_that_says_nothing_known_is_not_measured() -> None:
    assert rate_and_latency([], parse_prometheus("up 1\nnonsense\n{ 5"), 1.0) == {
        "requests_per_s": None,
        "latency_ms": {},
    }


def test_idle_span_has_no_percentiles() -> None:
    same = parse_prometheus(BEFORE)
    assert rate_and_latency(same, same, 5.0) == {"requests_per_s": 0.0, "latency_ms": {}}


def test_quantile_beyond_the_last_bound_is_that_bound() -> None:
    assert histogram_quantile(0.99, {0.1: 1, 0.5: 2, float("inf"): 100}) == 0.5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('noise\n{"requests_per_s": 2, "latency_ms": {"99": 7}}\n', {"requests_per_s": 2.0, "latency_ms": {"99": 7.0}}),
        ('{"requests_per_s": 2}', {"requests_per_s": 2.0, "latency_ms": {}}),
        ("", None),
        ("not json", None),
        ("[1]", None),
        ('{"latency_ms": {"99": "fast"}}', None),
    ],
)
def test_probe_is_its_last_line_or_nothing(text: str, found: object) -> None:
    assert parse_probe(text.encode()) == found
