"""Policies. A policy chooses the size of each draft tree; its class has the settings, the state and the help text."""

from .base import PLAIN_SHAPE, ActiveImage, Context, DraftMode, DraftSettings, Policy, Shape
from .choices import CHOICES, RELAXED, method_title
from .cost_profile import CostProfile
from .methods import ADT_TREE, DEFAULT, EAGLE2, PLAIN, POLICIES, Drafting, check_fit, options

__all__ = ["ADT_TREE", "CHOICES", "DEFAULT", "EAGLE2", "PLAIN_SHAPE", "PLAIN", "POLICIES", "RELAXED", "Context"]
__all__ += ["CostProfile", "DraftMode", "DraftSettings"]
__all__ += ["Drafting", "Policy", "Shape", "ActiveImage", "check_fit", "method_title", "options"]
