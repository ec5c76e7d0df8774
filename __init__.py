"""ADT-Tree for ComfyUI: faster visual autoregressive image models with lossless tree speculation.

ComfyUI imports this file at startup and calls `comfy_entrypoint`. Everything else is imported in that call, so the
package can also be imported without ComfyUI.
"""

WEB_DIRECTORY = "./js"


async def comfy_entrypoint():
    """Return the extension with the pack's nodes (ComfyUI's V3 entry point)."""
    from .adt_core.errors import naming_missing_libraries

    comfyui = "comfy", "comfy_api", "folder_paths", "nodes", "server"
    with naming_missing_libraries(others=comfyui):
        from .nodes import ADTTreeExtension

    return ADTTreeExtension()
