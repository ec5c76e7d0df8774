"""How large the next tree is: one class for each policy, with its settings, its state and its help text."""

from .base import NO_DRAFTS, Lane, Option, Policy, Scene, Settings, Shape, setting
from .costs import CostProfile
from .table import DEFAULT, PLAIN, POLICIES, Drafting, check_fit, options

__all__ = ["DEFAULT", "NO_DRAFTS", "PLAIN", "POLICIES", "CostProfile", "Drafting", "Lane", "Option", "Policy", "Scene"]
__all__ += ["Settings", "Shape", "check_fit", "options", "setting"]
