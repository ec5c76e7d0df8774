"""Is a token read alike in every forward on this device, to the last bit?

The exact mode (:mod:`..models.exact`) builds on how libraries add up: a row of a product depends neither on its place
nor on the rows beside it, and a kernel takes keys in the order of their columns. No library promises that. So it is
tried, with the first layers of the very weights and the functions of a round: tokens are read one by one, and again as
rounds read them.
"""

from __future__ import annotations

import logging
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...drafters.jacobi import JacobiDrafter
from ...errors import is_out_of_memory
from ...models.exact import ALIGNED, HALF, FallbackConfig
from ...models.kernels import said_of_products
from ...models.layers import MATRICES
from ...models.rows import Roots
from ...models.target import EncodedPrompt, Target
from ...policies import Drafting
from ...rules.tree import ancestor_matrix
from ...untrusted import SWITCH, row, whole_number
from ...version import VERSION
from ..forward import forward
from ..queue import ImageQueue
from ..request import PROMPT_STEP, Request
from . import profiles

SMALLER = 4
"""Times as few rows of a product are tried where more are not exact."""
LAYERS = 2
"""Of the decoder. What differs in one of them shows in the attention of the next."""
BEFORE, BESIDE = 160, PROMPT_STEP
"""Tokens of the image before those that are read; tokens by which the prompt beside it is longer, so that the image is
in other columns also where prompts are padded."""
LONGEST = 32
"""Drafts of a path. With as many beside them, they fill more than a tile."""
PLACES = (0, 1, 7, 8, 15, 16, 31, 32)
"""Tokens of the path that are compared. The others stand before them."""

CHAIN, TREE, COMPANY, COLUMNS = "in a chain", "in a tree", "beside a longer prompt", "among more columns"
WAYS = CHAIN, TREE, COMPANY, COLUMNS
SEEN = 64
"""Numbers of each matrix by which weights are told apart."""
LONGEST_REMARK = 300
"""Characters of what a file may say."""


class InvarianceReport(NamedTuple):
    """What was found of a device.

    trust: None for the usual one. drafts: do drafts leave the image as it is? differing: what :func:`differences` said
    of the usual trust. remark: in a sentence, what an image has to do without, or "".
    """

    trust: FallbackConfig | None = None
    drafts: bool = True
    differing: tuple[str, ...] = ()
    remark: str = ""

    def to_json(self) -> dict:
        """As plain JSON types."""
        return {**self._asdict(), "trust": self.trust and list(self.trust), "differing": list(self.differing)}

    @classmethod
    def from_json(cls, value: Any, tile: int) -> InvarianceReport | None:
        """What :meth:`to_json` gave; None for anything else. tile: the usual rows of a product."""
        match value:
            case {"trust": trust, "drafts": bool(drafts), "differing": [*differing], "remark": str(remark)}:
                known = all(way in WAYS for way in differing) and len(remark) < LONGEST_REMARK
                usual = trust is None
                if known and (usual or row(whole_number(1, tile), SWITCH).fits(trust)):
                    return cls(None if usual else FallbackConfig(*trust), drafts, tuple(differing), remark)
        return None


NO_MODE = InvarianceReport(
    remark="This device has no batch-invariant mode: in half precision, drafts may change the image; "
    "use float32 to avoid this."
)
"""For devices that :data:`..models.exact.TILE` does not list, such as Apple's and Intel's GPUs."""
reports: dict[str, InvarianceReport] = {}
"""Of this process, by name."""


def establish(request: Request) -> InvarianceReport:
    """Try the exact mode before the first image of these weights on this device, and do without what fails.

    Far keys are added like near ones, then products are made smaller; where nothing helps, nothing is drafted. Plain
    images do without the same, or drafted ones would not be theirs. The remark is logged. The report is kept in the
    cache folder.
    """
    decoder = request.target.decoder
    decoder.trust = None
    if not decoder.exact or decoder.dtype not in HALF:
        return InvarianceReport()
    name = name_of(request)
    if name not in reports:
        try:
            reports[name] = _report(name, request)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return InvarianceReport()  # another time
        if reports[name].remark:
            logging.getLogger(__name__).warning("%s", reports[name].remark)
    decoder.trust = reports[name].trust
    return reports[name]


