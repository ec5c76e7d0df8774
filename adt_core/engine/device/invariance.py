"""Trial of batch invariance, which tests if a token's features are bitwise equal in all forward passes on this device.

Batch-invariant mode (:mod:`adt_core.models.batch_invariance`) relies on the order in which libraries add numbers. A row
of a matrix product must depend neither on its index nor on the other rows. An attention kernel must add keys in the
order of their cache positions. No library guarantees these properties, so the trial tests them with the first layers of
the loaded weights. The target reads tokens one by one. Then it reads the same tokens in larger forward passes, as
rounds do. Both ways must give the same features and logits.

Dimensions: B images, n tokens per forward pass, m tokens to compare, V codes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...drafters.jacobi import JacobiDrafter
from ...errors import is_out_of_memory
from ...kernels.choice import KernelError, recorded_verdicts, supports_kernels
from ...kernels.verdicts import Verdict, code_digest
from ...messages import Message, find_message, message
from ...models.batch_invariance import HALF, MASK_ALIGNMENT, FallbackConfig
from ...models.layers import MATRICES
from ...models.rows import Roots
from ...models.target import EncodedPrompt, Target
from ...models.torch_private import product_settings
from ...policies import Drafting
from ...rules.tree import ancestor_matrix
from ...runtime import get_runtime
from ...untrusted import SWITCH, row, whole_number
from ...version import VERSION
from ..forward import forward
from ..kept import KeptTokens
from ..queue import ImageQueue
from ..request import PROMPT_MULTIPLE, Request
from . import profiles

TILE_DIVISOR = 4
"""Factor by which a fallback reduces the size of a tile, the number of rows that are multiplied at once."""
TRIAL_LAYERS = 2
"""Number of decoder layers in the trial. The second layer's attention shows differences that the first one makes."""
PRECEDING_TOKENS = 160
"""Number of image tokens before the tokens that are compared."""
EXTRA_PROMPT_TOKENS = PROMPT_MULTIPLE
"""Difference in length between the two prompts of the variant `COMPANY`. The longer prompt moves the image to other
cache positions, even if prompts are padded to `PROMPT_MULTIPLE`."""
PATH_DRAFTS = 32
"""Number of drafts on the path that is compared. With one sibling for each, they fill more than a tile."""
COMPARED_DEPTHS = (0, 1, 7, 8, 15, 16, 31, 32)
"""Depths on the path at which features and logits are compared."""

CHAIN = "in a chain"
TREE = "in a tree"
COMPANY = "beside a longer prompt"
COLUMNS = "among more columns"
VARIANTS = (CHAIN, TREE, COMPANY, COLUMNS)
"""Forward passes that the trial compares with reading tokens one by one.

- `CHAIN`: one forward pass over successive tokens.
- `TREE`: one forward pass over a draft tree.
- `COMPANY`: as `CHAIN`, in a batch with a second image that has a longer prompt.
- `COLUMNS`: as `CHAIN`, and attention also reads unused (masked) positions of the KV cache.
"""
WEIGHT_SAMPLE = 64
"""Number of elements of each matrix whose sum identifies the weights."""
MAX_REMARK_LENGTH = 300
"""Maximum number of characters of a remark in a stored report."""


class InvarianceReport(NamedTuple):
    """Result of the trial on one device.

    Attributes:
        fallback: Slower operations to use, because the usual operations are not batch-invariant on this device; or
            None.
        is_drafting: Whether images are the same with drafting as without. If not, they are generated without drafts.
        differing: Variants (:data:`VARIANTS`) whose results with the usual operations were not bitwise equal.
        remark: Message for the user, or "".
        kernels: Whether Triton kernels may be used. If not, the other attributes are invalid: without kernels, another
            report holds.
    """

    fallback: FallbackConfig | None = None
    is_drafting: bool = True
    differing: tuple[str, ...] = ()
    remark: str = ""
    kernels: bool = True

    def to_json(self) -> dict:
        """Return the report as plain JSON types."""
        return {
            "trust": self.fallback and list(self.fallback),
            "is_drafting": self.is_drafting,
            "differing": list(self.differing),
            "remark": self.remark,
            "kernels": self.kernels,
        }

    @classmethod
    def from_json(cls, value: Any, tile: int) -> InvarianceReport | None:
        """Return the report from the result of `to_json`; None if the value is not such a result.

        Args:
            tile: Tile size without a fallback. A fallback's tile must not be larger.
        """
        match value:
            case {
                "trust": fallback,
                "is_drafting": bool(is_drafting),
                "differing": [*differing],
                "remark": str(remark),
                "kernels": bool(kernels),
            }:
                known = all(variant in VARIANTS for variant in differing) and len(remark) < MAX_REMARK_LENGTH
                if known and (fallback is None or row(whole_number(1, tile), SWITCH).fits(fallback)):
                    config = None if fallback is None else FallbackConfig(*fallback)
                    return cls(config, is_drafting, tuple(differing), find_message(remark), kernels)
        return None


