"""Hooks: user code that sees every send, every pull and every call of a handler (docs/protocol/client.md §6.15).

Their methods are plain functions, called before and after; their exceptions are logged, those of one kind with few lines,
and change nothing. Before a send a hook may add properties to the message, such as the headers of a trace; a filter hook
drops messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import attrs
from msgspec import structs

from triomq._error_text import shown
from triomq._message.message import Message, MessageQueue, check_properties
from triomq._message.pull_result import PullResult
from triomq._message.received import ReceivedMessage
from triomq._message.repeated_failures import RepeatedFailures
from triomq._message.send_result import SendResult
from triomq.errors import InvalidCall, MQError

log = logging.getLogger("triomq.hooks")

H = TypeVar("H")
M = TypeVar("M", bound=ReceivedMessage)


@attrs.frozen
class SendContext:
    """A send, as hooks see it.

    Args:
        group: producer group.
        message: the message.
        message_id: its ``UNIQ_KEY``.
        oneway: whether it is sent without an answer.
        batch_count: number of messages in its request; 1 unless it was sent in a batch.
        batch_number: its place in the batch, from 0.
        transactional: whether it is the half message of a transaction.
        born_ms: when the send began, by this machine's clock, in ms since 1970.
        body_bytes: the size of the body as sent, which may be compressed.
    """

    group: str
    message: Message
    message_id: str
    oneway: bool = False
    batch_count: int = 1
    transactional: bool = False
    born_ms: int = 0
    body_bytes: int = 0
    batch_number: int = 0


class SendHook(Protocol):
    """Called for every message, once before its first attempt and once after its last; for each message of a batch."""

    def before_send(self, context: SendContext, /) -> Mapping[str, str] | None:
        """The message is about to be sent.

        Returns:
            Properties to add to it; they replace those of the same name. If one is not a property that users may set,
            that is logged, and none of them is added.
        """

    def after_send(self, context: SendContext, outcome: SendResult | MQError | None, /) -> None:
        """The send has ended; not called when its caller was cancelled.

        Args:
            context: the one that ``before_send`` got.
            outcome: the result, which is that of the batch for each message of a batch; or the error; or None for a
                one-way message that is queued for writing.
        """


@attrs.frozen
class PullContext:
    """A pull, as hooks see it.

    Args:
        group: consumer group.
        queue: the queue.
        queue_offset: the first offset to pull.
    """

    group: str
    queue: MessageQueue
    queue_offset: int


class PullHook(Protocol):
    """Called for every pull, before its request is sent and after its answer."""

    def before_pull(self, context: PullContext, /) -> None:
        """The request is about to be sent."""

    def after_pull(self, context: PullContext, outcome: PullResult | MQError, /) -> None:
        """The pull has ended; not called when its caller was cancelled."""


@attrs.frozen(eq=False)
class ConsumeContext:
    """Messages given to a handler, as hooks see it; the same object before and after.

    Args:
        group: consumer group.
        messages: of one queue; one, unless the consumer takes batches.
    """

    group: str
    messages: Sequence[ReceivedMessage]


class ConsumeHook(Protocol):
    """Called for every call of a push consumer's handler, and for every delivery of its loop."""

    def before_consume(self, context: ConsumeContext, /) -> None:
        """The handler is about to be called, or the delivery to be given out."""

    def after_consume(self, context: ConsumeContext, error: Exception | None, /) -> None:
        """The handler has returned, or raised, or the delivery was answered; not called when it was cancelled."""


class ConsumeWrapper(Protocol):
    """Wraps every call of a push consumer's handler, as a span of a trace does; may be a :class:`ConsumeHook` too."""

    def around_consume(self, context: ConsumeContext, /) -> AbstractContextManager[object]:
        """A context manager in which the handler runs: in its task, for a plain one in its thread.

        For a loop over deliveries it is the block of ``async with delivery``. It receives the handler's exceptions, and
        cannot suppress them; its own exceptions are logged and change nothing.
        """


class FilterHook(Protocol):
    """Chooses among the messages that a consumer has pulled, after the expression of its subscription."""

    def wants(self, group: str, message: ReceivedMessage, /) -> bool:
        """Whether a message is for this consumer; if not, it counts as consumed.

        If this raises or returns None, the message is kept.

        Args:
            group: consumer group.
            message: a pulled message.
        """


@attrs.frozen
class ProcessHooks:
    """Hooks of all producers and consumers that this process creates while the hooks are entered here.

    It is for instrumentation, which does not create the producers and consumers itself. These hooks are called before a
    producer's or a consumer's own.

    Args:
        send: hooks of producers.
        pull: hooks of pull and lite pull consumers.
        consume: hooks of push consumers.
    """

    send: list[SendHook] = attrs.field(factory=list)
    pull: list[PullHook] = attrs.field(factory=list)
    consume: list[ConsumeHook | ConsumeWrapper] = attrs.field(factory=list)


process_hooks: Final = ProcessHooks()
"""The hooks of this process."""


def check_hooks(name: str, hooks: object, *methods: str) -> None:
    """Raise :class:`InvalidCall` unless an argument is a list of hooks.

    Args:
        name: the argument's name.
        hooks: the argument.
        methods: each hook must have at least one of them.
    """
    if isinstance(hooks, str) or not isinstance(hooks, Collection):
        raise InvalidCall(f"{name} is {type(hooks).__name__}, not a list of hooks")
    for hook in hooks:
        if isinstance(hook, type) or not any(callable(getattr(hook, method, None)) for method in methods):
            raise InvalidCall(f"{name} has {shown(hook)}, which is no object with the method {' or '.join(methods)}")


