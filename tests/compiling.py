"""Compilation of Triton kernels for GPUs that this machine lacks.

``python -m tests.compiling`` prints the resources of all kernels, which docs/kernels.md sums up. ``python -m
tests.compiling allocators 90`` compares the code for torch's allocator and for cudaMallocAsync, with the Triton on the
path. With a compute capability as only argument, such as 90 for 9.0, the command prints the resources of all kernels as
JSON. It needs a separate process, because the tests run kernels in Triton's interpreter. It calls the functions that
launch kernels, with tensors on a CPU. A replacement for Triton's driver names the device for which to compile, and
nothing is launched.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from benchmarks.tables import table

ROOT = Path(__file__).resolve().parents[1]
PRODUCTS = ("linear_kernel", "int4_kernel")  # kernels that compute a product with a weight
CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
"""Compute capabilities times 10: Turing, three of Ampere and Ada, Hopper, and two of Blackwell."""


class Resources(NamedTuple):
    """Resources of a compiled kernel.

    The instructions are the matrix instructions without their operands, such as "HMMA.16816.F32.BF16"; "FFMA", a scalar
    instruction, if there are none. The list is empty for kernels that are no product.
    """

    kernel: str
    operands: str  # dtype and sizes
    registers: int  # of a thread
    spilled: int  # bytes that a thread stores to memory because registers are missing
    shared: int  # bytes of shared memory of a program
    warps: int  # of a program
    instructions: list[str]


def resources(capability: int) -> list[Resources]:
    """Compile all kernels in a new process and return their resources.

    Args:
        capability: Member of :data:`CAPABILITIES`.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.compiling", str(capability)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return [Resources(*row) for row in json.loads(done.stdout)]


class _Driver:
    """Replacement for the driver of a GPU. It only names the device for which Triton compiles."""

    def __init__(self, capability: int):
        self._capability = capability

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def _compiling(capability: int) -> Iterator[list]:
    """Compile kernels for a device instead of launching them. The list that this yields receives the kernels."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    compiled: list = []
    run = JITFunction.run

    def compile_only(function, *args, grid, warmup, **options):
        compiled.append(run(function, *args, grid=grid, warmup=True, **options))

    driver.set_active(_Driver(capability))
    with patch.object(JITFunction, "run", compile_only):
        yield compiled


def _compile(capability: int) -> list[Resources]:
    """Compile all kernels, and return their resources."""
    found = []
    with _compiling(capability) as compiled:
        for operands, launch in _launches(capability):
            compiled.clear()
            launch()
            for kernel in compiled:
                registers, spilled = _assemble(kernel.asm["ptx"], capability)
                name, shared, warps = (getattr(kernel.metadata, field) for field in ("name", "shared", "num_warps"))
                instructions = _instructions(kernel.asm["cubin"]) if name in PRODUCTS else []
                found.append(Resources(name, operands, registers, spilled, shared, warps, instructions))
    return found


def ptx(capability: int) -> Iterator[tuple[str, str, str]]:
    """Compile all kernels twice: for tensors, as with torch's allocator, and for addresses, as with cudaMallocAsync.

    Yields:
        Operands of a launch, and the PTX of its kernels for tensors and for addresses; "" if they don't compile.
    """
    from adt_core.kernels import choice

    def as_addresses(*operands):
        return [operand.data_ptr() for operand in operands]

    with _compiling(capability) as compiled:
        for operands, launch in _launches(capability):
            found = []
            for pointers in choice.pointers, as_addresses:
                compiled.clear()
                with suppress(choice.KernelError), patch.object(choice, "pointers", pointers):
                    launch()
                found.append("\n".join(kernel.asm["ptx"] for kernel in compiled))
            yield operands, *found


COMPUTING = re.compile(
    r"(@%\w+\s+)?(ld\.global|st\.global|cp\.async|ldmatrix|w?g?mma|(fma|add|sub|mul|div|max|min)\.\S*f(16|32)|ex2|rsqrt|shfl|cvt)"
)
"""Instructions of PTX that load, store and compute with floating-point numbers. Integers are only addresses."""


def code(text: str) -> list[str]:
    """Return the instructions of PTX that matter for results and times, without the names of registers.

    Equal lists mean the same loads, and the same order of sums.
    """
    lines = [line.split("//")[0].strip() for line in text.splitlines()]
    return [re.sub(r"%\w+", "%", line) for line in lines if COMPUTING.match(line)]


def _compare_allocators(capability: int) -> int:
    """Print and count the launches whose code depends on the allocator."""
    import triton

    different = []
    failed = []
    loads = 0
    count = 0
    for operands, *both in ptx(capability):
        one, other = map(code, both)
        count += 1
        failed += [f"{operands}: does not compile"] * (not one)
        loads += sum("ld.global" in line or "cp.async" in line for line in one)
        if one != other:
            different.append(f"{operands}: {len(one)} and {len(other)} instructions")
    summary = f"{count} launches with {loads} loads, {len(different)} differ, {len(failed)} don't compile"
    print(f"Triton {triton.__version__}, {capability / 10}: {summary}", *different, *failed, sep="\n", flush=True)
    return len(different)


def _instructions(cubin: bytes) -> list[str]:
    """Return the matrix instructions of a compiled product, from the SASS that NVIDIA's disassembler prints."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        sass = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"\b(\w*MMA\.[\w.]+|FFMA)\b", sass))
    return sorted(name for name in names if name != "FFMA") or sorted(names)


