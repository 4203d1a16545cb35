"""How the threads of a block share work on a tile that is cut into equal patches."""

from emitters.ptx import R32, Entry, Pred


class Patches:
    """`inner * outer` patches, both powers of two; neighbouring threads take neighbours along `inner`.

    Attributes:
        turns: Patches of a thread.
        mine: Whether the thread has any, where some have not.
        inner, outer: Place of the thread's first patch.
    """

    def __init__(self, ptx: Entry, tid: R32, threads: int, inner: int, outer: int) -> None:
        self._threads = threads
        self._inner = inner
        patches = inner * outer
        self.turns = max(1, patches // threads)
        self.mine: Pred | None = None
        patch = tid
        if patches < threads:
            self.mine = ptx.p("setp.lt.u32", patch, patches)
            patch = ptx.r("and.b32", patch, patches - 1)
        self.inner = ptx.r("and.b32", patch, inner - 1)
        self.outer = ptx.r("shr.u32", patch, inner.bit_length() - 1)

    def moved(self, turn: int) -> tuple[int, int]:
        """How far the patch of a turn lies from the first, along inner and outer: bits that those of the
        first do not use."""
        outer, inner = divmod(turn * self._threads, self._inner)
        return inner, outer
