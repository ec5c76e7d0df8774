"""ADT-Tree for ComfyUI: faster visual autoregressive image models with lossless tree speculation.

ComfyUI imports this file at startup and calls `comfy_entrypoint`. Everything else is imported in that call, so the
package can also be imported without ComfyUI.
"""

WEB_DIRECTORY = "./js"


async def comfy_entrypoint():
    """Return the extension with the pack's nodes (ComfyUI's V3 entry point)."""
    from .nodes import ADTTreeExtension

    return ADTTreeExtension()
