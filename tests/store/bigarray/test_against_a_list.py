"""An array and a dictionary get the same calls, crashes and power cuts, and agree."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluiceway.queues.logs.codecs import Codec
from tests.how_often import rounds
from tests.store.bigarray.twin import EPOCH_MS, SMALL, Twin

CODECS = st.sampled_from(list(Codec))
VALUES = st.lists(st.binary(max_size=60), min_size=1, max_size=6)


class ArrayMachine(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        seed=st.integers(0, 1 << 32),
        items=st.sampled_from((1, 5, 16, 64)),
        page_bytes=st.sampled_from((1024, 1536, 4096)),
        lease=st.sampled_from((1, 10, 40)),
    )
    def begin(self, seed: int, items: int, page_bytes: int, lease: int) -> None:
        self.path = Path(tempfile.mkdtemp())
        options = attrs.evolve(SMALL, index_page_items=items, data_page_bytes=page_bytes, lease_items=lease)
        self.twin = Twin(self.path, seed, options)
        self.twin.open()

    def teardown(self) -> None:
        if hasattr(self, "twin"):
            try:
                self.twin.compare()
            finally:
                self.twin.files.kill()
                shutil.rmtree(self.path)

    @rule(value=st.binary(max_size=200))
    def append(self, value: bytes) -> None:
        self.twin.append([value], keys=None, head=b"", codec=Codec.NONE)

    @rule(values=VALUES, codec=CODECS, with_keys=st.booleans(), head=st.sampled_from((b"", b"a:1\n", b"long:value\n")))
    def append_many(self, values: list[bytes], codec: Codec, with_keys: bool, head: bytes) -> None:
        self.twin.append(values, keys=[value[:3] for value in values] if with_keys else None, head=head, codec=codec)

    @rule(runs=st.lists(VALUES, min_size=1, max_size=4), codec=CODECS)
    def append_batches(self, runs: list[list[bytes]], codec: Codec) -> None:
        self.twin.append_batches(runs, codec)

    @rule(ms=st.integers(-100, 1000))
    def time_passes(self, ms: int) -> None:
        """Backwards too: clocks are set."""
        self.twin.now_ms += ms

    @rule()
    def flush(self) -> None:
        self.twin.flush()

    @rule(share=st.floats(0, 1))
    def remove_to(self, share: float) -> None:
        self.twin.remove_to(round(self.twin.first + share * (self.twin.next - self.twin.first)))

    @rule(ms=st.integers(-100, 3000))
    def remove_before(self, ms: int) -> None:
        self.twin.remove_before(EPOCH_MS + ms)

    @rule(bytes_max=st.integers(0, 10_000))
    def limit(self, bytes_max: int) -> None:
        self.twin.limit(bytes_max)

    @rule(a=st.floats(0, 1), b=st.floats(0, 1), bytes_max=st.integers(1, 5000))
    def cut(self, a: float, b: float, bytes_max: int) -> None:
        twin = self.twin
        start, stop = sorted(round(twin.first + share * (twin.next - twin.first)) for share in (a, b))
        if start < stop:
            twin.compare_cut(start, stop, bytes_max)
            twin.compare_range(start, stop)
            twin.there.warm(start, stop)

    @rule(ms=st.integers(-100, 5000))
    def find(self, ms: int) -> None:
        assert self.twin.there.find_closest_index(EPOCH_MS + ms) == self.twin.closest(EPOCH_MS + ms)

    @rule()
    def reopen(self) -> None:
        lost_count = self.twin.lost_count
        self.twin.close()
        self.twin.open()
        assert self.twin.there.report.clean
        assert self.twin.lost_count == lost_count
        self.twin.compare()

    @rule()
    def kill(self) -> None:
        """Nothing of what was appended is lost."""
        lost_count = self.twin.lost_count
        self.twin.kill()
        self.twin.open()
        assert self.twin.lost_count == lost_count
        self.twin.compare()

    @rule()
    def power_cut(self) -> None:
        self.twin.power_cut()
        self.twin.open()
        self.twin.compare()

    @invariant()
    def agree(self) -> None:
        """Briefly; all of it where something was removed or lost, and at the end."""
        if hasattr(self, "twin"):
            assert (self.twin.there.first_index, self.twin.there.next_index) == (self.twin.first, self.twin.next)


TestArrayMachine = ArrayMachine.TestCase
TestArrayMachine.settings = settings(max_examples=rounds(15), stateful_step_count=30)