def _report(name: str, request: Request) -> InvarianceReport:
    """Return what the cache folder has under this name, or else what a trial finds, which is then stored there."""
    tile = request.target.decoder.tile
    if not tile:
        return NO_MODE
    report = InvarianceReport.from_json(profiles.find_report(name), tile)
    if report is None:
        report = _find(request)
        profiles.save_report(name, report.to_json())
    return report


def name_of(request: Request) -> str:
    """What a report is found for: the weights, and all that a library chooses its kernels by."""
    decoder = request.target.decoder
    device, layer = decoder.embedding.device, decoder.layers[0]
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    first = torch.stack([layer.get_parameter(matrix).flatten()[:SEEN].float().sum() for matrix in MATRICES]).tolist()
    parts = VERSION, where, torch.__version__, torch.version.cuda, *said_of_products(), decoder.dtype, decoder.weights
    return ", ".join(map(str, (*parts, decoder.config, first, request.groups, request.threads)))


def _find(request: Request) -> InvarianceReport:
    differing = tuple(differences(request))
    if not differing:
        return InvarianceReport()
    if differing == (COMPANY,):
        remark = (
            "On this device, an image may depend on the other prompts in its batch; "
            "use a batch size of 1 to avoid this."
        )
        return InvarianceReport(differing=differing, remark=remark)
    decoder = request.target.decoder
    usual, smaller = decoder.tile, decoder.tile // SMALLER
    for trust in (FallbackConfig(usual, far=False), FallbackConfig(smaller), FallbackConfig(smaller, far=False)):
        decoder.trust = trust
        if not differences(request):
            slower = {
                "smaller matrix products": trust.tile < usual,
                "attention without the fast kernel": not trust.far,
            }
            parts = " and ".join(part for part, is_needed in slower.items() if is_needed)
            remark = f"To keep the image unchanged, this device uses {parts}, which is slower."
            return InvarianceReport(trust, differing=differing, remark=remark)
    decoder.trust = None
    remark = (
        "On this device, drafts would change the image in half precision, so drafting is off; use float32 to draft."
    )
    return InvarianceReport(drafts=False, differing=differing, remark=remark)


@torch.inference_mode()
def differences(request: Request) -> list[str]:
    """The ways to read tokens in which the model's output is not that of tokens that are read one by one.

    Empty where all is well, and where there is no exact mode. The request says which prompt, how many rows an image has,
    and what its guidance is.
    """
    if not request.target.decoder.tile:
        return []
    alone = _Trial(request)
    expected = alone.one_by_one()
    outputs = {CHAIN: alone.chain(), TREE: alone.tree(), COLUMNS: alone.chain(further=True)}
    if _room(request) > request.longest:
        outputs[COMPANY] = _Trial(request, beside=True).chain()
    return [way for way, output in outputs.items() if not _same(expected, output)]


def _same(expected: list[Tensor], outputs: list[Tensor]) -> bool:
    """To the last bit. Whatever is no number is like itself."""
    return all(a.equal(b) or a.nan_to_num(0.5).equal(b.nan_to_num(0.5)) for a, b in zip(expected, outputs))


