"""Objects that the package exports on first use."""

from .args import QualityArgs, TrainingArgs, TrainingDataArgs, TrainingOutputArgs
from .continuation import DEFAULT_KEEP, open_rgb, prefix_length
from .csv_tables import to_csv
from .doctor import diagnose, prepare_diagnosis
from .download import DownloadPart, DownloadProgress, download_parts, download_terms, find_parts, kept_message
from .inspect import is_complete
from .manifest import write_manifest
from .prompt_remarks import remarks
from .prompts import (
    BUNDLED_CAPTIONS,
    CAPTIONS,
    EXAMPLE_CAPTIONS,
    PROMPT_FILES,
    SETTING_COLUMNS,
    blank_note,
    file_stems,
    non_blank,
    parse_lines,
    read_all,
    sample,
    select,
)
from .training_domain import domain_warning
