"""Policies. A policy chooses the size of each draft tree; its class has the settings, the state and the help text."""

from .base import NO_DRAFTS, ActiveImage, Context, DraftMode, DraftSettings, Policy, Shape
from .costs import CostProfile
from .methods import DEFAULT, PLAIN, POLICIES, Drafting, check_fit, options

__all__ = ["DEFAULT", "NO_DRAFTS", "PLAIN", "POLICIES", "Context", "CostProfile", "DraftMode", "DraftSettings"]
__all__ += ["Drafting", "Policy", "Shape", "ActiveImage", "check_fit", "options"]
