"""Which link an address asks for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from leasehold.endpoints.amqp.frames import Attach
from leasehold.endpoints.amqp.links import Link, address_of, not_found
from leasehold.endpoints.amqp.receiving import ReceiverLink
from leasehold.endpoints.amqp.requests import NODES, RequestLink, ResponseLink
from leasehold.endpoints.amqp.sending import ProducerLink
from leasehold.endpoints.amqp.tokens import path_of

if TYPE_CHECKING:
    from leasehold.endpoints.amqp.session import AmqpSession

_CONSUMER = re.compile(r"([^/]+)/ConsumerGroups/([^/]+)/Partitions/([^/]+)", re.I)
_PRODUCER = re.compile(r"([^/]+)(?:/Partitions/([^/]+))?", re.I)


def attached_to(session: AmqpSession, attach: Attach) -> Link:
    """The link that was asked for. Raises ``LinkFailed`` where there is none."""
    address = path_of(address_of(attach.source if attach.role else attach.target))
    node = address.rpartition("/")[2].lower()
    if node in NODES:
        made = ResponseLink if attach.role else RequestLink
        return made(session, attach, node)
    found = (_CONSUMER if attach.role else _PRODUCER).fullmatch(address)
    if found is None or not session.connection.endpoint.knows(found[1]):
        raise not_found(address)
    session.connection.require_token(address)
    link: Link = (
        ReceiverLink(session, attach, group=found[2], partition=found[3])
        if attach.role
        else ProducerLink(session, attach, partition=found[2])
    )
    link.needs_token = address
    return link