_failures: WeakKeyDictionary[object, RepeatedFailures] = WeakKeyDictionary()
_failures_of_others = RepeatedFailures(log, time.monotonic)
"""Of hooks that cannot be the key of a dictionary."""


def _log_failure(hook: object, error: Exception | None, text: str, *args: object) -> None:
    """Log that a hook has failed; hooks of plain handlers run in threads, which have no clock of trio."""
    try:
        failures = _failures.get(hook)
        if failures is None:
            failures = _failures[hook] = RepeatedFailures(log, time.monotonic)
    except Exception:  # noqa: BLE001 - it has no weak references, or the user's `__hash__` or `__eq__` fails
        failures = _failures_of_others
    failures.note(error, text, *args)


def _call_each(hooks: Sequence[H], when: str, call: Callable[[H], None]) -> None:
    for hook in hooks:
        try:
            call(hook)
        except Exception as error:  # noqa: BLE001 - the user's; it is logged
            _log_failure(hook, error, "the hook %r failed %s", hook, when)


def call_before_send(hooks: Sequence[SendHook], context: SendContext) -> Message:
    """Call every hook; one that raises is logged. Returns the message with the properties that they add."""
    added: dict[str, str] = {}

    def call(hook: SendHook) -> None:
        given = hook.before_send(context)
        if given:
            check_properties(given)
            added.update(given)

    _call_each(hooks, "before a send", call)
    message = context.message
    return structs.replace(message, properties={**(message.properties or {}), **added}) if added else message


def call_after_send(hooks: Sequence[SendHook], context: SendContext, outcome: SendResult | MQError | None) -> None:
    """Call every hook; one that raises is logged."""
    _call_each(hooks, "after a send", lambda hook: hook.after_send(context, outcome))


def call_before_pull(hooks: Sequence[PullHook], context: PullContext) -> None:
    """Call every hook; one that raises is logged."""
    _call_each(hooks, "before a pull", lambda hook: hook.before_pull(context))


def call_after_pull(hooks: Sequence[PullHook], context: PullContext, outcome: PullResult | MQError) -> None:
    """Call every hook; one that raises is logged."""
    _call_each(hooks, "after a pull", lambda hook: hook.after_pull(context, outcome))


def wanted_messages(hooks: Sequence[FilterHook], group: str, messages: Sequence[M]) -> list[M]:
    """The messages that every hook wants; a hook that raises is logged, and ignored."""
    return [message for message in messages if all(_is_wanted(hook, group, message) for hook in hooks)]


def _is_wanted(hook: FilterHook, group: str, message: ReceivedMessage) -> bool:
    try:
        wanted: object = hook.wants(group, message)
        if wanted is not None:
            return bool(wanted)  # this fails for some objects, e.g. for an array
    except Exception as error:  # noqa: BLE001 - the user's; it is logged
        _log_failure(hook, error, "the filter hook %r failed for %r, which is kept", hook, message)
        return True
    # As from a function without `return`: all messages would be lost silently.
    text = "the filter hook %r returned None, neither True nor False, for %r, which is kept"
    _log_failure(hook, None, text, hook, message)
    return True


class ConsumeHooks:
    """The hooks of one push consumer.

    Args:
        group: consumer group.
        hooks: each a :class:`ConsumeHook`, a :class:`ConsumeWrapper`, or both.
    """

    def __init__(self, group: str, hooks: Sequence[ConsumeHook | ConsumeWrapper]) -> None:
        self._group = group
        self._hooks: list[ConsumeHook] = [
            cast("ConsumeHook", each) for each in hooks if hasattr(each, "before_consume")
        ]
        self._wrappers: list[ConsumeWrapper] = [
            cast("ConsumeWrapper", each) for each in hooks if hasattr(each, "around_consume")
        ]

    def __bool__(self) -> bool:
        return bool(self._hooks or self._wrappers)

    def begin(self, messages: Sequence[ReceivedMessage]) -> ConsumeContext:
        """Call the hooks before messages are given to the handler; a hook that raises is logged."""
        context = ConsumeContext(self._group, messages)
        _call_each(self._hooks, "before a handler", lambda hook: hook.before_consume(context))
        return context

    def end(self, context: ConsumeContext, error: Exception | None) -> None:
        """Call the hooks after the handler has returned or raised; a hook that raises is logged."""
        _call_each(self._hooks, "after a handler", lambda hook: hook.after_consume(context, error))

    @contextmanager
    def around(self, context: ConsumeContext) -> Iterator[None]:
        """Enter the wrappers of the handler, the first hook's outermost."""
        entered: list[tuple[ConsumeWrapper, AbstractContextManager[object]]] = []
        for hook in self._wrappers:
            try:
                manager = hook.around_consume(context)
                manager.__enter__()
            except Exception as error:  # noqa: BLE001 - the user's; it is logged
                _log_failure(hook, error, "the hook %r failed to wrap a handler", hook)
            else:
                entered.append((hook, manager))
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            for hook, manager in reversed(entered):
                try:
                    manager.__exit__(
                        type(failure) if failure is not None else None,
                        failure,
                        failure.__traceback__ if failure is not None else None,
                    )
                except Exception as error:  # noqa: BLE001 - the user's; it is logged
                    _log_failure(hook, error, "the hook %r failed around a handler", hook)
            del failure
