"""Find products in Triton's code for a GPU (TTGIR) whose factors are overwritten while the product may still read them.

A loop copies tiles ahead to shared memory: in step t, the copy for step t + n goes to buffer (t + n) mod buffers, where
n copies are made before the loop. A product in step t reads buffer t mod buffers. It runs on by itself until a
`warp_group_dot_wait` leaves fewer products pending than were begun after it.
"""

import re
from collections import Counter

STEPS = 4
_NAME = r"(%[\w#-]+)"
_BUFFERS = re.compile(rf"{_NAME} = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x")
_VIEW = re.compile(rf"{_NAME} = ttg\.memdesc_\w+ {_NAME}")
_COPY = re.compile(rf"ttg\.async_copy_global_to_local {_NAME}, {_NAME}")
_PRODUCT = re.compile(rf"ttng\.warp_group_dot {_NAME}, {_NAME}")
_WAIT = re.compile(r"ttng\.warp_group_dot_wait .*pendings = (\d+)")


def find_races(code: str) -> list[str]:
    """Return a line for each copy over numbers that a product may still read."""
    buffers: dict[str, int] = {}
    root: dict[str, str] = {}
    ahead: Counter[str] = Counter()
    body: list[str] | None = None
    found: list[str] = []
    for line in code.splitlines():
        if made := _BUFFERS.search(line):
            buffers[made[1]] = int(made[2])
            root[made[1]] = made[1]
        elif view := _VIEW.search(line):
            root[view[1]] = root.get(view[2], view[2])
        if "scf.for" in line:
            body = []
        elif body is not None and "scf.yield" in line:
            found += _follow(body, root, buffers, ahead)
            body = None
        elif body is not None:
            body.append(line)
        elif copy := _COPY.search(line):
            ahead[root.get(copy[2], copy[2])] += 1
    return found


def _follow(body: list[str], root: dict[str, str], buffers: dict[str, int], ahead: Counter[str]) -> list[str]:
    """Return the races of some steps of a loop."""
    pending: list[tuple[int, set[str]]] = []
    found: list[str] = []
    for step in range(STEPS):
        for line in body:
            if product := _PRODUCT.search(line):
                pending.append((step, {root.get(name, name) for name in product.groups()}))
            elif wait := _WAIT.search(line):
                pending = pending[len(pending) - min(len(pending), int(wait[1])) :]
            elif copy := _COPY.search(line):
                target = root.get(copy[2], copy[2])
                for begun, factors in pending:
                    if target in factors and (step + ahead[target] - begun) % buffers[target] == 0:
                        found.append(f"{target}: step {step} overwrites what the product of step {begun} reads")
    return sorted(set(found))
