"""Creates the topics that adapters need."""

from __future__ import annotations

import logging

import triomq
import triomq.aio
import triomq.blocking

log = logging.getLogger("triomq.adapters")


async def ensure_topic(admin: triomq.aio.Admin, topic: str, queues: int) -> None:
    """Create a topic if it does not exist; an existing one is not changed.

    Otherwise a worker that starts before the first task is sent would find the topic up to half a minute later. If the
    broker does not allow it, that is logged; the broker may still create the topic when a message is sent to it.
    """
    try:
        await admin.route(topic)
    except triomq.errors.RouteNotFound:
        try:
            await admin.ensure_topic(topic, queues=queues)
        except triomq.MQError as error:
            _warn(topic, error)


def ensure_topic_blocking(admin: triomq.blocking.Admin, topic: str, queues: int) -> None:
    """:func:`ensure_topic` without ``await``."""
    try:
        admin.route(topic)
    except triomq.errors.RouteNotFound:
        try:
            admin.ensure_topic(topic, queues=queues)
        except triomq.MQError as error:
            _warn(topic, error)


def _warn(topic: str, error: triomq.MQError) -> None:
    log.warning("there is no topic %s, and it could not be created (%s): have an operator create it", topic, error)
