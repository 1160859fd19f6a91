"""A model that says again what a journal says a model said: to run an agent without one."""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.core.entries import AttemptFailed, Entry, EntryBody, ModelAsked, Replied
from fencepost.core.errors import ModelFailed
from fencepost.core.messages import ModelProfile, ModelRequest, Reply
from fencepost.core.recording import failure_of, reply_of
from fencepost.models.scripted import streamed
from fencepost.ports import Sink


class RecordedModel:
    """The replies and failures of one journal, each under its step and attempt.

    Asked for a step or attempt that the journal does not have, it raises ModelFailed of kind "script". `requests`
    keeps what it was asked. The profile is no fact of a journal: give the one that was used, for equal budgets.
    """

    def __init__(self, entries: Iterable[Entry | EntryBody], *, profile: ModelProfile | None = None) -> None:
        self._said: dict[tuple[int, int], Reply | ModelFailed] = {}
        self.requests: list[ModelRequest] = []
        name, asked = "recorded", None
        for entry in entries:
            body = entry.body if isinstance(entry, Entry) else entry
            match body:
                case ModelAsked():
                    asked, name = body, body.model or name
                case Replied():
                    self._said[body.step, body.attempt] = reply_of(body)
                case AttemptFailed():
                    self._said[body.step, body.attempt] = failure_of(body, asked)
                case _:
                    pass
        self._profile = profile or ModelProfile(name, input_nano=0, output_nano=0)

    @property
    def profile(self) -> ModelProfile:
        """The profile it was made with; otherwise the recorded name, free of charge."""
        return self._profile

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """What was said at this step and attempt."""
        self.requests.append(request)
        said = self._said.get((request.step, request.attempt))
        if said is None:
            raise ModelFailed(
                f"the journal holds no reply to step {request.step}, attempt {request.attempt}", kind="script"
            )
        if isinstance(said, ModelFailed):
            raise said
        return said if sink is None else streamed(said, sink)
