"""Objects that the package exports on first use."""

from .identity import digest
from .images import is_keyword, named_folder, read_pixels, text_chunks
from .jobs import Job, JobList, PromptEntry, fit_jobs
from .masks import generated_cells, upper_part_kept
from .model_files import default_drafter, is_target_config, is_target_file
from .previews import Previews, PreviewSchedule
from .resolve import Hardware, choose_dtype, has_bfloat16, resolve_recipe
from .runner import Progress, Resident
from .stats import IMAGE_STATS
from .store import Identity, PngStore, existing_images, file_name
from .truncation import INVALID_MODES, RAISE, TRUNCATE, fit_prompt
