"""Visual autoregressive image models in ComfyUI, sooner and with the same image: lossless tree speculation (ADT-Tree).

ComfyUI imports this file when it starts and calls :func:`comfy_entrypoint`. Nothing is done before that
call, so the package can also be imported where there is no ComfyUI.
"""

WEB_DIRECTORY = "./js"


async def comfy_entrypoint():
    """Give ComfyUI the pack's nodes (its V3 entry point)."""
    from .nodes import ADTTreeExtension

    return ADTTreeExtension()
