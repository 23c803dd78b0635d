"""FastStream's plug-in for FastAPI: a router of routes that also has subscribers and publishers.

::

    router = RocketMQRouter("127.0.0.1:9876")

    @router.subscriber("orders")
    async def take(order: Order, shop: Annotated[Shop, Depends(open_shop)]) -> None: ...

    app = FastAPI()
    app.include_router(router)

The application's lifespan starts and stops the broker, which is ``router.broker``.
"""

from __future__ import annotations

from typing import Any

from faststream._internal.context import ContextRepo
from faststream._internal.fastapi.context import Context
from faststream._internal.fastapi.router import StreamRouter

from triomq_adapters.faststream.broker import RocketMQBroker
from triomq_adapters.faststream.publisher import RocketMQPublisher

__all__ = ["Context", "RocketMQRouter"]

_OF_ROUTES: dict[str, Any] = {
    "dependencies": (),
    "response_model_by_alias": True,
    **dict.fromkeys(("response_model", "response_model_include", "response_model_exclude"), None),
    **{f"response_model_exclude_{what}": False for what in ("unset", "defaults", "none")},
}
"""The argument that FastStream requires."""


class RocketMQRouter(StreamRouter[Any]):
    """Routes, subscribers and publishers.

    Args:
        name_servers: as for the broker.
        context: FastStream's context; default: a new one.
        options: options of FastAPI's ``APIRouter``, ``schema_url`` (of AsyncAPI's pages), and options of the broker.
    """

    broker_class = RocketMQBroker
    broker: RocketMQBroker

    def __init__(self, name_servers: str | None = None, *, context: ContextRepo | None = None, **options: Any) -> None:
        super().__init__(name_servers, context=context, **options)

    def subscriber(self, topic: str, **options: Any) -> Any:  # type: ignore[override]
        """Call a handler with the messages of a topic; options as for the broker and for FastAPI's routes."""
        return super().subscriber(topic, **(_OF_ROUTES | options))

    def publisher(self, topic: str, **options: Any) -> RocketMQPublisher:  # type: ignore[override]
        """Send a handler's result to a topic; options as for the broker."""
        return self.broker.publisher(topic, **options)
