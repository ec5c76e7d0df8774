"""Methods that a benchmark can compare: presets with a name, and methods with settings that a user writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..drafters import JACOBI, WITH_WINDOW, drafter_defaults
from ..errors import AdtError, shown
from ..files import read_text
from ..policies import ADT_TREE, EAGLE2, PLAIN, POLICIES, RELAXED, Drafting
from ..policies.choices import expanded
from ..settings import Lantern, Option, read_lantern

NETWORK = "network"
COMPARED = "eagle2,adt-tree,jacobi,merged,auto,adt-tree+lantern,merged+lantern"
"""Methods to compare by default if there is a drafter network."""
COMPARED_WITHOUT_NETWORK = "jacobi-chain,jacobi,auto-jacobi,jacobi+lantern"
"""Methods to compare by default if there is no drafter network."""
PAPER_TREE = {"depth": 5, "width": 10, "drafts": 58, "proposal": "top-k"}
"""Tree of the baseline EAGLE-2 in the ADT-Tree paper. LANTERN's code has this number of drafts."""
FROM_FILE = "@"
"""First character of an argument that names a file with a list of methods."""
_MAX_FILE_MIB = 1


class Preset(NamedTuple):
    """Method of the benchmark.

    Attributes:
        drafting: Drafting settings.
        source: Drafter: "network" for the drafter network that the user has chosen, "jacobi" for the Jacobi window
            (drafts from the target's own earlier forward passes), "network+jacobi" for both in one tree, or "" for no
            drafter.
        lantern: Settings of relaxed acceptance; None for exact acceptance.
    """

    drafting: Drafting
    source: str = NETWORK
    lantern: Lantern | None = None


def presets(device: str = "cpu", guided: bool = True) -> dict[str, Preset]:
    """Return the available methods for a device, plain decoding first.

    All other names can have the suffix `RELAXED`, for relaxed acceptance.

    Args:
        device: Type of device, "cpu" or "cuda". It determines the size of the trees.
        guided: Whether guidance is on.
    """

    def drafting(method: str, source: str = NETWORK, **options: Any) -> Drafting:
        usual = drafter_defaults(source, device, guided, method=method)
        return Drafting.of({**usual, **options, "method": method})

    window = drafting(EAGLE2, JACOBI)
    chain = window.replace(depth=16, width=1, drafts=16)
    long = window.replace(depth=42, width=5, drafts=64)
    pruned = Drafting(EAGLE2, depth=8, width=3, drafts=8, expand_above=0.6, keep_above=0.05)
    methods = sorted(POLICIES, key=lambda name: name != PLAIN)
    merged = NETWORK + WITH_WINDOW
    return {
        **{name: Preset(drafting(name), NETWORK if POLICIES[name].needs_drafter else "") for name in methods},
        "eagle2-top-k": Preset(drafting(EAGLE2, proposal="top-k")),
        "eagle2-paper": Preset(Drafting(EAGLE2, **PAPER_TREE)),
        "eagle2-pruned": Preset(pruned),
        "adt-tree-vertical": Preset(drafting(ADT_TREE, init="vertical")),
        "adt-tree-random": Preset(drafting(ADT_TREE, init="random")),
        "adt-tree-top-k": Preset(drafting(ADT_TREE, proposal="top-k")),
        "jacobi-chain": Preset(chain, JACOBI),
        "jacobi": Preset(window, JACOBI),
        "jacobi-64": Preset(long, JACOBI),
        "merged-chain": Preset(chain, merged),
        "merged": Preset(window, merged),
        "merged-64": Preset(long, merged),
        "auto-jacobi": Preset(Drafting(), JACOBI),
    }


PRESETS = presets()
"""Available methods for a CPU."""


def listed(methods: str) -> list[str]:
    """Return the names in a list of methods, such as "eagle2,adt-tree:beta=0.5,init=vertical".

    The list can have several lines. Lines that begin with "#" are comments.
    """
    names: list[str] = []
    for part in (part.strip() for line in methods.splitlines() if line[:1] != "#" for part in line.split(",")):
        if names and "=" in part and ":" not in part:  # a further setting of the last method
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return names


def read_methods(methods: str) -> list[str]:
    """Return the names in a list of methods, or in the file whose name follows `FROM_FILE`."""
    if not methods.startswith(FROM_FILE):
        return listed(methods)
    path = Path(methods.removeprefix(FROM_FILE)).expanduser()
    try:
        return listed(read_text(path, _MAX_FILE_MIB))
    except (OSError, ValueError) as error:
        raise AdtError("methods.unreadable", path=path, reason=error) from error


def find_preset(name: str, available: dict[str, Preset], lantern: Lantern | None) -> Preset:
    """Return the preset of a method, changed by the settings in its name.

    Args:
        name: Name of a preset, with the suffix `RELAXED` for relaxed acceptance, and with settings after a colon.
            Example: "adt-tree+lantern:beta=0.5,lantern_delta=0.3".
        available: Presets by name.
        lantern: Settings of relaxed acceptance that are not in the name.

    Raises:
        AdtError: If the method or a setting is unknown, or a value is not valid.
    """
    title, settings = _parts(name)
    method = title.removesuffix(RELAXED)
    is_relaxed = method != title
    if method not in available or title == PLAIN + RELAXED:
        raise AdtError("methods.unknown", name=shown(name), names=", ".join(available), relaxed=RELAXED)
    preset = available[method]
    known = {**preset.drafting.policy.settings_type.options(), **(Lantern.options() if is_relaxed else {})}
    given = {option: _value(name, option, text, known) for option, text in settings.items()}
    relaxing = {option: given.pop(option) for option in list(given) if option in Lantern.options()}
    drafting = preset.drafting.replace(**given)
    usual = lantern if lantern is not None else Lantern()
    relaxed = read_lantern(expanded({**relaxing, "method": title}, usual)) if is_relaxed else None
    return preset._replace(drafting=drafting, lantern=relaxed)


def _parts(name: str) -> tuple[str, dict[str, str]]:
    """Return the name of a preset and the settings after its last colon, if there are any."""
    title, colon, text = name.rpartition(":")
    if not colon or "=" not in text:
        return name, {}
    pairs = (part.partition("=") for part in text.split(","))
    return title, {option.strip().replace("-", "_"): value.strip() for option, _, value in pairs}


def _value(name: str, option: str, text: str, known: Mapping[str, Option]) -> Any:
    """Return the value of a setting in the name of a method, which has the settings `known`."""
    if option not in known:
        names = ", ".join(known)
        raise AdtError("methods.unknown_setting", name=shown(name), option=shown(option), names=names)
    try:
        return known[option].kind(text)
    except ValueError as error:
        kind = known[option].kind.__name__
        raise AdtError("methods.wrong_type", option=option, value=shown(text), name=shown(name), kind=kind) from error
