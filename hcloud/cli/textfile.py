"""Text files that users name: packed or not, from an editor or a spreadsheet."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from hcloud.errors import BadInput

PACKED = ".gz"


def text_of(path: Path, wrong_bytes: str = "strict") -> str:
    """Return the text of ``path``, unpacked where its name ends in :data:`PACKED`.

    ``wrong_bytes`` says what becomes of those that are no UTF-8, as in ``bytes.decode``. Raises BadInput, one sentence,
    where it cannot be read.
    """
    try:
        content = path.read_bytes()
        if path.suffix.lower() == PACKED:  # as archives of job logs have them
            content = gzip.decompress(content)
        return content.decode("utf-8-sig", wrong_bytes)  # spreadsheets begin a file with a byte order mark
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: cannot be unpacked ({error}); pack it with gzip, or not at all") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 text (byte {error.object[error.start]:#04x})") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
