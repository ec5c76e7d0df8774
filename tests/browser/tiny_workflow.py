"""Workflow file with the tiny model, and methods that change the file before it is opened."""

from __future__ import annotations

import itertools

_seeds = itertools.count(1000, 10)  # a test may increment its seed up to 9 times
OUTPUTS = {
    "ADTTreeModelLoader": {"model": "ADT_MODEL", "CLIP": "CLIP", "VAE": "VAE"},
    "ADTTreeDrafterLoader": {"drafter": "ADT_DRAFTER"},
    "ADTTreeSettings": {"settings": "ADT_SETTINGS"},
    "CLIPTextEncode": {"CONDITIONING": "CONDITIONING"},
    "ADTTreeSampler": {"LATENT": "LATENT", "trace": "ADT_TRACE"},
    "VAEDecode": {"IMAGE": "IMAGE"},
}
"""Type of node -> names and types of its outputs."""
SETTINGS = ["auto", "coupled", 0, 0, 0, 0.0, 0, 0, 0, 0, "horizontal", "carry", 0, 0, 0.0, 0.0, "both"]
NUMBERS = [3.0, 1.0, 0, 1.0, 1, 0.5, 0.0, "Auto", "model default"]
"""Values of the sampler's widgets after the seed. The list has no value for the newer input *noise*, so the page uses
the default of this input."""


class Workflow:
    """Workflow from a text to a saved image. A drafter and settings are connected to the sampler."""

    def __init__(self):
        view = {"ds": {"scale": 0.8, "offset": [80, 70]}}
        self.data = {"version": 0.4, "last_node_id": 0, "last_link_id": 0, "nodes": [], "links": [], "extra": view}
        loader = self.add("ADTTreeModelLoader", (40, 80), ["tiny", "auto", True])
        drafter = self.add("ADTTreeDrafterLoader", (40, 290), ["jacobi", False], model=(loader, 0))
        settings = self.add("ADTTreeSettings", (40, 440), ["adt-tree", *SETTINGS[1:]])
        text = self.add("CLIPTextEncode", (430, 80), ["A red house in a field."], (420, 150), clip=(loader, 1))
        negative = self.add("CLIPTextEncode", (430, 290), [""], (420, 110), clip=(loader, 1))
        self._links = {"model": (loader, 0), "positive": (text, 0), "negative": (negative, 0), "drafter": (drafter, 0)}
        numbers = [next(_seeds), "fixed", *NUMBERS]
        links = {**self._links, "settings": (settings, 0)}
        self.sampler = self.add("ADTTreeSampler", (910, 80), numbers, (330, 770), **links)
        self._decoded(self.sampler, 1300, "SaveImage", ["ADT-Tree"])

    def node(self, kind: str) -> dict:
        return next(node for node in self.data["nodes"] if node["type"] == kind)

    def widgets(self, kind: str) -> list:
        return self.node(kind)["widgets_values"]

    def batch(self, count: int) -> Workflow:
        self.widgets("ADTTreeSampler")[6] = count
        return self

    def method(self, name: str) -> Workflow:
        self.widgets("ADTTreeSettings")[0] = name
        return self

    def reading_the_trace(self) -> Workflow:
        self.add("ProbeReadTrace", (900, 900), trace=(self.sampler, 1))
        return self

    def second_sampler(self, method: str) -> int:
        """Add a sampler for the same model with another method. Return its node id."""
        settings = self.add("ADTTreeSettings", (1800, 80), [method, *SETTINGS[1:]])
        numbers = list(self.widgets("ADTTreeSampler"))
        second = self.add("ADTTreeSampler", (2200, 80), numbers, (330, 770), **self._links, settings=(settings, 0))
        self._decoded(second, 2600, "PreviewImage", [])
        return second

    def _decoded(self, sampler: int, left: int, kind: str, values: list) -> None:
        vae = self._links["model"][0], 2
        image = self.add("VAEDecode", (left, 80), size=(210, 46), samples=(sampler, 0), vae=vae)
        self.add(kind, (left, 190), values, (420, 500), images=(image, 0))

    def add(self, kind: str, pos: tuple, values=(), size: tuple = (330, 110), **links: tuple[int, int]) -> int:
        """Add a node and return its id.

        Args:
            **links: Input -> (id of another node, index of its output).
        """
        number = self.data["last_node_id"] = self.data["last_node_id"] + 1
        outputs = [{"name": name, "type": type, "links": []} for name, type in OUTPUTS.get(kind, {}).items()]
        inputs = [self._link(name, number, slot, *link) for slot, (name, link) in enumerate(links.items())]
        place = {"id": number, "type": kind, "pos": list(pos), "size": list(size), "order": number, "mode": 0}
        own = {"flags": {}, "properties": {}, "widgets_values": list(values)}
        self.data["nodes"].append({**place, **own, "inputs": inputs, "outputs": outputs})
        return number

    def _link(self, name: str, target: int, slot: int, source: int, output: int) -> dict:
        """Link an output of a node to an input of another node. Return the input's entry for the file."""
        number = self.data["last_link_id"] = self.data["last_link_id"] + 1
        socket = self.data["nodes"][source - 1]["outputs"][output]
        socket["links"].append(number)
        self.data["links"].append([number, source, output, target, slot, socket["type"]])
        return {"name": name, "type": socket["type"], "link": number}
