"""Objects of buckets that jobs read and write: which the daemon may use for whom, and how machines get at them.

A machine never has a credential of the cloud. It gets URLs, each signed for one object and some hours.
"""

from hcloud.buckets.access import BucketAccess, BucketGrant
from hcloud.buckets.clients import BucketProblem, StoredObject
from hcloud.buckets.inputs import InputPreparer

__all__ = ["BucketAccess", "BucketGrant", "BucketProblem", "InputPreparer", "StoredObject"]
