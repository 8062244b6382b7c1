"""How many threads torch may use for a piece of work."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for work in cache-sized pieces: sharing each piece among threads costs more than it gains.

    On busy cores it costs many times as much, since threads wait for each other after every operation.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
