"""ADT-Tree for ComfyUI: visual autoregressive models, several times faster, the same image.

ComfyUI imports this file when it starts and calls :func:`comfy_entrypoint`. Nothing is done before that
call, so the package can also be imported where there is no ComfyUI.
"""

WEB_DIRECTORY = "./js"


async def comfy_entrypoint():
    """Give ComfyUI the pack's nodes (its V3 entry point)."""
    from .nodes import ADTTreeExtension

    return ADTTreeExtension()
