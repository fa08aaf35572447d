"""The engine: runs units on instances and reports their ends, with Dask distributed as transport only.

A unit lives in a directory of its instance (``unit``), kept by a process of its own (``keeper``) inside a sandbox
(``sandbox``, ``limits``). The instance's worker is two processes: a supervisor that forks keepers and enforces expiry
(``worker``) and a Dask worker that only carries messages (``link``). Messages meet at a switchboard inside the Dask
scheduler (``scheduler``), which the daemon asks (``runner``). Whatever dies, units go on and are found again.
"""
