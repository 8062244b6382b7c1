"""The shared memory that the kernels need on a Hopper card, and races in it: the interpreter knows of neither."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.races import find_races

pytest.importorskip("triton")


@pytest.mark.slow
def test_no_kernel_needs_more_shared_memory_than_the_rules_say_or_overwrites_what_it_reads():
    command = [sys.executable, "-m", "tests.support.kernels_for_hopper"]
    ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    needed = json.loads(ran.stdout)
    from unbraid.networks.conv_tiles import MIN_SHARED_MEMORY

    assert {name.partition(":")[0] for name in needed} >= {
        "_product",
        "_gradient",
        "_windows",
        "_last_layer",
        "_double",
    }
    assert {name: size for name, (size, _) in needed.items() if size > MIN_SHARED_MEMORY} == {}
    assert {name: races for name, (_, races) in needed.items() if races} == {}


LOOP = """
    %a = ttg.local_alloc : () -> !ttg.memdesc<3x64x64xbf16, #shared, #smem, mutable>
    %b = ttg.local_alloc : () -> !ttg.memdesc<BUFFERSx64x64xbf16, #shared, #smem, mutable>
    %0 = ttg.memdesc_index %a[%c0] : !ttg.memdesc<3x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
    %1 = ttg.memdesc_index %b[%c0] : !ttg.memdesc<2x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
    %2 = ttg.async_copy_global_to_local %x, %0 mask %m
    %3 = ttg.async_copy_global_to_local %y, %1 mask %m
    %4 = ttg.async_copy_global_to_local %x, %0 mask %m
    %5 = ttg.async_copy_global_to_local %y, %1 mask %m
    %6:8 = scf.for %i = %begin to %end step %c64 iter_args(%total = %zero)
      %7 = ttg.memdesc_index %a[%i] : !ttg.memdesc<3x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
      %8 = ttg.memdesc_trans %7 {order = array<i32: 1, 0>} : !ttg.memdesc<64x64xbf16> -> !ttg.memdesc<64x64xbf16>
      %9 = ttg.memdesc_index %b[%i] : !ttg.memdesc<2x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
      %10 = ttng.warp_group_dot %8, %9, %total {inputPrecision = 0 : i32, isAsync = true}
      %11:3 = ttng.warp_group_dot_wait %10, %8, %9 {pendings = PENDING : i32}
      %12 = ttg.async_copy_global_to_local %x, %7 mask %m
      %13 = ttg.async_copy_global_to_local %y, %9 mask %m
      scf.yield %11#0
"""


@pytest.mark.parametrize(("buffers", "pending", "races"), [(3, 1, 0), (2, 1, 4), (2, 0, 0), (3, 2, 6)])
def test_copies_over_numbers_of_pending_products_are_found(buffers, pending, races):
    """As many buffers as copies ahead are too few while this step's product runs; with two pending, three are."""
    found = find_races(LOOP.replace("BUFFERS", str(buffers)).replace("PENDING", str(pending)))
    assert len(found) == races
