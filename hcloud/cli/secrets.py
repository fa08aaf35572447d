"""``hcloud secrets``: the keys that encrypt secrets of jobs, and their rotation."""

from __future__ import annotations

import click

from hcloud.cli.config import load_with_policy
from hcloud.cli.output import format_option, write_rows
from hcloud.config import Config, find_config
from hcloud.core.errors import BadInput

COLUMNS = ("key", "use", ">secrets")


@click.group()
def secrets() -> None:
    """Show and replace the keys that encrypt secrets of jobs. Run it as the daemon's user on its host."""


@secrets.command("keys")
@format_option
def show_keys(form: str) -> int:
    """Show which keys there are, and how many secrets each has encrypted. Ends with 1 if one is missing."""
    from hcloud.store import count_sealed
    from hcloud.wiring import secret_keys

    config = _config()
    known, used = secret_keys(config).ids(), count_sealed(config.database)
    missing = sorted(used.keys() - set(known))
    uses = {each: "encrypts" if each == known[0] else "decrypts" for each in known} | dict.fromkeys(missing, "missing")
    rows = [{"key": each, "use": use, "secrets": used.get(each, 0)} for each, use in uses.items()]
    write_rows(form, rows, COLUMNS, lambda row: list(row.values()))
    return 1 if missing else 0


@secrets.command()
def rotate() -> int:
    """Make a new key, encrypt all secrets with it, and drop keys of before that encrypt nothing.

    The last key is kept until the next rotation: a daemon may be using it at this moment.
    """
    from hcloud.store import Store
    from hcloud.wiring import secret_keys

    config = _config()
    keys = secret_keys(config)
    before = keys.ids()
    if keys.is_credential:
        raise BadInput(f"{keys.path} is a systemd credential; rotate its source as docs/operations.md says")
    new = keys.add()
    store = Store.open(config.database)
    try:
        count = store.reencrypt_secrets(new, keys.reseal)
        used = store.secret_key_counts()
    finally:
        store.close()
    dropped = [each for each in before[1:] if each not in used]
    if dropped:
        keys.keep({new, *before[:1], *used})
    click.echo(f"{count} secrets are encrypted with the new key {new} in {keys.path}")
    for each in dropped:
        click.echo(f"dropped key {each}, which encrypted nothing")
    for each in sorted(used.keys() - {new}):
        click.echo(f"{used[each]} secrets of key {each} could not be read and are unchanged")
    return 0


def _config() -> Config:
    return load_with_policy(find_config())