NO_MODE = InvarianceReport(remark=message("device.no_mode"))
"""Report for devices that :data:`..models.batch_invariance.TILE` does not list, such as Apple's and Intel's GPUs."""


def chosen_kernels(request: Request) -> tuple[Verdict, ...]:
    """Return the verdicts on the Triton kernels of the target's operations; none on devices without kernels.

    An operation chooses between kernel and PyTorch at its first launch (:mod:`adt_core.kernels.choice`). This function
    launches all operations once. So the choice is known before the trial of batch invariance, which depends on it.

    Raises:
        KernelError: If a kernel fails outside its trial.
    """
    decoder = request.target.decoder
    if not supports_kernels(decoder.embedding.device):
        return ()
    known = get_runtime().kernel_choices
    settings = decoder.exact, decoder.dtype, decoder.weights
    if decoder not in known or known[decoder][0] != settings:
        with recorded_verdicts(request.check) as verdicts, torch.inference_mode():
            try:
                _Trial(request, None).chain()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                return tuple(sorted(verdicts))  # the next decoding tries again
        known[decoder] = settings, tuple(sorted(verdicts))
    return known[decoder][1]


def invariance_report(request: Request, kernels: Sequence[Verdict] = ()) -> InvarianceReport:
    """Return the report for the weights and the device of a request. Run the trial if there is no report yet.

    Reports are stored in the runtime and in the cache folder. When a report with a remark is first used in a process,
    the remark is logged. The caller must set `Decoder.fallback` to the report's fallback, also for plain decoding,
    which otherwise could give another image than drafting.

    Args:
        kernels: Result of :func:`chosen_kernels`.

    Raises:
        KernelError: If a kernel fails in the trial, or if results with kernels are not batch-invariant. The caller then
            switches the kernels off, and tries again: without them, the usual operations may suffice.
    """
    decoder = request.target.decoder
    if not decoder.exact or decoder.dtype not in HALF:
        return InvarianceReport()
    name = report_name(request, kernels)
    reports = get_runtime().invariance_reports
    if name not in reports:
        try:
            reports[name] = _stored_or_new_report(name, request, any(kernel.uses_kernel for kernel in kernels))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return InvarianceReport()  # the next decoding tries again
        if not reports[name].kernels:
            raise KernelError(f"results differ {' and '.join(reports[name].differing)}")
        if reports[name].remark:
            logging.getLogger(__name__).warning("%s", reports[name].remark)
    return reports[name]


def _stored_or_new_report(name: str, request: Request, has_kernels: bool) -> InvarianceReport:
    tile = request.target.decoder.default_tile
    if not tile:
        return NO_MODE
    report = InvarianceReport.from_json(profiles.find_report(name), tile)
    if report is None:
        report = _run_trial(request, has_kernels)
        profiles.save_report(name, report.to_json())
    return report


def report_name(request: Request, kernels: Sequence[Verdict] = ()) -> str:
    """Return the name of a report: sums over the weights, and everything by which a library chooses its kernels."""
    decoder = request.target.decoder
    device = decoder.embedding.device
    layer = decoder.first_layer()
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    samples = [layer.get_parameter(matrix).flatten()[:WEIGHT_SAMPLE].float().sum() for matrix in MATRICES]
    weights = torch.stack(samples).tolist()
    libraries = [VERSION, where, torch.__version__, torch.version.cuda, *product_settings()]
    if kernels:
        from triton import __version__ as version

        libraries += [
            "Triton",
            version,
            code_digest(),
            torch.cuda.get_allocator_backend() if device.type == "cuda" else "",
            *(f"{kernel.operation} {kernel.operands}" for kernel in kernels if kernel.uses_kernel),
        ]
    model = decoder.dtype, decoder.weights, decoder.config, weights
    return ", ".join(map(str, (*libraries, *model, request.groups, request.threads)))


