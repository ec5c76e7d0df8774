"""All that the laboratory takes from ``adt_core``.

In ComfyUI both packages are parts of the pack, whose name is its folder's. Used alone, both are at the top.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING or "." in __package__:
    from ..adt_core.parts import *  # noqa: F403
else:
    from adt_core.parts import *  # noqa: F403
