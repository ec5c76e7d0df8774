"""Training of EAGLE drafters for any target, in resumable runs.

`plan` checks the arguments of a training, and `train` runs it. A `TrainingCallback` shows its progress.
"""

from .callbacks import TrainingCallback
from .drafter import TrainingPlan, plan, train
from .estimate import TrainingEstimate
from .log import curve
from .run import Run

__all__ = ["Run", "TrainingCallback", "TrainingEstimate", "TrainingPlan", "curve", "plan", "train"]
