"""Limits that quotas were found to have, as the previous release stored them: among back-offs, by letters of types."""

import sqlite3
from contextlib import closing
from pathlib import Path

from hcloud.store import Store
from tests.store.test_migrations import migrate

ROW = '{{"provider":"ec2","zone":"{}","instance_type":"{}","market":"on_demand","until_at":2e9,"error":"no"{}}}'
KEPT = ROW.format("eu-1a", "m5.large", ',"refused_vcpus":0.0,"refused_size_vcpus":0.0')
OF_A_MARKET = ROW.format("eu-1a", "", ',"refused_vcpus":0.0,"refused_size_vcpus":0.0')
OF_LETTERS = ROW.format("eu-1", "m", ',"refused_vcpus":64.0,"refused_size_vcpus":2.0')


def test_back_offs_of_offers_stay_and_those_of_quotas_go(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    migrate(url, "v0003")
    with closing(sqlite3.connect(tmp_path / "old.db")) as raw:
        for zone, name, row in (("eu-1a", "m5.large", KEPT), ("eu-1a", "", OF_A_MARKET), ("eu-1", "m", OF_LETTERS)):
            raw.execute("INSERT INTO offer_backoff VALUES ('ec2', ?, ?, 'on_demand', 2e9, ?)", (zone, name, row))
        raw.commit()
    with closing(Store.open(url)) as store:
        [kept] = store.live().backoffs
        assert (kept.zone, kept.instance_type, kept.error) == ("eu-1a", "m5.large", "no")
        assert store.live().refused_quotas == ()
