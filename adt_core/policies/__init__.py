"""How large the next tree is: one class for each policy, with its settings, its state and its help text."""

from .base import NO_DRAFTS, Lane, Policy, Scene, Settings, Shape, setting
from .table import PLAIN, POLICIES, Drafting, Option, Proposals, check_fit, options

__all__ = [
    "NO_DRAFTS",
    "PLAIN",
    "POLICIES",
    "Drafting",
    "Lane",
    "Option",
    "Policy",
    "Proposals",
    "Scene",
    "Settings",
    "Shape",
    "check_fit",
    "options",
    "setting",
]
