"""ComfyUI nodes of the pack: sockets, schemas and memory management. Models and decoding are in `adt_core`."""

import logging
from functools import partial

from comfy_api.v0_0_2 import ComfyExtension, io

from ..adt_core.runtime import get_runtime
from . import folders, saved_map, web_address
from .batch import ADTTreeBatchSampler
from .benchmark import ADTTreeBenchmark
from .collector import ADTTreeBatchReport
from .comfy_runtime import remember_tab, server, tell
from .compare import ADTTreeCompare
from .diagnostics import ADTTreeDiagnostics
from .glm_image import ADTTreeGLMImageDecode, ADTTreeGLMImageDecoderLoader
from .lantern import ADTTreeLANTERN
from .live_map import announce_homes
from .loaders import ADTTreeDrafterLoader, ADTTreeModelLoader
from .prompts import VALIDATION, ADTTreePrompts
from .run_stats import ADTTreeMapToImage, ADTTreeRunStats
from .sampler import ADTTreeSampler
from .settings import ADTTreeSettings
from .size import ADTTreeImageSize
from .train import ADTTreeTrainDrafter
from .video import ADTTreeMapToVideo


class ADTTreeExtension(ComfyExtension):
    """Nodes, model folders, routes and prompt handlers that ComfyUI registers for this pack."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        folders.register()
        web_address.register()
        get_runtime().notify = partial(tell, level=logging.INFO, is_lasting=False)
        web_address.warn_of_copies("ADTTreeSampler")
        if (instance := server()) is not None:
            for handler in (VALIDATION.renew, remember_tab, saved_map.remind, announce_homes):
                instance.add_on_prompt_handler(handler)
        return [
            ADTTreeModelLoader,
            ADTTreeImageSize,
            ADTTreeDrafterLoader,
            ADTTreeSettings,
            ADTTreeLANTERN,
            ADTTreeSampler,
            ADTTreeMapToImage,
            ADTTreeMapToVideo,
            ADTTreeRunStats,
            ADTTreeCompare,
            ADTTreePrompts,
            ADTTreeBatchSampler,
            ADTTreeBatchReport,
            ADTTreeBenchmark,
            ADTTreeDiagnostics,
            ADTTreeGLMImageDecoderLoader,
            ADTTreeGLMImageDecode,
            ADTTreeTrainDrafter,
        ]
