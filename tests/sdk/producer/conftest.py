from __future__ import annotations

import pytest

from triomq._producer import callbacks, compiled, lone_sends, merging, plain_sends

TWINS = [plain_sends]
if compiled.BUILT:
    from triomq._producer.compiled import sends

    TWINS.append(sends)


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__name__.rpartition(".")[2])
def sends_twin(request, monkeypatch):
    """Lets producers use the one and the other of what encodes plain sends."""
    for module in (callbacks, lone_sends, merging):
        monkeypatch.setattr(module, "plain_sends", request.param)
    return request.param
