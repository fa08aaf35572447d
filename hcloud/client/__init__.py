"""The Python client: jobs as futures.

>>> from hcloud.client import Client
>>> with Client() as client:
...     job = client.submit(name="train", command=["python3", "train.py"], within="2h")
...     job.result().outcome

Jobs are described as in job files (docs/jobs.md). The command line is built on the same modules.
"""

from __future__ import annotations

from hcloud.client.client import Client
from hcloud.client.futures import JobFailed, JobFuture, JobResult

__all__ = ["Client", "JobFailed", "JobFuture", "JobResult"]
