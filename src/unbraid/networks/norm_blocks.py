"""Sizes of the programs that normalise groups of rows, by simple rules (see `norm_kernels.py`).

They depend on the shape of a group, not on the number of groups. So the order of every sum, and a member's results bit
for bit, are the same in a stack of any size.
"""

from collections.abc import Sequence

NUMBERS_IN_TILE = 2048
"""Numbers that a program reads at once: 16 for each thread of four warps."""

MAX_NUMBERS_TO_HOLD = 8192
"""Numbers of a group that a program can hold in registers: 32 for each thread of eight warps."""

MAX_CHANNELS, MIN_CHANNELS = 64, 32
"""Channels of a program: 64 of 16 bits are one line of the cache, and 32 are the fewest that are read at full speed."""

MAX_CHUNKS_OF_IMAGE, MAX_CHUNKS_OF_BATCH = 8, 128
"""Chunks of a group: a step has many images, but few members, and the programs of either must fill a GPU."""

TILES_OF_RESULT = 4
"""Tiles of a program that computes a result; the statistics that it reads first are few beside them."""


class Groups:
    """Groups of rows in maps [member, batch, row, column, channel]: images, or the batches of members.

    `whole`: one program holds all rows of a group for some channels. Otherwise `chunk` counts the rows of a program
    that sums them, and `result_chunk` those of a program that computes results.
    """

    def __init__(self, shape: Sequence[int], per_image: bool) -> None:
        members, batch, height, width, self.channels = shape
        self.count, self.rows = (members * batch, height * width) if per_image else (members, batch * height * width)
        all_rows, block_c = _power_of_two(self.rows), min(_power_of_two(self.channels), MAX_CHANNELS)
        held = max(min(block_c, MIN_CHANNELS), min(block_c, MAX_NUMBERS_TO_HOLD // all_rows))
        self.whole = all_rows * held <= MAX_NUMBERS_TO_HOLD
        self.block_r, self.block_c = (all_rows, held) if self.whole else (NUMBERS_IN_TILE // block_c, block_c)
        max_chunks = MAX_CHUNKS_OF_IMAGE if per_image else MAX_CHUNKS_OF_BATCH
        self.chunk = self.block_r * _divide_up(self.rows, max_chunks * self.block_r)
        self.chunks = _divide_up(self.rows, self.chunk)
        self.result_chunk = TILES_OF_RESULT * self.block_r

    def grid(self, chunk: int) -> tuple[int]:
        """Return the programs for chunks of so many rows."""
        return (self.count * _divide_up(self.rows, chunk) * _divide_up(self.channels, self.block_c),)

    @property
    def constants(self) -> dict[str, int]:
        """The constants of a kernel over rows and channels."""
        warps = 8 if self.block_r * self.block_c > MAX_NUMBERS_TO_HOLD // 2 else 4
        return {"C": self.channels, "BLOCK_R": self.block_r, "BLOCK_C": self.block_c, "num_warps": warps}

    def plan_merge(self, numbers: int) -> tuple[tuple[int], dict[str, int]]:
        """Return programs and constants of a kernel that merges all chunks of a group, each with so many `numbers`."""
        held = _power_of_two(self.chunks)
        block = min(_power_of_two(numbers), max(1, NUMBERS_IN_TILE // held))
        return (self.count * _divide_up(numbers, block),), {"C": numbers, "CHUNKS": held, "BLOCK_C": block}


def _divide_up(count: int, size: int) -> int:
    return -(-count // size)


def _power_of_two(count: int) -> int:
    """Return the smallest power of two from `count`."""
    return 1 << (count - 1).bit_length()
