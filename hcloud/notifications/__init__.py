"""Notifications: what happened, sent to addresses of the operator's configuration.

The event log is the outbox: an event is in it in the same transaction as what it reports, and each target remembers
(in the store) up to which event it got messages. So nothing is lost by a crash, and a message may come twice; its id
says so. A thread of its own for each target sends; the loop never waits for it.
"""

from hcloud.notifications.delivery import DeliveryError, Sender, signature
from hcloud.notifications.messages import Message, slack_body, webhook_body
from hcloud.notifications.outbox import Outbox

__all__ = ["DeliveryError", "Message", "Outbox", "Sender", "signature", "slack_body", "webhook_body"]