def _assemble(ptx: str, capability: int) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes that it spills, as NVIDIA's assembler reports them."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        options = ["-v", f"--gpu-name={sm_arch_from_capability(capability)}", "-o", os.devnull]
        command = [get_ptxas(capability).path, *options, str(source)]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    registers = re.search(r"Used (\d+) registers", report)
    assert spilled and registers, report
    return int(registers[1]), int(spilled[1]) + int(spilled[2])


def _launches(capability: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield operands, for the table, and a function that launches kernels with these operands."""
    import torch

    from adt_core.kernels import attend, gate, norm, norm_rope_store
    from adt_core.kernels.attend_trial import RandomTree
    from adt_core.kernels.trials import random_like
    from adt_core.models.rotary import Rotation

    dtype = torch.bfloat16 if capability >= 80 else torch.float16
    like = torch.zeros((), dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    attend.chunk_size = lambda device: attend.chunk_for(divmod(capability, 10))
    for heads, kv_heads, dim in ((4, 4, 64), (4, 4, 80), (4, 4, 128), (8, 2, 128)):
        sizes = f"{name}, heads of {dim}" + (f", {heads // kv_heads} for each key head" if heads > kv_heads else "")
        tree = RandomTree(like, heads, kv_heads, dim, [-1, 0, 0], committed=200)
        yield sizes, partial(attend.kernel, *tree.operands(range(3), range(3)).for_kernel())
        norms = random_like(like, 2, heads + kv_heads, dim)
        qkv = random_like(like, 3, heads + 2 * kv_heads, dim)
        projection = norm_rope_store.Projection(random_like(like, qkv[0].numel()), *norms)
        rotation = Rotation(random_like(like, 3, 1, dim), random_like(like, 3, 1, dim), None)
        cache = random_like(like, 2, 1, kv_heads, 16, dim)
        positions = torch.arange(3)[None]
        yield sizes, partial(norm_rope_store.kernel, qkv, projection, rotation, cache, positions)
        only_rotation = norm_rope_store.Projection(None, None, None)
        given = qkv, only_rotation, rotation, cache, slice(0, 3)
        yield f"{sizes}, no bias, no norm, a prompt", partial(norm_rope_store.kernel, *given)
    for width in (2048, 4096, 8192):
        x = random_like(like, 2, width)
        yield f"{name}, {width} columns", partial(norm.kernel, x, x[0].clone(), 1e-5, x.clone())
    for activation in ("silu", "gelu_pytorch_tanh"):
        yield f"{name}, {activation}", partial(gate.kernel, random_like(like, 2, 2 * 11008), activation)
    yield from _products(like, capability)


def _products(like, capability: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the operands and the launches of products with all formats of weights and sizes of blocks.

    Args:
        like: Tensor with the dtype of the activations in half precision.
        capability: Member of :data:`CAPABILITIES`.
    """
    import torch

    from adt_core.kernels import linear
    from adt_core.models import quantised

    gpu = linear.Gpu.of(132, divmod(capability, 10))
    linear.gpu_of = lambda device: gpu
    sizes = set()
    for kind, outputs in product(("int8", "fp8", "int4"), (4096, 22016)):
        x = torch.zeros(128, 256, dtype=like.dtype)
        weight, scale = quantised.empty(torch.zeros(256, outputs, dtype=x.dtype), kind, torch.float32)
        for rows in gpu.block_rows:
            width = linear.Blocks.of(rows, outputs, x.dtype, weight.dtype, gpu).outputs
            if (kind, rows, width) in sizes:
                continue
            sizes.add((kind, rows, width))
            part = x[:rows]
            plus = torch.zeros(rows, outputs, dtype=x.dtype)
            dtype = str(like.dtype).removeprefix("torch.")
            yield f"{dtype}, {rows} x {width} results, {kind}", partial(linear.kernel, part, weight, scale, plus)


def _operands(row: Resources) -> str:
    """Return the operands without the dtype of the activations, which differs between compute capabilities."""
    return row.operands.removeprefix("bfloat16, ").removeprefix("float16, ")


def _table(found: Sequence[list[Resources]], cell: Callable[[Resources], str]) -> str:
    """Return a Markdown table with a row for each kernel and its operands, and a column for each compute capability.

    Args:
        found: Resources for each member of :data:`CAPABILITIES` in turn.
    """
    titles = [f"{capability / 10}" for capability in CAPABILITIES]
    rows = []
    columns = [{(row.kernel, _operands(row)): row for row in rows} for rows in found]
    for kernel, operands in dict.fromkeys(key for column in columns for key in column):
        own = [column.get((kernel, operands)) for column in columns]
        warps = "/".join(map(str, dict.fromkeys(row.warps for row in own if row is not None)))
        rows.append((f"`{kernel}`", operands, warps, *("" if row is None else cell(row) for row in own)))
    return table(("kernel", "operands", "warps", *titles), rows)


def formats(rows: Sequence[Resources]) -> dict[str, set[str]]:
    """Return the matrix instructions of all versions of products, by dtype of activations and format of the weight."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row.kernel in PRODUCTS:
            name = re.sub(r", \d+ x \d+ results", "", row.operands)
            found.setdefault(name, set()).update(row.instructions)
    return found


def main(arguments: Sequence[str]) -> None:
    """Print the resources for one compute capability as JSON; or for all of them tables, spills and instructions."""
    if arguments[:1] == ["allocators"]:
        sys.exit(min(_compare_allocators(int(arguments[1])), 1))
    elif arguments:
        capability = int(arguments[0])
        json.dump(_compile(capability), sys.stdout)
    else:
        found = [resources(capability) for capability in CAPABILITIES]
        print(_table(found, lambda row: f"{row.registers}, {row.shared / 1024:.1f}"))
        spills = [row for rows in found for row in rows if row.spilled]
        print(f"\nversions: {sum(map(len, found))}, with spilled registers: {len(spills)}", *spills, sep="\n")
        for capability, rows in zip(CAPABILITIES, found):
            for name, instructions in formats(rows).items():
                print(f"{capability / 10} | {name} | {', '.join(sorted(instructions))}")


if __name__ == "__main__":
    main(sys.argv[1:])
