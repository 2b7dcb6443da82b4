"""A process that runs readers for tests: it has one thread, so it may fork, and loads every kernel once."""

from __future__ import annotations

from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from tidemark.recovery.crash_harness.forks import FORKS

ANSWER_SECONDS = 1_800


class Keeper:
    """Runs readers until the block ends."""

    def __enter__(self) -> Keeper:
        self._pipe, far = FORKS.Pipe()
        self._process = FORKS.Process(target=_serve, args=(far,), daemon=True)
        self._process.start()
        far.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe.close()
        self._process.join(ANSWER_SECONDS)

    def run(self, name: str, seed: int, inputs: int, **limits: float) -> Any:
        """The report of a run (`harness.Run`)."""
        return self._ask("run", name, seed, inputs, limits)

    def judged(self, name: str, data: bytes, **limits: float) -> tuple[str, str, float]:
        """The outcome of one input (`harness.judge_alone`)."""
        judged: tuple[str, str, float] = self._ask("judge", name, data, limits)
        return judged

    def _ask(self, *what: Any) -> Any:
        self._pipe.send(what)
        assert self._pipe.poll(ANSWER_SECONDS), "the keeper does not answer"
        return self._pipe.recv()


def _serve(pipe: Connection) -> None:
    from tests.fuzz.harness import Run, judge_alone, load
    from tests.fuzz.readers import find

    loaded: set[str] = set()
    while True:
        try:
            what, name, *arguments, limits = pipe.recv()
        except EOFError:
            return
        if what == "run":
            seed, inputs = arguments
            loaded.add(name)
            pipe.send(Run(find(name), seed, **limits).run(inputs))
        else:
            if name not in loaded:
                load(find(name))
                loaded.add(name)
            pipe.send(judge_alone(find(name), arguments[0], **limits))
