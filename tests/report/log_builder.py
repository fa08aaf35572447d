"""Builder of small event logs, in the form that the daemon writes them."""

from typing import Any

from hcloud.core.model import Event, EventKind

HOUR = 3600.0


class LogBuilder:
    """An event log under construction. Every method appends one event, ``machine`` three."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, kind: EventKind, at: float, **about: Any) -> None:
        """Append an event; keywords that are not columns of the log become fields."""
        columns = {key: about.pop(key) for key in ("job_id", "instance_id", "user") if key in about}
        self.events.append(Event(seq=len(self.events) + 1, at=at, kind=kind, fields=about, **columns))

    def submit(self, number: int, at: float = 0.0, user: str = "ann", **fields: Any) -> None:
        """A job is submitted."""
        fields = {
            "name": f"n{number}",
            "tags": {},
            "target_kind": "best_effort",
            "vcpus": 1.0,
            "memory_mib": 512,
        } | fields
        self.add(EventKind.JOB_SUBMITTED, at, job_id=f"job-{number}", user=user, **fields)

    def request(self, number: int, at: float = 0.0, price: float = 1.0, **fields: Any) -> None:
        """A machine is requested; by default with two vCPUs and 4 GiB for one dollar per hour."""
        fields = {
            "provider": "mock",
            "region": "r",
            "zone": "r-a",
            "type": "small",
            "market": "on_demand",
            "price_usd_per_h": price,
            "priced_at": at,
            "vcpus": 2.0,
            "memory_mib": 4096,
            "billing_minimum_s": 60.0,
            "on_demand_usd_per_h": price,
        } | fields
        self.add(EventKind.INSTANCE_REQUESTED, at, instance_id=f"inst-{number}", **fields)

    def launch(self, number: int, at: float, price: float = 1.0) -> None:
        """The provider confirms the launch."""
        self.add(EventKind.INSTANCE_LAUNCHED, at, instance_id=f"inst-{number}", launched_at=at, price_usd_per_h=price)

    def ready(self, number: int, at: float) -> None:
        """The machine's worker has registered."""
        self.add(EventKind.INSTANCE_READY, at, instance_id=f"inst-{number}", boot_s=0.0)

    def machine(self, number: int, launched_at: float, ready_at: float, price: float = 1.0, **fields: Any) -> None:
        """A machine from request to ready."""
        self.request(number, launched_at, price, **fields)
        self.launch(number, launched_at, price)
        self.ready(number, ready_at)

    def price(self, number: int, at: float, price: float) -> None:
        """The machine's price changes."""
        self.add(EventKind.INSTANCE_PRICE, at, instance_id=f"inst-{number}", price_usd_per_h=price)

    def terminate(self, number: int, at: float, recorded_at: float | None = None, **fields: Any) -> None:
        """The provider confirms the termination."""
        fields = {"terminated_at": at, "billed": True, "code": "idle", "text": ""} | fields
        self.add(
            EventKind.INSTANCE_TERMINATED,
            at if recorded_at is None else recorded_at,
            instance_id=f"inst-{number}",
            **fields,
        )

    def start(
        self,
        job: int,
        machine: int,
        at: float,
        vcpus: float = 1.0,
        memory_mib: float = 512,
        attempt: int = 1,
        rank: int = 0,
        **fields: Any,
    ) -> None:
        """A unit starts."""
        size = {"vcpus": vcpus, "memory_mib": memory_mib}
        self._unit(EventKind.UNIT_STARTED, job, machine, at, attempt, rank, **size, **fields)

    def end(self, job: int, machine: int, at: float, attempt: int = 1, rank: int = 0, **fields: Any) -> None:
        """A unit ends."""
        self._unit(EventKind.UNIT_ENDED, job, machine, at, attempt, rank, **({"exit_code": 0, "cause": None} | fields))

    def sample(self, job: int, machine: int, at: float, attempt: int = 1, rank: int = 0, **fields: Any) -> None:
        """A unit is measured."""
        self._unit(EventKind.SAMPLE, job, machine, at, attempt, rank, **fields)

    def _unit(self, kind: EventKind, job: int, machine: int, at: float, attempt: int, rank: int, **fields: Any) -> None:
        about = {"job_id": f"job-{job}", "instance_id": f"inst-{machine}", "user": "ann"}
        self.add(kind, at, attempt=f"job-{job}.{attempt}", rank=rank, **about, **fields)

    def state(self, job: int, at: float, to: str, code: str = "x") -> None:
        """A job changes its state."""
        self.add(EventKind.JOB_STATE, at, job_id=f"job-{job}", user="ann", to=to, code=code)

    def finish(self, job: int, at: float, state: str = "succeeded", **fields: Any) -> None:
        """A job ends."""
        fields = {"state": state, "outcome": "", "deadline_at": None, "target_met": None, "run_s": 0.0} | fields
        self.add(EventKind.JOB_FINISHED, at, job_id=f"job-{job}", user="ann", **fields)