class _Trial:
    """An image in the middle of its drawing, by the model's first layers, and the codes that come next."""

    def __init__(self, request: Request, beside: bool = False):
        """beside: another image is drawn with it, whose prompt is longer."""
        target, groups = shallow(request.target), request.groups
        before = min(BEFORE, target.length // 2)
        prompts = [request.prompts[group * request.images] for group in range(groups)]
        images = 2 if beside else 1
        if beside:
            longer = min(request.longest + BESIDE, _room(request))
            prompts = [row for prompt in prompts for row in (prompt, _longer(prompt, longer))]
        generator = torch.Generator().manual_seed(0)
        cells = torch.randint(target.num_codes, (1, target.num_cells), generator=generator)
        tokens = target.tokens(cells)
        drafting = Drafting("eagle2", depth=LONGEST, width=2, nodes=2 * LONGEST)
        self._request = replace(
            request, target=target, prompts=prompts, keys=[(0, 0)] * images, prefix=tokens[:, :before].expand(images, -1),
            drafting=drafting, drafter=JacobiDrafter(), lantern=None,
        )  # fmt: skip
        self._depth = min(self._request.largest.depth, target.length - 2 - before)
        self._places = [place for place in PLACES if place <= self._depth]
        queue = ImageQueue(self._request, lambda: False, lambda *_: None)
        queue.begin(list(range(images)), images)
        slots = queue.refill()
        assert slots is not None
        self._slots, self._start = slots, before
        self._codes = tokens[:, before : before + self._depth + 1].to(slots.rows.device).expand(images, -1)

    def one_by_one(self) -> list[Tensor]:
        """Features [rows of an image, m, h] and logits [1, m, V] of the first image at PLACES, each read alone."""
        self.chain()  # writes what stands before them
        lone = torch.ones(1, 1, 1, dtype=torch.bool, device=self._codes.device)
        each = [self._read(self._codes[:, [place]], place, 0, lone) for place in self._places]
        return [torch.cat(outputs, 1) for outputs in zip(*each)]

    def chain(self, further: bool = False) -> list[Tensor]:
        """The same, all in one forward. further: it goes through all columns of the KV cache."""
        depths = torch.arange(self._depth + 1, device=self._codes.device)[None]
        outputs = self._read(self._codes, 0, depths, depths[..., None] >= depths[:, None], further)
        return [out[:, self._places] for out in outputs]

    def tree(self) -> list[Tensor]:
        """The same, with another draft before each: node 2d is the path's on level d, and node 2d - 1 stands beside."""
        others = (self._codes[:, 1:] + 1) % self._request.target.num_codes
        pairs = torch.stack([others, self._codes[:, 1:]], -1).flatten(1)
        nodes = torch.arange(2 * self._depth + 1, device=pairs.device)[None]
        depths = (nodes + 1) // 2
        own = ancestor_matrix((2 * (depths - 1)).clamp_min(0), self._depth)
        outputs = self._read(torch.cat([self._codes[:, :1], pairs], 1), 0, depths, own)
        return [out[:, ::2][:, self._places] for out in outputs]

    def _read(
        self, codes: Tensor, place: int, depths: Tensor | int, own: Tensor, further: bool = False
    ) -> list[Tensor]:
        """Read codes [B, n] from this place on, as a round does."""
        slots, images = self._slots, len(codes)
        slots.roots = roots = Roots.all_at(codes[:, 0], self._start + place)
        used, columns = self._start + place + slots.rows.cache_offset + codes.shape[1], len(slots.rows.columns)
        if further or self._request.replayed:
            roots.columns = columns if further else min(-(-used // ALIGNED) * ALIGNED, columns)
        offsets = depths.expand(images, -1) if isinstance(depths, Tensor) else depths
        features = forward(slots, codes, slots.rows.step(roots, 0, offsets, own.expand(images, -1, -1)))
        z = self._request.target.decoder.logits(features, self._request.sampling.guidance)
        return [features[::images], z[:1]]


def shallow(target: Target) -> Target:
    """The target with its first layers alone, whose weights are the same."""
    alike, decoder = copy(target), copy(target.decoder)
    decoder._modules = {**decoder._modules, "layers": decoder.layers[:LAYERS]}
    decoder.config = replace(decoder.config, num_layers=min(LAYERS, decoder.config.num_layers))
    alike.decoder = decoder
    return alike


def _room(request: Request) -> int:
    """Tokens of the longest prompt that the model can read."""
    return request.target.decoder.config.max_positions - request.target.length


def _longer(prompt: EncodedPrompt, length: int) -> EncodedPrompt:
    """A prompt of this length that ends as this one does, and has its own tokens again and again before."""
    places = [place % len(prompt) for place in range(len(prompt) - length, len(prompt))]
    features = None if prompt.features is None else prompt.features[places]
    return EncodedPrompt([prompt[place] for place in places], features, prompt.hidden)
