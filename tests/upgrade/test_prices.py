"""Prices of the previous release: a home that stored them starts, and newer shipped prices reach its providers."""

import json
import os
from pathlib import Path

from hcloud.catalog import price_file
from hcloud.config import load_config
from hcloud.wiring import ensure_price_files

CONFIG = """
owner: hcloud-a
state_dir: .
catalog: {refresh_every_s: null, aws: {regions: [us-east-1], spot: false}}
"""
MARCH_2025, OCTOBER_2026 = 1_740_900_000.0, 1_791_000_000.0


def test_stored_prices_of_libcloud_give_way_to_newer_ones_and_those_of_amazon_stay(tmp_path: Path) -> None:
    file, catalog = tmp_path / "config.yaml", tmp_path / "catalog"
    file.write_text(CONFIG)
    catalog.mkdir()
    prices = {"m5.large": {"on_demand": [0.5, 0]}, "m6i.large": {"on_demand": [0.6, 1]}}
    (catalog / "catalog.json").write_text(
        json.dumps(
            {
                "form": "hcloud-catalogue-1",
                "versions": {"aws:us-east-1": "1"},
                "origins": [["apache-libcloud 3.8.0", MARCH_2025], ["AWS price list", OCTOBER_2026]],
                "sizes": {},
                "prices": {"ec2": {"us-east-1": prices}},
            }
        )
    )
    for cloud in ("ec2", "gce"):
        price_file(catalog, cloud).write_text("{}")
        os.utime(price_file(catalog, cloud), (OCTOBER_2026, OCTOBER_2026))
    config = load_config(file)
    assert config.catalog.refresh_every_s is None
    ensure_price_files(config)
    known = json.loads(price_file(catalog, "ec2").read_text())["us-east-1"]
    assert {kind: known[kind]["on_demand"] for kind in ("m5.large", "m6i.large", "m8i.large")} == {
        "m5.large": 0.096,
        "m6i.large": 0.6,
        "m8i.large": 0.10584,
    }
