"""Trial of float32 products on a CPU, which tests how the last bits depend on the number of rows and of threads.

A library may add numbers in another order if a matrix has another number of rows, or if it uses another number of
threads. No library documents this, so the trial multiplies random activations by the loaded weights and compares bits.
It compares no times, so it gives the same result in every process on a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...errors import Check
from ...models.config import DecoderConfig
from ...models.cpu_attention import BatchedAttention
from ...models.layers import product
from ...models.packed import WEIGHTS
from ...runtime import get_runtime
from ..request import Request
from .threads import MAX_THREADS, ThreadChoice, limit_threads

ROWS = (1, 2, 3, 4, 5, 8, 10, 18, 34, 50, 66, 130, 260)
"""Numbers of rows of the compared products. Plain rounds, trees and prompts have such numbers."""
QUERIES = (1, 2, 3, 4, 9, 25, 64)
"""Numbers of queries of the compared attention."""
KEYS = 256
"""Number of keys of the compared attention."""


Results = tuple[list[list[Tensor]], list[Tensor]]
"""Products of each weight by number of rows, and attention by number of queries."""


class ProductReport(NamedTuple):
    """Result of the trial.

    Attributes:
        rows: Whether a row has the same bits in every product of two or more rows.
        threads: Maximum number of threads with which all results have the same bits as with `Request.threads`.
    """

    rows: bool
    threads: int


def prepare_products(request: Request) -> ThreadChoice:
    """Set `pads_single_row` of the target's decoder, and return the choice of threads for a decoding."""
    report = product_report(request)
    request.target.decoder.pads_single_row = report.rows
    return ThreadChoice(request.threads, report.threads)


def product_report(request: Request) -> ProductReport:
    """Return the report for the networks of a request. Run the trials that this process has not run yet.

    `rows` depends only on the target, so it is the same without a drafter. Only float32 weights on a CPU are tested.
    """
    decoder = request.target.decoder
    least = request.threads
    if decoder.embedding.device.type != "cpu" or decoder.dtype != torch.float32 or decoder.weights is not None:
        return ProductReport(False, least)
    counts = least, *range(least + 1, min(MAX_THREADS, torch.get_num_threads()) + 1)
    reports = [_network_report(network, request, counts) for network in request.networks]
    return ProductReport(reports[0].rows, min(report.threads for report in reports))


def _network_report(network: nn.Module, request: Request, counts: Sequence[int]) -> ProductReport:
    parameters = [*network.named_parameters()]
    if any(weight.is_meta for _, weight in parameters):  # layers on disk: a buffer has the values of one of them
        parameters = [item for item in parameters if not item[1].is_meta]
        parameters += request.target.decoder.stream.buffers[0].named_parameters()
    named = [(name.rpartition(".")[2], weight) for name, weight in parameters]
    weights = {it.shape: it for name, it in named if name in WEIGHTS and it.dtype == torch.float32}
    config = request.target.decoder.config
    key = config.num_heads, config.num_kv_heads, config.head_dim, tuple(weights), counts
    reports = get_runtime().product_reports
    if key not in reports:
        reports[key] = tuple(_run_trial(config, list(weights.values()), counts, request.check or (lambda: None)))
    return ProductReport(*reports[key])


def _run_trial(config: DecoderConfig, weights: Sequence[Tensor], counts: Sequence[int], check: Check) -> ProductReport:
    """Compare products of different numbers of rows, and all results for the numbers of threads in `counts`."""
    threads, *more = counts
    products, attention = _results(config, weights, threads, check)
    rows = all(out.equal(largest[: len(out)]) for _, *outs, largest in products for out in outs)
    for count in more:
        found, found_attention = _results(config, weights, count, check)
        if not all(map(torch.equal, sum(products, attention), sum(found, found_attention))):
            break
        threads = count
    return ProductReport(rows, threads)


@torch.inference_mode()
def _results(config: DecoderConfig, weights: Sequence[Tensor], threads: int, check: Check) -> Results:
    """Return products by each weight, without and with an addition, for all `ROWS`; and attention for all `QUERIES`."""
    generator = torch.Generator().manual_seed(0)
    products = []
    with limit_threads(threads):
        for weight in weights:
            check()  # with a large weight, the products take seconds
            x = torch.randn(ROWS[-1], weight.shape[0], generator=generator)
            plus = torch.randn(ROWS[-1], weight.shape[1], generator=generator)
            products.append([product(x[:n], weight) for n in ROWS])
            products.append([product(x[:n], weight, plus=plus[:n].clone()) for n in ROWS])
        heads = config.num_heads, config.num_kv_heads
        cache = torch.randn(2, 2, config.num_kv_heads, KEYS, config.head_dim, generator=generator)
        queries = torch.randn(2 * QUERIES[-1], config.num_heads, config.head_dim, generator=generator)
        attention = []
        for n in QUERIES:
            mask = torch.zeros(2, 1, heads[0] // heads[1] * n, KEYS)
            attention.append(BatchedAttention(mask, *heads, 2 * n, queries)(queries[: 2 * n], cache))
    return products, attention
