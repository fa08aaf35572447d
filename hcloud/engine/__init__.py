"""The engine: runs units on instances and reports their ends, over a stream that each machine opens.

A unit lives in a directory of its instance (``unit``), kept by a process of its own (``keeper``) inside a sandbox
(``sandbox``, ``limits``). The instance's worker is two processes: a supervisor that forks keepers and enforces expiry
(``worker``) and a process that only carries messages (``link``). Messages meet at the gateway (``gateway``), which the
daemon asks (``runner``). Whatever dies, units go on and are found again.
"""
