"""Operations of a decoder layer that have a Triton kernel, with operands in the shapes of a model.

Activations, keys and values are random numbers. Weights are the model's. A *row* is one row of the matrix of
activations: a token of the conditional or of the unconditional prompt.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import ClassVar
from unittest import mock

import torch
from torch import Tensor

from adt_core.kernels import attend, gate, linear, norm, norm_rope_store
from adt_core.kernels.attend_trial import Operands, RandomTree, join
from adt_core.kernels.choice import VARIABLE, supports_kernels
from adt_core.kernels.norm_rope_store import Projection
from adt_core.kernels.trials import random_like
from adt_core.models.batch_invariance import NearKeys, pad_rows
from adt_core.models.layers import MATRICES, Decoder, product
from adt_core.models.rotary import Rotation, rope_tables
from adt_core.runtime import new_runtime

GUIDED = 2  # rows of a node of a draft tree with guidance
MAX_ROWS = max(linear.TESTED_ROWS)
COMMITTED = 512  # number of committed tokens before the nodes: half of an image of 32 x 32 tokens
START = 100
"""Position of the first token whose query and key are rotated. Small enough for the small models of rehearsals."""


@contextmanager
def kernels(on: bool) -> Iterator[None]:
    """Allow or forbid Triton kernels within the block. All trials run again, as in a process that has just started.

    Args:
        on: Whether the kernels that the environment variable allows are used; all kernels if it is not set. The part
            `smoke` excludes kernels that have failed.
    """
    allowed = os.environ.get(VARIABLE, "1") if on else "0"
    with mock.patch.dict(os.environ, {VARIABLE: allowed}), new_runtime():
        yield


Calls = tuple[list[Callable[[], object]], list[Callable[[], object]]]
"""Functions that compute an operation, one for each layer of the model: with the Triton kernel, and with PyTorch as
without kernels. Each layer has its own weights, keys and values. So they are read from memory in each call, as in a
forward pass, and not from the cache of the device."""


class Operation(ABC):
    """Operation with operands. The constructor must run in a block of ``kernels(True)``.

    If the device supports no Triton kernels, which is allowed only in rehearsals, references replace the kernels.

    Attributes:
        name: Name of the operation in :mod:`adt_core.kernels`.
        operands: Description of the operands.
        distinct_layers: Number of layers with different weights; 1 if the operation has no weights.
    """

    name: ClassVar[str]
    module: ClassVar[ModuleType]
    operands: str
    distinct_layers: int = 1

    def __init__(self, decoder: Decoder):
        self.config = decoder.config
        self.like = decoder.embedding
        self.layers = list(decoder.layers)
        self.tile = decoder.tile
        self.has_kernel = supports_kernels(self.like.device)
        self.kernel = self.module.kernel if self.has_kernel else self.module.reference

    @abstractmethod
    def choose(self) -> None:
        """Decide whether the engine uses the kernel, which runs the trial."""

    @abstractmethod
    def calls(self, nodes: int) -> Calls:
        """Return the functions for a forward pass of one image with guidance.

        Args:
            nodes: Number of nodes of the draft tree, root included.
        """

    @abstractmethod
    def result(self, layer: int, rows: Sequence[int]) -> Tensor:
        """Return the result of the kernel in a forward pass that computes some of :data:`MAX_ROWS` rows.

        Args:
            layer: Index of the layer whose weights are used.
            rows: Indices of the rows, in ascending order.

        Returns:
            [rows, outputs].
        """


class Linear(Operation):
    """Product with a matrix of each layer, and the addition to the residual stream where the layer adds one."""

    name = "linear"
    module = linear

    def __init__(self, decoder: Decoder, matrix: str):
        super().__init__(decoder)
        c = self.config
        inputs = {"out": c.query_width, "down": c.intermediate_size}.get(matrix, c.hidden_size)
        self.weights = [(layer.get_parameter(matrix), getattr(layer, f"{matrix}_scale")) for layer in self.layers]
        outputs = self.weights[0][0].shape[1]
        is_added = matrix in ("out", "down") and not c.post_norms
        self.x = random_like(self.like, MAX_ROWS, inputs)
        self.plus = random_like(self.like, MAX_ROWS, outputs, seed=1) if is_added else None
        self.operands = f"{matrix}, {inputs} x {outputs}"
        self.distinct_layers = len(self.layers)

    def _operands(self, rows: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        x = pad_rows(self.x[list(rows)], self.tile)
        return x, None if self.plus is None else pad_rows(self.plus[list(rows)], self.tile)

    def _multiply(self, layer: int, x: Tensor, plus: Tensor | None, used_rows: int) -> Tensor:
        used = [used_rows] * self.has_kernel  # the reference computes all rows
        return self.kernel(x, *self.weights[layer], plus, *used)

    def choose(self) -> None:
        x, plus = self._operands(range(MAX_ROWS))
        product(x, *self.weights[0], plus, self.tile)

    def calls(self, nodes: int) -> Calls:
        rows = GUIDED * nodes
        x, plus = self._operands(range(rows))
        _, other_plus = self._operands(range(rows))  # the calls overwrite it
        return (
            [partial(self._multiply, layer, x, plus, rows) for layer in range(len(self.weights))],
            [partial(product, x, weight, scale, other_plus, self.tile, rows) for weight, scale in self.weights],
        )

    def result(self, layer: int, rows: Sequence[int]) -> Tensor:
        return self._multiply(layer, *self._operands(rows), len(rows))[: len(rows)]


class Attend(Operation):
    """Attention of a draft tree after :data:`COMMITTED` tokens."""

    name = "attend"
    module = attend

    def __init__(self, decoder: Decoder):
        super().__init__(decoder)
        c = self.config
        self.heads = c.num_heads, c.num_kv_heads, c.head_dim
        self.operands = f"{c.num_heads} heads of {c.head_dim}, {COMMITTED} tokens before"
        self.tree = RandomTree(
            self.like, *self.heads, [max((node - 1) // 2, -1) for node in range(MAX_ROWS)], COMMITTED
        )

    def choose(self) -> None:
        attend.uses_kernel(self.like, *self.heads)

    def _for_kernel(self, given: Operands) -> Operands:
        return given.for_kernel() if self.has_kernel else given.for_reference()

    def _kernel(self, queries: Tensor, cache: Tensor, mask: Tensor, near_keys: NearKeys) -> Tensor:
        run = attend.kernel if self.has_kernel else self._reference
        return run(queries, cache, mask, near_keys)

    def _reference(self, queries: Tensor, cache: Tensor, mask: Tensor, near_keys: NearKeys) -> Tensor:
        return attend.reference(queries, cache, mask, near_keys if cache.is_cuda else None)  # CPUs lack far attention

    def calls(self, nodes: int) -> Calls:
        row = self.tree.operands(range(nodes), range(nodes))
        shared = join([row] * GUIDED, padding=-GUIDED * nodes % (self.tile or 1))
        caches = [shared.cache.clone() for _ in self.layers]
        for_kernel = self._for_kernel(shared)
        for_reference = shared.for_reference()
        return (
            [partial(self._kernel, *for_kernel._replace(cache=cache)) for cache in caches],
            [partial(self._reference, *for_reference._replace(cache=cache)) for cache in caches],
        )

    def result(self, layer: int, rows: Sequence[int]) -> Tensor:
        # Parents precede their children, so the first nodes up to the last one of `rows` contain all paths.
        return self._kernel(*self._for_kernel(self.tree.operands(range(max(rows) + 1), rows)))


class NormRopeStore(Operation):
    """Bias, norm and rotation of queries and keys, and the write to the KV cache."""

    name = "norm_rope_store"
    module = norm_rope_store

    def __init__(self, decoder: Decoder):
        super().__init__(decoder)
        c = self.config
        self.heads = c.num_heads, c.num_kv_heads, c.head_dim
        self.qkv = random_like(self.like, MAX_ROWS, c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        self.projections = [
            Projection(layer.qkv_bias, layer.qk_norm_weight, layer.qk_norm_bias) for layer in self.layers
        ]
        self.rope = rope_tables(c, self.like)
        self.operands = f"{c.num_heads} query and {c.num_kv_heads} key heads of {c.head_dim}"
        self.distinct_layers = len(self.layers)

    def choose(self) -> None:
        norm_rope_store.uses_kernel(self.like, *self.heads, self.config.qkv_bias, self.config.qk_norm)

    def _rotation(self, positions: Tensor, layers: int) -> Rotation:
        return Rotation.of(pad_rows(positions.flatten(), self.tile), self.rope, layers, self.tile)

    def calls(self, nodes: int) -> Calls:
        _, kv_heads, dim = self.heads
        qkv = pad_rows(self.qkv[: GUIDED * nodes], self.tile)
        positions = torch.arange(START, START + nodes, device=qkv.device).repeat(GUIDED, 1)
        cache = qkv.new_zeros(2, GUIDED, kv_heads, START + nodes, dim)
        rotations = self._rotation(positions, 0), self._rotation(positions, len(self.layers))
        groups = [
            [partial(run, tokens, projection, rotation, cache, positions) for projection in self.projections]
            for run, tokens, rotation in zip((self.kernel, norm_rope_store.reference), (qkv, qkv.clone()), rotations)
        ]
        return groups[0], groups[1]

    def result(self, layer: int, rows: Sequence[int]) -> Tensor:
        qkv = self.qkv[list(rows)]
        positions = torch.tensor(rows, device=qkv.device)
        cache = qkv.new_zeros(2, 1, self.heads[1], len(rows), self.heads[2])
        cache_position = torch.arange(len(rows), device=qkv.device)[None]
        rotation = Rotation.of(positions, self.rope, 0)
        queries = self.kernel(qkv, self.projections[layer], rotation, cache, cache_position)
        keys_and_values = cache[:, 0].permute(2, 0, 1, 3).flatten(1, 2)  # [rows, key and value heads, d]
        return torch.cat([queries, keys_and_values], 1).flatten(1)


class Norm(Operation):
    """RMS norm before the MLP of each layer."""

    name = "norm"
    module = norm

    def __init__(self, decoder: Decoder):
        super().__init__(decoder)
        self.x = random_like(self.like, MAX_ROWS, self.config.hidden_size)
        self.weights = [layer.get_parameter("mlp_norm") for layer in self.layers]
        self.operands = f"{self.config.hidden_size} columns"
        self.distinct_layers = len(self.layers)

    def choose(self) -> None:
        norm.uses_kernel(self.x)

    def calls(self, nodes: int) -> Calls:
        rows = GUIDED * nodes
        x = pad_rows(self.x[:rows], self.tile)
        used = [None, rows] if self.has_kernel else []  # the reference computes all rows
        eps = self.config.rms_norm_eps
        return (
            [partial(self.kernel, x, weight, eps, *used) for weight in self.weights],
            [partial(norm.reference, x, weight, eps) for weight in self.weights],
        )

    def result(self, layer: int, rows: Sequence[int]) -> Tensor:
        return self.kernel(self.x[list(rows)], self.weights[layer], self.config.rms_norm_eps)


class Gate(Operation):
    """Activation of the MLP's gate, and the product with the second half."""

    name = "gate"
    module = gate

    def __init__(self, decoder: Decoder):
        super().__init__(decoder)
        self.gate_up = random_like(self.like, MAX_ROWS, 2 * self.config.intermediate_size)
        self.operands = f"{self.config.activation}, 2 x {self.config.intermediate_size} columns"

    def choose(self) -> None:
        gate.uses_kernel(self.gate_up, self.config.activation)

    def calls(self, nodes: int) -> Calls:
        rows = GUIDED * nodes
        gate_up = pad_rows(self.gate_up[:rows], self.tile)
        used = [rows] * self.has_kernel  # the reference computes all rows
        return (
            [partial(self.kernel, gate_up, self.config.activation, *used) for _ in self.layers],
            [partial(gate.reference, gate_up, self.config.activation) for _ in self.layers],
        )

    def result(self, layer: int, rows: Sequence[int]) -> Tensor:
        return self.kernel(self.gate_up[list(rows)], self.config.activation)


def operations_of(decoder: Decoder) -> list[Operation]:
    """Return the operations of a model with a kernel: its products if its weights are quantised, else the others."""
    if decoder.weights is not None:
        return [Linear(decoder, matrix) for matrix in MATRICES]
    return [Attend(decoder), NormRopeStore(decoder), Norm(decoder), Gate(decoder)]
