"""Cost profile of one decoding: how it is chosen, checked against the decoding's rounds, and measured."""

from __future__ import annotations

import logging

from torch import Tensor

from ...drafters.costs import built_in
from ...errors import is_out_of_memory
from ...policies import CostProfile
from ..request import Request
from . import profiles
from .measuring import measure, profile_name
from .threads import limit_threads


class Costs:
    """Cost profile of a decoding whose policy chooses between draft modes.

    Attributes:
        profile: Profile in use; None before `choose_profile`, and if the policy does not choose.
    """

    def __init__(self, request: Request, given: CostProfile | None):
        """Prepare the choice of a profile.

        Args:
            request: Batch to decode.
            given: Profile to use instead of a measured one, such as the profile of a saved image.
        """
        self._request = request
        self._is_needed = request.drafting.policy.chooses
        self._given = given if self._is_needed else None
        self.profile = self._given
        self._readings: list[tuple[float, float]] = []

    def choose_profile(self, batch_size: int) -> None:
        """Use the given profile, else the measured one, else the built-in estimate.

        Args:
            batch_size: Number of images that are decoded together.
        """
        if not self._is_needed:
            return
        self.profile = self._given or profiles.find(profile_name(self._request), batch_size)
        if self.profile is None:
            device = self._request.target.decoder.embedding.device.type
            self.profile = built_in(device, batch_size, self._request.modes)

    def record(self, steps: float | None, seconds: float) -> None:
        """Record a round.

        Args:
            steps: Its cost by the profile, in plain steps; None if the policy has made no estimate.
            seconds: Its measured time.
        """
        if steps is not None:
            self._readings.append((steps, seconds))

    def measure_if_needed(self, batch_size: int, codes: Tensor) -> None:
        """Measure and save the profile if there is none, or if decodings have contradicted it.

        Measuring takes one to three seconds, so call this after the last image. Errors of the device are logged and
        not raised, because the images are finished by then; measuring is not tried again in this process.

        Args:
            batch_size: Number of images that are decoded together.
            codes: Tokens [B, T] of the finished images.
        """
        request = self._request
        shapes = [request.drafting.policy.measured_shapes(mode) for mode in request.modes]
        if not self._is_needed or not all(shapes) or request.start == request.target.length or self._given is not None:
            return
        name = profile_name(request)
        measured = profiles.find(name, batch_size)
        readings = self._readings if measured == self.profile else ()
        if measured is not None and not profiles.needs_remeasuring(measured, readings):
            return
        if profiles.is_unmeasurable(name, batch_size):
            return
        try:
            with limit_threads(request.threads):
                profiles.save(measure(request, batch_size, codes))
        except (MemoryError, RuntimeError) as error:
            profiles.mark_unmeasurable(name, batch_size)
            level = logging.INFO if is_out_of_memory(error) else logging.WARNING
            logging.getLogger(__name__).log(level, "The cost of drafts on this device could not be measured: %s", error)