def _run_trial(request: Request, has_kernels: bool) -> InvarianceReport:
    """Try the usual operations first, then the fallbacks from the fastest to the slowest; return the report.

    Args:
        has_kernels: Whether Triton kernels compute some of the usual operations. Then the first fallback is to use
            none.
    """
    differing = tuple(differences(request))
    if not differing:
        return InvarianceReport()
    if has_kernels:
        return InvarianceReport(differing=differing, kernels=False)
    if differing == (COMPANY,):
        return InvarianceReport(differing=differing, remark=message("device.batch"))
    usual = request.target.decoder.default_tile
    smaller = usual // TILE_DIVISOR
    for fallback in (FallbackConfig(usual, far=False), FallbackConfig(smaller), FallbackConfig(smaller, far=False)):
        if not differences(request, fallback):
            return InvarianceReport(fallback, differing=differing, remark=_fallback_remark(fallback, usual))
    return InvarianceReport(is_drafting=False, differing=differing, remark=message("device.no_drafts"))


def _fallback_remark(fallback: FallbackConfig, usual: int) -> Message:
    """Return the message about slower operations. `usual` is the tile size without a fallback."""
    if fallback.far:
        return message("device.products")
    return message("device.products_and_attention" if fallback.tile < usual else "device.attention")


@torch.inference_mode()
def differences(request: Request, fallback: FallbackConfig | None = None) -> list[str]:
    """Return the :data:`VARIANTS` whose output differs from the output of tokens that are read one by one.

    It is empty if the device has no batch-invariant mode.

    Args:
        request: Request whose model, prompt, rows per image and guidance are used.
        fallback: Operations to try; None for the usual ones.
    """
    if not request.target.decoder.default_tile:
        return []
    alone = _Trial(request, fallback)
    expected = alone.one_by_one()
    outputs = {CHAIN: alone.chain(), TREE: alone.tree(), COLUMNS: alone.chain(all_columns=True)}
    if _max_prompt_length(request) > request.longest:
        outputs[COMPANY] = _Trial(request, fallback, with_longer_prompt=True).chain()
    return [
        variant
        for variant, output in outputs.items()
        # NaN compares equal to NaN
        if not all(a.equal(b) or a.nan_to_num(0.5).equal(b.nan_to_num(0.5)) for a, b in zip(expected, output))
    ]


