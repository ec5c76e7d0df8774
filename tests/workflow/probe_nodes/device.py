"""Simulation of device memory: memory that runs out, and caches in addition to the weights."""

import ctypes
import gc
import threading
import time
import weakref
from importlib import import_module

import comfy.model_management as mm
import psutil
import torch

from .common import Probe, answer, pack

M_MMAP_THRESHOLD = -3
"""Option of glibc's ``mallopt``: size in bytes from which a block gets its own memory, which is returned when freed."""
own_load = mm.load_models_gpu
own_forward: list = []


@answer("exhaust")
def exhaust(on: str):
    """Make every forward pass of a model run out of memory from now on. With ``on=0``, switch this off."""
    layer = import_module(f"{pack()}.adt_core.models.layers").Layer

    def fail(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    if on == "1":
        own_forward.append(layer.forward)
        layer.forward = fail
    else:
        layer.forward = own_forward.pop()


class Kept:
    """Stand-in for the caches and graphs that the engine keeps for the next decoding."""

    num_bytes = 1_000_000


kept: list[weakref.ref] = []
asked: list[int] = []


def load_models_gpu(models, memory_required=0, **options):
    asked.append(memory_required)
    return own_load(models, memory_required=memory_required, **options)


mm.load_models_gpu = load_models_gpu


class Keep(Probe):
    """Node that keeps an object with the decoder of a model, or unloads some bytes of the model."""

    OUTPUT_NODE = True
    INPUTS = {"model": "ADT_MODEL", "squeeze": "INT"}

    def run(self, model, squeeze):
        if squeeze:
            freed = model.patcher.partially_unload(model.patcher.offload_device, squeeze)
            return {"ui": {"text": [str(freed)]}}
        thing = Kept()
        model.target.decoder.pooled_slots = {"probe": thing}
        kept[:] = [weakref.ref(thing)]
        return {}


@answer("kept")
def is_kept():
    """Report whether the object still exists, and the largest memory request since the last report."""
    most = max(asked, default=0)
    asked.clear()
    return {"kept": bool(kept and kept[0]() is not None), "asked": most}


class Peak(threading.Thread):
    """Thread that measures the peak of the process's resident memory, in bytes."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most = 0
        self.going_on = True

    def run(self):
        process = psutil.Process()
        while self.going_on:
            self.most = max(self.most, process.memory_info().rss)
            time.sleep(0.002)


@answer("trim")
def trim():
    """Return freed memory to the system. Without this, the resident memory stays at its maximum."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@answer("return_freed")
def return_freed():
    """Return freed memory to the system, now and from now on, so that the resident memory is the memory in use.

    By default, glibc keeps freed tensors of up to 32 MiB in its heap. Often it cannot reuse this memory for tensors of
    the same size, because it reserves some bytes more for aligned memory.
    """
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
    trim()


watching: list[Peak] = []


@answer("peak")
def peak():
    """Report the peak of the resident memory since the last report, in bytes."""
    most = 0
    for one in watching:
        one.going_on = False
        most = one.most
    watching[:] = [Peak()]
    watching[0].start()
    return {"bytes": most}
