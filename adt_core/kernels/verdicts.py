"""Results of the trials of Triton kernels, stored in the cache folder.

Kernel and reference round differently, so a seed gives the same image in two processes only if both make the same
choice. A trial measures times, and two trials of equally fast operations can end differently. So the first trial of a
kernel on a device decides for all later processes, until the GPU, a library, its settings or a kernel changes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import torch

from .. import cache_folder
from ..files import opened
from ..models.torch_private import cuda_driver_version, product_settings
from ..runtime import cached_per_runtime
from ..version import VERSION

KIND = "kernels"  # first word of the file's name
MAX_STORED = 250
"""Maximum number of verdicts in a file. It keeps the file below :data:`..cache_folder.MAX_FILE_BYTES`."""


class Verdict(NamedTuple):
    """Result of a trial.

    Attributes:
        operands: Dtype and shape of the operands, for messages.
        uses_kernel: Whether the kernel is used; if not, the reference is used.
        reason: Reason of the decision; a clause such as "it is 1.3 times as fast as PyTorch".
        is_fault: Whether the kernel is not used because it failed or gave a wrong result.
    """

    operation: str
    operands: str
    uses_kernel: bool
    reason: str
    is_fault: bool = False


def find_verdict(device: torch.device, operation: str, operands: str) -> Verdict | None:
    """Return the stored verdict of an operation on a device; None if there is none."""
    match _read(environment(device)).get(f"{operation}, {operands}"):
        case {"kernel": bool(uses_kernel), "reason": str(reason)}:
            return Verdict(operation, operands, uses_kernel, reason)
    return None


def save_verdict(device: torch.device, verdict: Verdict) -> Verdict:
    """Store a verdict, unless another process has stored one in the meantime, and return the stored one.

    Faults are not stored: their causes, such as a missing compiler, can be removed without a new version.
    """
    if verdict.is_fault:
        return verdict
    if found := find_verdict(device, verdict.operation, verdict.operands):
        return found
    where = environment(device)
    entry = {f"{verdict.operation}, {verdict.operands}": {"kernel": verdict.uses_kernel, "reason": verdict.reason}}
    stored = _read(where) | entry
    if len(stored) <= MAX_STORED:
        cache_folder.write(KIND, where, {"name": where, "verdicts": stored})
    return verdict


def _read(where: str) -> dict:
    """Return the verdicts that are stored for an environment, by operation and operands. They are not checked."""
    match cache_folder.read(KIND, where):
        case {"name": str(name), "verdicts": dict(verdicts)} if name == where:
            return verdicts
    return {}


def environment(device: torch.device) -> str:
    """Return everything, apart from the operands, that determines the results and the times of a trial."""
    import triton

    gpu = torch.cuda.get_device_name(device), *torch.cuda.get_device_capability(device), cuda_driver_version()
    versions = VERSION, code_digest(), torch.__version__, torch.version.cuda, triton.__version__
    return ", ".join(map(str, (*gpu, *versions, torch.cuda.get_allocator_backend(), *product_settings())))


@cached_per_runtime
def code_digest() -> str:
    """Return a hash of the files of this package, which contain the kernels and the functions that launch them."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        with opened(path) as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]
