"""Costs of the rounds of a decoding.

The policy of the decoding reads these costs from a profile. The measured times of rounds improve later profiles. With
relaxed acceptance, the image depends on the trees, so the profile does not depend on measured times: otherwise a seed
would give another image after other images.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence
from statistics import mean

import torch

from ...models.streamed import slowdown
from ...policies import CostProfile, Shape
from ...policies.cost_model import PLAIN_ROUND, CostModel, RoundResult
from ...trace import Round
from ..graphs import disabled_reason
from ..request import Request
from . import profiles


class Costs:
    """Cost profile of a decoding whose policy chooses between draft modes.

    Attributes:
        profile: Profile in use; None before `choose_profile`, and if the policy does not choose.
        clock: Returns the time in seconds. On a CPU this is the processor time of the calling thread, because an
            interruption by another process can take longer than the round. Windows measures processor time in steps of
            16 ms, which is too coarse. There, and on a GPU, this is the elapsed time.
    """

    def __init__(self, request: Request, given: CostProfile | None):
        """Prepare the choice of a profile. A `given` profile, for example from a PNG, replaces the device's."""
        self._request = request
        self._threads = request.threads
        self._is_needed = request.drafting.policy.chooses
        self.profile = given if self._is_needed else None
        self._is_learned = self._is_needed and given is None and request.lantern is None
        self._rounds: dict[int, list[RoundResult]] = {}  # by number of images
        has_thread_time = not request.replayed and sys.platform != "win32"
        self.clock: Callable[[], float] = time.thread_time if has_thread_time else time.perf_counter

    def choose_profile(self, batch_size: int, threads: int) -> None:
        """Set `profile` to the given profile, or else to the one that was learned on this device.

        With relaxed acceptance, it contains the built-in estimates for this kind of device.
        """
        self._threads = threads
        if self._is_needed and self.profile is None:
            model = self._learned(batch_size) if self._is_learned else self._estimated(batch_size)
            self.profile = model.profile(self._request.drafting.policy.sizes)

    def record(self, shapes: Sequence[Shape], round: Round, seconds: float) -> None:
        """Record the time of a round in seconds of `clock`.

        Rounds that included other work, such as capturing a graph or reading kept tokens, are left out, and so are
        rounds in which a tree was cut at the end of its image.

        Args:
            shapes: Shape that was chosen for each slot. All active slots have the same shape.
        """
        largest = max(shapes, key=lambda shape: shape.drafts)
        depths = {record.depth_asked for record in round.images}
        size = PLAIN_ROUND if depths <= {0} else (largest.mode, largest.drafts)
        has_read = any(record.kept for record in round.images)
        if not (round.prepared or has_read) and (size == PLAIN_ROUND or depths == {largest.depth}):
            accepted = mean(record.accepted for record in round.images)
            self._rounds.setdefault(len(round.images), []).append(RoundResult(size, seconds, accepted))

    def learn(self, batch_size: int) -> float | None:
        """Update the stored cost model of this device with the recorded rounds in which all images advanced.

        The other rounds, such as those at the end of a batch, have fewer images and take less time. If the profile was
        given, nothing is stored, so that repeating an image has no effect on later images. With relaxed acceptance,
        nothing is stored either, because more drafts are accepted than with exact acceptance.

        Returns:
            Estimate of how many times as fast the decoding was as one without a drafter; None if costs are not known.
        """
        rounds = self._rounds.get(batch_size, [])
        profile = self.profile
        if self._is_learned:
            before = self._learned(batch_size)  # read again, because another process may have changed the file
            after = before.learn(rounds)
            if after is not before:
                profiles.save_costs(after)
            profile = after.profile(self._request.drafting.policy.sizes)
        self._rounds = {}
        return _speedup(profile, rounds)

    def _learned(self, batch_size: int) -> CostModel:
        """Return the estimates, corrected by the costs that were learned on this device."""
        model = self._estimated(batch_size)
        return model.with_json(profiles.find_costs(model.name, batch_size))

    def _estimated(self, batch_size: int) -> CostModel:
        """Return the built-in estimates for this kind of device."""
        request = self._request
        decoder = request.target.decoder
        on_cpu = decoder.embedding.device.type == "cpu"
        tile = 0 if on_cpu or not decoder.tile else decoder.tile
        s = request.sampling
        sampling = f"{request.drafting.proposal}, {s.temperature:g}, {s.guidance_scale:g}, {s.top_k}, {s.top_p:g}"
        name = profile_name(request, self._threads)
        slowed = slowdown(decoder, measured=request.lantern is None)
        return CostModel(name, batch_size, request.modes, on_cpu, request.groups, tile, sampling, s.temperature, slowed)


def _speedup(profile: CostProfile | None, rounds: Sequence[RoundResult]) -> float | None:
    """Return the speed-up of some rounds: the number of tokens, divided by the cost in plain rounds.

    It is None if the profile lacks a mode: shapes of a policy of another package may name none.
    """
    drafted = {round.size[0] for round in rounds if round.size != PLAIN_ROUND}
    if profile is None or not rounds or not drafted <= profile.costs.keys():
        return None
    costs = [profile.plain if round.size == PLAIN_ROUND else profile.cost(*round.size) for round in rounds]
    return sum(round.accepted + 1 for round in rounds) / sum(costs)


def profile_name(request: Request, threads: int) -> str:
    """Return the name of a request's cost profile, which identifies neither the machine nor the user.

    It contains everything that the cost of a round depends on, except the batch size.
    """
    decoder = request.target.decoder
    config = decoder.config
    device = decoder.embedding.device
    cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, threads: {threads}"
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    model = f"{request.target.name} {config.num_layers}x{config.hidden_size}, {request.target.length} tokens"
    network = request.drafter.network if request.drafter is not None else None
    size = sum(part.numel() for part in network.parameters()) if network is not None else 0
    modes = "+".join(mode.name for mode in request.modes)
    numbers, drawn = request.loaded.cost_key()
    rows = f"{request.groups} rows, {drawn}"
    if decoder.stream is not None:
        model += f", {len(decoder.stream)} layers streamed"
    if decoder.tile:
        numbers += f", tiles of {decoder.tile}"
    if decoder.fallback is not None and not decoder.fallback.far:
        numbers += ", no far keys"
    if request.replayed and disabled_reason(decoder):
        where += ", no graphs"
    return f"{where}, torch {torch.__version__}; {model}, {numbers}; {modes} {size}; {rows}"[:200]
