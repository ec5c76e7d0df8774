"""Policies, which choose the size of each draft tree. Each is one class with its settings, state and help text."""

from .base import NO_DRAFTS, Context, DraftMode, DraftSettings, Policy, Shape, Slot
from .costs import CostProfile
from .table import DEFAULT, PLAIN, POLICIES, Drafting, check_fit, options

__all__ = ["DEFAULT", "NO_DRAFTS", "PLAIN", "POLICIES", "Context", "CostProfile", "DraftMode", "DraftSettings"]
__all__ += ["Drafting", "Policy", "Shape", "Slot", "check_fit", "options"]
