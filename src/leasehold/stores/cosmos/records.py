"""A group's leases and members as documents. All of a group have one partition key."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256

from leasehold.core.model import Checkpoint, Group, Lease, Member
from leasehold.local.cosmos_documents import FOR_GOOD, Document
from leasehold.local.whole_seconds import certain_age_s

LEASE, MEMBER = "lease", "member"


def key_of(group: Group) -> str:
    """The partition key. As JSON: a name may have any character."""
    return json.dumps([group.namespace, group.feed, group.name], ensure_ascii=False)


def group_of(key: str) -> Group:
    namespace, feed, name = json.loads(key)  # noqa: TID251  # written by us
    return Group(namespace=namespace, feed=feed, name=name)


def id_of(kind: str, name: str) -> str:
    """Document ids allow fewer characters than names do."""
    return f"{kind}-{sha256(name.encode()).hexdigest()[:40]}"


def lease_document(lease: Lease, *, is_replaced: bool = False) -> Document:
    return {
        "id": id_of(LEASE, lease.partition),
        "group": key_of(lease.group),
        "kind": LEASE,
        "partition": lease.partition,
        "next_sequence": lease.checkpoint.next_sequence,
        "token": lease.checkpoint.token,
        "owner": lease.owner,
        "epoch": lease.epoch,
        "version": lease.version,
        "advanced": lease.advanced,
        "attempts": lease.attempts,
        "offered_to": lease.offered_to,
        "weight": lease.weight,
        "ttl_s": lease.ttl_s,
        "replaced": is_replaced,
        **FOR_GOOD,
    }


def lease_of(document: Document, now: float) -> Lease:
    return Lease(
        group=group_of(document["group"]),
        partition=document["partition"],
        checkpoint=Checkpoint(next_sequence=document["next_sequence"], token=document["token"]),
        owner=document["owner"],
        epoch=document["epoch"],
        version=document["version"],
        advanced=document["advanced"],
        attempts=document["attempts"],
        offered_to=document["offered_to"],
        weight=document["weight"],
        ttl_s=document["ttl_s"],
        age_s=certain_age_s(now, document["_ts"]),
    )


def touched(lease: Lease) -> Lease:
    return replace(lease, version=str(int(lease.version or 0) + 1), age_s=0.0)


def member_document(group: Group, member: Member, beat: int) -> Document:
    return {
        "id": id_of(MEMBER, member.instance),
        "group": key_of(group),
        "kind": MEMBER,
        "instance": member.instance,
        "incarnation": member.incarnation,
        "ttl_s": member.ttl_s,
        "leaving": member.leaving,
        "beat": beat,
        **FOR_GOOD,
    }


def member_of(document: Document, now: float) -> Member:
    return Member(
        instance=document["instance"],
        incarnation=document["incarnation"],
        ttl_s=document["ttl_s"],
        leaving=document["leaving"],
        version=str(document["beat"]),
        age_s=certain_age_s(now, document["_ts"]),
    )
