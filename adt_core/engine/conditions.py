"""Conditions of a decoding, which the device determines before the first round."""

from __future__ import annotations

from ..kernels import choice
from ..kernels.choice import KernelError, supports_kernels
from ..kernels.verdicts import Verdict
from ..models.packed import pack
from ..models.quantised import check_device, check_products
from ..runtime import get_runtime
from .device.costs import Costs
from .device.invariance import InvarianceReport, chosen_kernels, invariance_report
from .device.memory import check_memory
from .device.products import prepare_products
from .device.threads import ThreadChoice, limit_threads
from .request import Request


class Conditions:
    """Everything that determines trees and rounding, apart from the recipe and the request.

    Attributes:
        invariance: Result of the trial of batch-invariant mode (:mod:`.device.invariance`).
        kernels: Choice of Triton kernels for the target; empty on devices without kernels.
        threads: Number of CPU threads. Costs are learned only for the number of the first round.
    """

    def __init__(self, request: Request):
        self._request = request
        self.invariance = InvarianceReport()
        self.kernels: tuple[Verdict, ...] = ()
        self.threads = ThreadChoice(request.threads, request.threads)

    def fix(self, costs: Costs, batch_size: int) -> None:
        """Determine all values that depend on the device of the weights, and choose the profile of `costs`.

        ComfyUI may move the weights before this.

        Raises:
            AdtError: If the main memory is too small, or if the device does not support the weights.
        """
        decoder = self._request.target.decoder
        choice.follow_settings()
        check_device(decoder.weights, decoder.embedding.device, decoder.dtype)
        check_memory(self._request, batch_size)
        with limit_threads(self._request.threads):
            pack(self._request.networks)
            try:
                self._check_operations()
            except KernelError as error:
                choice.switch_off(str(error))
                self._check_operations()
        decoder.fallback = self.invariance.fallback
        self.threads = prepare_products(self._request)
        costs.choose_profile(batch_size, self.threads.first)

    def _check_operations(self) -> None:
        self.kernels = chosen_kernels(self._request)
        check_products(self._request.target.decoder.weights, self.kernels)
        self.invariance = invariance_report(self._request, self.kernels)

    def check_kernels(self) -> None:
        """Raise KernelError if another decoding has switched the kernels off: the rest of an image would differ."""
        if self.kernels and not supports_kernels(self._request.target.decoder.embedding.device):
            raise KernelError(get_runtime().kernel_failure)

    def to_json(self) -> dict:
        """Return the conditions as plain JSON types, for the metadata of images."""
        kernels = sorted({verdict.operation for verdict in self.kernels if verdict.uses_kernel})
        return {"threads": self.threads.first, "kernels": kernels, **self._request.noise_settings()}
