"""How large the next tree is: one class for each policy, with its settings, its state and its help text."""

from .base import NO_DRAFTS, DraftSettings, Policy, Scene, Shape, Slot, Source
from .costs import CostProfile
from .table import DEFAULT, PLAIN, POLICIES, Drafting, check_fit, options

__all__ = ["DEFAULT", "NO_DRAFTS", "PLAIN", "POLICIES", "CostProfile", "DraftSettings", "Drafting", "Slot", "Policy"]
__all__ += ["Scene", "Shape", "Source", "check_fit", "options"]
