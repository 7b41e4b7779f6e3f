"""Weighs cases in a process of its own, where nothing allocates but the broker and the clients that play.

The allocator counts for a whole process. In that of pytest other threads go on meanwhile: clients and brokers of
fixtures that live longer than a test. So `Scales` has a process beside it, which weighs one case after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from functools import partial
from types import TracebackType
from typing import Self

from tests.architecture.sources import ROOT
from tests.scenarios.conftest import run_in_virtual_time
from tests.task_order import settle_task_order


class Scales:
    """A process that weighs cases of tests/limits/weighed.py by name. A context manager."""

    def __enter__(self) -> Self:
        self._start()
        return self

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.limits.apart"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._close()

    def _close(self) -> int:
        """Give the pipes back when the process has ended, or is about to; returns its code."""
        with self._process:
            pass
        return self._process.returncode

    def weigh(self, name: str) -> None:
        """Raise AssertionError with the traceback of the other process unless what the case holds is counted."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(name), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            code = self._close()
            self._start()  # for the next case
            raise AssertionError(f"the process that weighs ended with code {code}")
        trouble = json.loads(answer)
        assert not trouble, trouble


def _serve() -> None:
    """Answer each case that standard input names with its trouble, in a line each."""
    from tests.limits.weighed import weigh

    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the broker prints is no answer
        for line in sys.stdin:
            trouble, name = "", json.loads(line)
            settle_task_order(name)
            try:
                run_in_virtual_time(partial(weigh, name))
            except (AssertionError, BaseExceptionGroup):
                trouble = traceback.format_exc()
            print(json.dumps(trouble), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
