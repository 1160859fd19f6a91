"""A model that is a function of the request: rules, heuristics, or a bridge to something else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fencepost.core.messages import ModelProfile, ModelRequest, Reply
from fencepost.models.scripted import streamed
from fencepost.ports import Sink


class FunctionModel:
    """Asks an async or sync function for each reply; what the function raises is a failed attempt."""

    def __init__(
        self,
        function: Callable[[ModelRequest], Reply | Awaitable[Reply]],
        *,
        profile: ModelProfile | None = None,
    ) -> None:
        self._function = function
        self._profile = profile or ModelProfile(
            getattr(function, "__name__", "function"), input_nano=0, output_nano=0
        )

    @property
    def profile(self) -> ModelProfile:
        """The profile it was made with; free of charge by default."""
        return self._profile

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """What the function says to this request."""
        said = self._function(request)
        reply = said if isinstance(said, Reply) else await said
        return reply if sink is None else streamed(reply, sink)
