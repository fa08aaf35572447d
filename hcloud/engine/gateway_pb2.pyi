from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromAgent(_message.Message):
    __slots__ = ("hello", "report", "answer", "alive", "renewal")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: Report
    answer: Answer
    alive: Alive
    renewal: Renewal
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., renewal: _Optional[_Union[Renewal, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "has_others")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HAS_OTHERS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    has_others: bool
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., has_others: _Optional[bool] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Renewal(_message.Message):
    __slots__ = ("request_pem",)
    REQUEST_PEM_FIELD_NUMBER: _ClassVar[int]
    request_pem: bytes
    def __init__(self, request_pem: _Optional[bytes] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("number", "units", "gone", "machine", "more", "urgent")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    units: _containers.RepeatedCompositeFieldContainer[UnitState]
    gone: _containers.RepeatedScalarFieldContainer[str]
    machine: bytes
    more: bool
    urgent: bool
    def __init__(self, number: _Optional[int] = ..., units: _Optional[_Iterable[_Union[UnitState, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ..., machine: _Optional[bytes] = ..., more: _Optional[bool] = ..., urgent: _Optional[bool] = ...) -> None: ...

class UnitState(_message.Message):
    __slots__ = ("id", "document")
    ID_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    document: bytes
    def __init__(self, id: _Optional[str] = ..., document: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("number", "document", "content")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    document: bytes
    content: bytes
    def __init__(self, number: _Optional[int] = ..., document: _Optional[bytes] = ..., content: _Optional[bytes] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("welcome", "command", "refusal", "certificate")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    command: Command
    refusal: Refusal
    certificate: Certificate
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., certificate: _Optional[_Union[Certificate, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol",)
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    def __init__(self, protocol: _Optional[int] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("pem",)
    PEM_FIELD_NUMBER: _ClassVar[int]
    pem: bytes
    def __init__(self, pem: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("why", "elsewhere")
    WHY_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    why: str
    elsewhere: bool
    def __init__(self, why: _Optional[str] = ..., elsewhere: _Optional[bool] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("number", "sent_at_s", "timeout_s", "document", "content")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_S_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    sent_at_s: float
    timeout_s: float
    document: bytes
    content: bytes
    def __init__(self, number: _Optional[int] = ..., sent_at_s: _Optional[float] = ..., timeout_s: _Optional[float] = ..., document: _Optional[bytes] = ..., content: _Optional[bytes] = ...) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ("epoch", "since")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    since: int
    def __init__(self, epoch: _Optional[str] = ..., since: _Optional[int] = ...) -> None: ...

class ObserveReply(_message.Message):
    __slots__ = ("epoch", "until", "connected", "silent", "reports", "refused")
    class ReportsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    until: int
    connected: _containers.RepeatedScalarFieldContainer[str]
    silent: _containers.RepeatedScalarFieldContainer[str]
    reports: _containers.ScalarMap[str, bytes]
    refused: _containers.ScalarMap[str, int]
    def __init__(self, epoch: _Optional[str] = ..., until: _Optional[int] = ..., connected: _Optional[_Iterable[str]] = ..., silent: _Optional[_Iterable[str]] = ..., reports: _Optional[_Mapping[str, bytes]] = ..., refused: _Optional[_Mapping[str, int]] = ...) -> None: ...

class AdmitRequest(_message.Message):
    __slots__ = ("lead_s", "machines")
    LEAD_S_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    lead_s: float
    machines: Machines
    def __init__(self, lead_s: _Optional[float] = ..., machines: _Optional[_Union[Machines, _Mapping]] = ...) -> None: ...

class Machines(_message.Message):
    __slots__ = ("machines",)
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    machines: _containers.RepeatedCompositeFieldContainer[Machine]
    def __init__(self, machines: _Optional[_Iterable[_Union[Machine, _Mapping]]] = ...) -> None: ...

class Machine(_message.Message):
    __slots__ = ("instance_id", "launch_token", "secret_sha256", "has_registered", "addresses_known", "addresses")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_SHA256_FIELD_NUMBER: _ClassVar[int]
    HAS_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_KNOWN_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    launch_token: str
    secret_sha256: bytes
    has_registered: bool
    addresses_known: bool
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, instance_id: _Optional[str] = ..., launch_token: _Optional[str] = ..., secret_sha256: _Optional[bytes] = ..., has_registered: _Optional[bool] = ..., addresses_known: _Optional[bool] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class AdmitReply(_message.Message):
    __slots__ = ("needs_machines",)
    NEEDS_MACHINES_FIELD_NUMBER: _ClassVar[int]
    needs_machines: bool
    def __init__(self, needs_machines: _Optional[bool] = ...) -> None: ...

class AwaitRequest(_message.Message):
    __slots__ = ("epoch", "since", "timeout_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    since: int
    timeout_s: float
    def __init__(self, epoch: _Optional[str] = ..., since: _Optional[int] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class AwaitReply(_message.Message):
    __slots__ = ("epoch", "until")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    until: int
    def __init__(self, epoch: _Optional[str] = ..., until: _Optional[int] = ...) -> None: ...

class ArchivesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ArchivesReply(_message.Message):
    __slots__ = ("sha256",)
    class Sha256Entry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: _containers.ScalarMap[str, str]
    def __init__(self, sha256: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("timeout_s", "agents", "sign_of_life_s")
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    SIGN_OF_LIFE_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    agents: _containers.RepeatedCompositeFieldContainer[AgentRequests]
    sign_of_life_s: float
    def __init__(self, timeout_s: _Optional[float] = ..., agents: _Optional[_Iterable[_Union[AgentRequests, _Mapping]]] = ..., sign_of_life_s: _Optional[float] = ...) -> None: ...

class AgentRequests(_message.Message):
    __slots__ = ("instance_id", "requests")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    requests: _containers.RepeatedCompositeFieldContainer[Body]
    def __init__(self, instance_id: _Optional[str] = ..., requests: _Optional[_Iterable[_Union[Body, _Mapping]]] = ...) -> None: ...

class Body(_message.Message):
    __slots__ = ("document", "content", "number", "needs_sign_of_life", "not_sent")
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NEEDS_SIGN_OF_LIFE_FIELD_NUMBER: _ClassVar[int]
    NOT_SENT_FIELD_NUMBER: _ClassVar[int]
    document: bytes
    content: bytes
    number: int
    needs_sign_of_life: bool
    not_sent: bool
    def __init__(self, document: _Optional[bytes] = ..., content: _Optional[bytes] = ..., number: _Optional[int] = ..., needs_sign_of_life: _Optional[bool] = ..., not_sent: _Optional[bool] = ...) -> None: ...

class CallReply(_message.Message):
    __slots__ = ("agents",)
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[AgentAnswers]
    def __init__(self, agents: _Optional[_Iterable[_Union[AgentAnswers, _Mapping]]] = ...) -> None: ...

class AgentAnswers(_message.Message):
    __slots__ = ("instance_id", "answers")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    answers: _containers.RepeatedCompositeFieldContainer[Body]
    def __init__(self, instance_id: _Optional[str] = ..., answers: _Optional[_Iterable[_Union[Body, _Mapping]]] = ...) -> None: ...
