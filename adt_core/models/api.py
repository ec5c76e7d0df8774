"""Objects that the package exports on first use."""

from .allocation import beside_bytes, image_bytes
from .layers import Decoder
from .load import BUNDLED_SAMPLING, FAMILIES, find_published, published, published_at
from .quantised import check_device
from .reading.paths import STAGE, home_of, name_of
from .repositories import Published
from .target import PublishedSampling