class _Trial:
    """A partly generated image in a model with few layers, and a path of codes that could follow its tokens."""

    def __init__(self, request: Request, fallback: FallbackConfig | None, with_longer_prompt: bool = False):
        """Read the prompts and the preceding tokens. A second image can have a longer prompt."""
        target = first_layers(request.target)
        target.decoder.fallback = fallback
        before = min(PRECEDING_TOKENS, target.length // 2)
        prompts = [request.prompts[group * request.images] for group in range(request.groups)]
        images = 2 if with_longer_prompt else 1
        if with_longer_prompt:
            length = min(request.longest + EXTRA_PROMPT_TOKENS, _max_prompt_length(request))
            prompts = [row for prompt in prompts for row in (prompt, _lengthen(prompt, length))]
        generator = torch.Generator().manual_seed(0)
        cells = torch.randint(target.num_codes, (1, target.num_cells), generator=generator)
        tokens = target.tokens(cells)
        drafting = Drafting("eagle2", depth=PATH_DRAFTS, width=2, drafts=2 * PATH_DRAFTS)
        recipe = replace(request.recipe, drafting=drafting, lantern=None)
        kept = KeptTokens(F.pad(tokens[:, :before], (0, target.length - before), value=-1).expand(images, -1))
        self._request = Request(target, recipe, prompts, [(0, 0)] * images, kept, JacobiDrafter(), request.check)
        self._depth = min(self._request.largest.depth, target.length - 2 - before)
        self._compared = [depth for depth in COMPARED_DEPTHS if depth <= self._depth]
        queue = ImageQueue(self._request, lambda: False, lambda *_: None)
        queue.begin(list(range(images)), images)
        slots = queue.refill()
        assert slots is not None
        self._slots = slots
        self._start = before
        self._codes = tokens[:, before : before + self._depth + 1].to(slots.rows.device).expand(images, -1)

    def one_by_one(self) -> list[Tensor]:
        """Read the tokens at `COMPARED_DEPTHS`, each in its own forward pass with one token per row.

        Returns:
            Features [r, m, h] and logits [1, m, V] of the first image. r is the number of rows of an image: 2 with
            guidance, else 1. h is the length of a token's feature vector.
        """
        self.chain()  # writes the keys and values of all tokens of the path, including tokens that are not compared
        itself = torch.ones(1, 1, 1, dtype=torch.bool, device=self._codes.device)
        outputs = [self._read(self._codes[:, [depth]], depth, 0, itself) for depth in self._compared]
        return [torch.cat(parts, 1) for parts in zip(*outputs)]

    def chain(self, all_columns: bool = False) -> list[Tensor]:
        """Read the path in one forward pass. The result equals `one_by_one`.

        Args:
            all_columns: Whether attention reads all positions of the KV cache, unused ones included (masked).
        """
        depths = torch.arange(self._depth + 1, device=self._codes.device)[None]
        outputs = self._read(self._codes, 0, depths, depths[..., None] >= depths[:, None], all_columns)
        return [out[:, self._compared] for out in outputs]

    def tree(self) -> list[Tensor]:
        """Read a tree in one forward pass: the path, and one sibling for each draft of the path.

        At depth d, the sibling is node 2d - 1 and the draft of the path is node 2d. For a path of 2 drafts::

            nodes    0  1  2  3  4
            depths   0  1  1  2  2
            parents  -  0  0  2  2

        Returns:
            The same as `one_by_one`.
        """
        siblings = (self._codes[:, 1:] + 1) % self._request.target.num_codes
        pairs = torch.stack([siblings, self._codes[:, 1:]], -1).flatten(1)
        nodes = torch.arange(2 * self._depth + 1, device=pairs.device)[None]
        depths = (nodes + 1) // 2
        visible = ancestor_matrix((2 * (depths - 1)).clamp_min(0), self._depth)
        outputs = self._read(torch.cat([self._codes[:, :1], pairs], 1), 0, depths, visible)
        return [out[:, ::2][:, self._compared] for out in outputs]

    def _read(
        self, codes: Tensor, first: int, depths: Tensor | int, visible: Tensor, all_columns: bool = False
    ) -> list[Tensor]:
        """Read codes in one forward pass, as a round does. Return features and logits as `one_by_one`.

        Args:
            codes: [B, n].
            first: Depth of the first code on the path.
            depths: [1, n], depth of each code below the first code, or one depth for all.
            visible: [1, n, n] bool. The element [0, i, j] is True if code i attends to code j.
            all_columns: Whether attention reads all positions of the KV cache.
        """
        slots = self._slots
        images = len(codes)
        roots = Roots.all_at(codes[:, 0], self._start + first)
        slots.roots = roots
        used = self._start + first + slots.rows.cache_offset + codes.shape[1]
        columns = len(slots.rows.columns)
        if all_columns or self._request.replayed:
            roots.kv_length = columns if all_columns else min(-(-used // MASK_ALIGNMENT) * MASK_ALIGNMENT, columns)
        offsets = depths.expand(images, -1) if isinstance(depths, Tensor) else depths
        features = forward(slots, codes, slots.rows.metadata(roots, 0, offsets, visible.expand(images, -1, -1)))
        z = self._request.target.decoder.logits(features, self._request.sampling.guidance_scale)
        return [features[::images], z[:1]]


def first_layers(target: Target) -> Target:
    """Return a target with only the first `TRIAL_LAYERS` layers, which shares its weights with the given target."""
    copied = copy(target)
    decoder = copy(target.decoder)
    decoder._modules = {**decoder._modules, "layers": decoder.layers[:TRIAL_LAYERS]}
    decoder.pooled_slots = {}
    decoder.config = replace(decoder.config, num_layers=min(TRIAL_LAYERS, decoder.config.num_layers))
    copied.decoder = decoder
    return copied


def _max_prompt_length(request: Request) -> int:
    return request.target.decoder.config.max_positions - request.target.length


def _lengthen(prompt: EncodedPrompt, length: int) -> EncodedPrompt:
    """Return a prompt of `length` tokens: copies of the given prompt's tokens, then the given prompt."""
    places = [place % len(prompt) for place in range(len(prompt) - length, len(prompt))]
    features = None if prompt.features is None else prompt.features[places]
    return EncodedPrompt([prompt[place] for place in places], features, prompt.hidden)
