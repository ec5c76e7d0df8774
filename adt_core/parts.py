"""What programs beside this package are built of, in one place: ``adt_lab`` takes all that it needs from here."""

# ruff: noqa: F401 (others import these from here)

from .app import distributed, figures
from .app.checkpoints import explained, load_drafter, published_sampling
from .app.continuation import open_picture, to_pixels
from .app.images import UNSOUND, check_outputs, open_image, to_png, to_rgb
from .app.jobs import Job, conditions, decode, rounds, warm_up
from .app.loading import choose_device, complete, models_of, named, open_target
from .app.orders import Comparison, DrafterFiles, Drawn, Engines, Lessons, Scores, Training
from .app.prompts import BUNDLED_CAPTIONS, read_prompts, sample
from .app.tables import to_csv
from .drafters import (
    DRAFTERS,
    JACOBI,
    WITH_WINDOW,
    Drafter,
    drafter_defaults,
    is_network,
    with_window,
    without_window,
)
from .drafters.eagle import EagleDrafter, Pairing, draft_logits, paired_ids
from .drafters.eagle_files import PAIRING_FILE, config_fields, load_eagle, new_config
from .engine.decoding import Decoding
from .errors import AdtError, Check, pip_install, shown, told_by_library
from .files import (
    add_line,
    check_utf8,
    inside,
    is_regular,
    opened,
    parse_json,
    read_text,
    reason,
    refuse_links,
    to_json,
    write_in,
)
from .models.cache import KVCache
from .models.checkpoint import BUNDLED, Checkpoint, read_json, resolve
from .models.layers import Layer
from .models.layout import head_order, reordered
from .models.rotary import rope_tables
from .models.rows import Roots, Rows, Step
from .models.target import Prompt, PublishedSampling, Target, guidance_at, suffixed, with_grammar
from .policies import PLAIN, POLICIES, Drafting
from .policies.recipe import Recipe
from .rules.sampling import noise_table, process_logits
from .rules.settings import Lantern, Sampling
from .untrusted import list_of, mapping, number, row, text
from .version import VERSION
