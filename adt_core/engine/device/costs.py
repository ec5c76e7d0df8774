"""What rounds cost where a decoding runs: the profile that it goes by, and how a profile is learned."""

from __future__ import annotations

import logging

from torch import Tensor

from ...errors import is_out_of_memory
from ...policies import CostProfile
from ...policies.costs import built_in
from ..request import Request
from . import profiles
from .measuring import measure, name_of
from .threads import at_most


class Costs:
    """Of one decoding, whose policy may choose by them.

    profile: what is believed; None where the policy does not choose, or before :meth:`settle`.
    """

    def __init__(self, request: Request, given: CostProfile | None):
        """given: a profile to go by, whatever was measured here."""
        self._request, self._wanted = request, request.drafting.policy.chooses
        self.profile = self._given = given if self._wanted else None
        self._readings: list[tuple[float, float]] = []

    def settle(self, at_once: int) -> None:
        """Choose the profile, for so many images at once: the given one, what was measured here, or a guess."""
        if self._wanted:
            device = self._request.target.decoder.embedding.device.type
            guess = built_in(device, at_once, [source.name for source in self._request.sources])
            self.profile = self._given or profiles.find(name_of(self._request), at_once) or guess

    def note(self, steps: float | None, seconds: float) -> None:
        """A round has taken so many seconds. steps: plain steps, by the profile; None where nothing was expected."""
        if steps is not None:
            self._readings.append((steps, seconds))

    def learn(self, at_once: int, codes: Tensor) -> None:
        """Measure what rounds cost here, if that is not known, or if many decodings have disagreed with what is known.

        codes: of the images, all drawn; it takes a second or two, so this comes last. No failure may cost the images:
        what drafts cost then stays unknown, and a lack of memory is remembered for the rest of the process.
        """
        request = self._request
        if not self._wanted or request.start == request.target.length or self._given is not None:
            return
        name = name_of(request)
        measured = profiles.find(name, at_once)
        readings = self._readings if measured == self.profile else ()
        if measured is not None and not profiles.doubted(measured, readings):
            return
        if profiles.is_unmeasurable(name, at_once):
            return
        try:
            with at_most(request.threads):
                profiles.save(measure(request, at_once, codes))
        except (MemoryError, RuntimeError) as error:
            profiles.note_unmeasurable(name, at_once)
            level = logging.INFO if is_out_of_memory(error) else logging.WARNING
            logging.getLogger(__name__).log(level, "The cost of drafts on this device could not be measured: %s", error)
