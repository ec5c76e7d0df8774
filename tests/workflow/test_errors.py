"""What goes wrong is said in a sentence that names the input, before the run where that is possible."""

import copy
import io
import shutil

import pytest
from comfy_server import PACKS, ROOT, Comfy, Failed, Refused
from convert import Graph, to_prompt
from PIL import Image


def refused(comfy, graph) -> str:
    with pytest.raises(Refused) as error:
        comfy.queue(graph.prompt)
    return " | ".join(error.value.details)


def failed(comfy, graph, node: str) -> str:
    """Runs a prompt that has to fail in the given node; also: nothing may have been saved, and the log is readable."""
    before = set((comfy.base / "output").rglob("*"))
    with pytest.raises(Failed) as error:
        comfy.run(graph.prompt)
    assert error.value.kind == "execution_error"
    assert error.value.node_type == node
    assert set((comfy.base / "output").rglob("*")) == before, "something was written"
    return error.value.message


@pytest.mark.parametrize(
    "node, name, value, words",
    [
        pytest.param("ADTTreeSampler", "guidance", float("nan"), "guidance", marks=pytest.mark.contract),
        ("ADTTreeSampler", "guidance", float("inf"), "guidance"),
        ("ADTTreeSampler", "temperature", -1.0, "temperature"),
        ("ADTTreeSampler", "top_p", 0.0, "top_p"),
        ("ADTTreeSampler", "top_k", -1, "top_k"),
        ("ADTTreeSampler", "batch_size", 0, "batch_size"),
        ("ADTTreeSampler", "seed", -1, "seed"),
        ("ADTTreeSampler", "seed", 2**64, "seed"),
        ("ADTTreeSettings", "depth_min", 300, "depth_min"),
        ("ADTTreeSettings", "nodes", -1, "nodes"),
        ("ADTTreeSettings", "method", "magic", "magic"),
        ("ADTTreeModelLoader", "model", "no/such-model", "no/such-model"),
        ("ADTTreeModelLoader", "dtype", "int3", "int3"),
        ("ADTTreeDrafterLoader", "drafter", "nobody", "nobody"),
    ],
)
def test_bad_values_are_refused_before_the_run(comfy, graph, node, name, value, words):
    assert words in refused(comfy, graph.set(node, **{name: value}))


@pytest.mark.parametrize(
    "value", [pytest.param(float("nan"), marks=pytest.mark.contract), float("inf"), -float("inf"), "abc", None]
)
def test_a_wrong_number_names_its_one_input(comfy, graph, value):
    """Every number of every node: what is wrong is said of that input, and of no other."""
    info, (graph, outputs) = comfy.get("/object_info"), everything(graph)
    checked = 0
    for kind, output in outputs.items():
        inputs = {**info[kind]["input"]["required"], **info[kind]["input"].get("optional", {})}
        for name in (name for name, (type, *_) in inputs.items() if type == "FLOAT"):
            prompt = copy.deepcopy(upstream(graph.prompt, output))
            next(node for node in prompt.values() if node["class_type"] == kind)["inputs"][name] = value
            with pytest.raises(Refused) as error:
                comfy.queue(prompt)
            assert len(error.value.details) == 1 and error.value.details[0].startswith(name), error.value.details
            checked += 1
    assert checked > 15


def everything(graph) -> tuple[Graph, dict[str, str]]:
    """The workflow with every node that has numbers, and for each kind an output that needs it."""
    model, positive = graph.link("ADTTreeModelLoader"), graph.link("CLIPTextEncode")
    bounds = {"rule": "delta (LANTERN)", "neighbours": 9, "delta": 0.1, "factor": 2.0, "max_substitution": 1.0}
    numbers = {"seed": 0, "guidance": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    graph.set("ADTTreeSampler", keep=0.5, keep_left=0.0, lantern=graph.add("ADTTreeLantern", **bounds))
    compared = graph.add("ADTTreeCompare", model=model, positive=positive, **numbers)
    drawn = graph.add("ADTTreeMapImage", trace=[graph.id("ADTTreeSampler"), 1], show="depth", opacity=0.5)
    batch, _ = graph.add("ADTTreeBatchSampler", model=model, prompts="a cat", negative="", chunk_size=1, **numbers)
    values = {"prompts": "a cat", "count": 1, "methods": "jacobi", "seed": 0, "guidance": 3.0, "temperature": 1.0}
    saved = graph.id("SaveImage")
    return graph, {
        **dict.fromkeys(("ADTTreeSampler", "ADTTreeLantern", "ADTTreeSettings"), saved),
        "ADTTreeCompare": graph.add("PreviewImage", images=compared)[0],
        "ADTTreeMapImage": graph.add("PreviewImage", images=drawn)[0],
        "ADTTreeBatchSampler": batch,
        "ADTTreeBenchmark": graph.add("ADTTreeBenchmark", model=model, **values)[0],
    }


def upstream(prompt: dict, output: str) -> dict:
    """A node and all that it needs."""
    links = (value[0] for value in prompt[output]["inputs"].values() if isinstance(value, list))
    return {output: prompt[output]} | {key: node for link in links for key, node in upstream(prompt, link).items()}


def test_bounds_of_a_tree_that_cross_are_refused_before_the_run(comfy, graph):
    values = {"depth_min": 200, "depth_max": 6}
    assert "depth_min is 200, above depth_max 6" in refused(comfy, graph.set("ADTTreeSettings", **values))


@pytest.mark.parametrize(
    "name, value",
    [("neighbours", 0), ("delta", float("nan")), ("factor", 0.5), ("max_substitution", 2.0), ("rule", "magic")],
)
def test_bad_values_of_lantern_are_refused_before_the_run(comfy, graph, name, value):
    values = {
        "rule": "delta (LANTERN)",
        "neighbours": 100,
        "delta": 0.1,
        "factor": 2.0,
        "max_substitution": 1.0,
        name: value,
    }
    assert name in refused(comfy, graph.set("ADTTreeSampler", lantern=graph.add("ADTTreeLantern", **values)))


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("methods", "eagle2,magic", "methods: 'magic'"),
        ("prompts", "nowhere.json", "prompts: "),
        ("temperature", float("nan"), "temperature"),
        ("count", 0, "count"),
    ],
)
def test_bad_values_of_the_benchmark_are_refused_before_the_run(comfy, graph, name, value, words):
    assert words in refused(comfy, benchmark(graph, **{name: value}))


def test_a_benchmark_of_methods_that_need_a_network_without_one(comfy, graph):
    window, _ = graph.add("ADTTreeDrafterLoader", model=graph.link("ADTTreeModelLoader"), drafter="jacobi")
    asked = benchmark(graph, methods="jacobi,adt-tree", drafter=[window, 0])
    asked.prompt[window] = graph.prompt[window]
    assert "'adt-tree' needs a network" in failed(comfy, asked, "ADTTreeBenchmark")


def benchmark(graph, **changes) -> Graph:
    """A benchmark of the model's own drafter, and nothing else."""
    values = {
        "prompts": "a cat",
        "count": 1,
        "methods": "jacobi",
        "seed": 0,
        "guidance": 3.0,
        "temperature": 1.0,
        **changes,
    }
    node, _ = graph.add("ADTTreeBenchmark", model=graph.link("ADTTreeModelLoader"), **values)
    return Graph({key: graph.prompt[key] for key in (node, graph.id("ADTTreeModelLoader"))})


@pytest.mark.contract
@pytest.mark.parametrize("bad", ["KSampler takes no ADT_MODEL", "sampler takes no MODEL", "no positive"])
def test_wrong_plugs_do_not_fit(comfy, graph, bad):
    if bad == "no positive":
        graph.drop("ADTTreeSampler", "positive")
        expected = "positive"
    elif bad == "sampler takes no MODEL":
        graph.set("ADTTreeSampler", model=graph.add("ProbeDiffusionModel"))
        expected = "model"
    else:
        positive, latent = graph.link("CLIPTextEncode"), graph.link("ADTTreeSampler")
        graph.set("VAEDecode", samples=k_sampler(graph, graph.link("ADTTreeModelLoader"), positive, positive, latent))
        expected = "model"
    assert expected in refused(comfy, graph)


def test_empty_prompt(comfy, graph):
    message = failed(comfy, graph.set("CLIPTextEncode", text="  "), "ADTTreeSampler")
    assert "prompt is empty" in message


def test_prompt_longer_than_the_context(comfy, graph):
    message = failed(comfy, graph.set("CLIPTextEncode", text="a red house " * 500), "CLIPTextEncode")
    assert "room for" in message


@pytest.mark.contract
def test_an_error_is_called_by_no_module(comfy, graph):
    """ComfyUI shows an exception's type to users, and they can't use the place of its code."""
    with pytest.raises(Failed) as error:
        comfy.run(graph.set("CLIPTextEncode", text="a red house " * 500).prompt)
    assert error.value.data["exception_type"] == "AdtError"


def test_exact_and_lantern_do_not_go_together(comfy, graph):
    values = {"rule": "delta (LANTERN)", "neighbours": 9, "delta": 0.1, "factor": 2.0, "max_substitution": 1.0}
    graph.set("ADTTreeSampler", speed="Exact ADT-Tree", lantern=graph.add("ADTTreeLantern", **values))
    assert failed(comfy, graph, "ADTTreeSampler").startswith("speed: 'Exact ADT-Tree' is exact")


def test_drafter_of_another_model(comfy, graph):
    other = graph.add("ADTTreeModelLoader", model="bundled", dtype="bfloat16")
    message = failed(comfy, graph.set("ADTTreeDrafterLoader", model=other), "ADTTreeSampler")
    assert "drafter" in message and "another model" in message


def test_conditioning_of_a_stranger(comfy, graph):
    message = failed(comfy, graph.set("ADTTreeSampler", positive=graph.add("ProbeEmbedding")), "ADTTreeSampler")
    assert message.startswith("positive: ") and "CLIP Text Encode" in message
    graph.set("ADTTreeSampler", positive=graph.link("CLIPTextEncode"), negative=graph.add("ProbeEmbedding"))
    assert failed(comfy, graph, "ADTTreeSampler").startswith("negative: ")


def test_combined_and_changed_prompts(comfy, graph):
    prompt = graph.link("CLIPTextEncode")
    graph.set("ADTTreeSampler", positive=graph.add("ConditioningCombine", conditioning_1=prompt, conditioning_2=prompt))
    assert "2 prompts are combined" in failed(comfy, graph, "ADTTreeSampler")
    area = graph.add("ConditioningSetArea", conditioning=prompt, width=64, height=64, x=0, y=0, strength=1.0)
    message = failed(comfy, graph.set("ADTTreeSampler", positive=area), "ADTTreeSampler")
    assert "area" in message


@pytest.mark.contract
def test_blending_our_prompt(comfy, graph):
    zeroed = graph.add("ConditioningZeroOut", conditioning=graph.link("CLIPTextEncode"))
    message = failed(comfy, graph.set("ADTTreeSampler", negative=zeroed), "ConditioningZeroOut")
    assert "text, not an embedding" in message and "negative empty" in message


def test_latent_of_a_stranger(comfy, graph):
    stranger = graph.add("EmptyLatentImage", width=128, height=128, batch_size=1)
    message = failed(comfy, graph.set("VAEDecode", samples=stranger), "VAEDecode")
    assert message.startswith("samples: ") and "[1, 4, 16, 16]" in message


@pytest.mark.contract
@pytest.mark.small_models
def test_our_latent_in_a_stock_sampler(comfy, graph):
    theirs = graph.add("ProbeEmbedding")
    graph.set(
        "VAEDecode",
        samples=k_sampler(graph, graph.add("ProbeDiffusionModel"), theirs, theirs, graph.link("ADTTreeSampler")),
    )
    assert "channels" in failed(comfy, graph, "KSampler")


@pytest.mark.contract
@pytest.mark.small_models
def test_stock_node_that_asks_too_much_of_the_vae(comfy, graph):
    graph.add("VAESave", vae=graph.link("ADTTreeModelLoader", 2), filename_prefix="vae")
    assert "works with the VAE Decode" in failed(comfy, graph, "VAESave")


@pytest.mark.contract
def test_our_prompt_in_a_stock_sampler(comfy, graph):
    model, latent = graph.add("ProbeDiffusionModel"), graph.add("EmptyLatentImage", width=64, height=64, batch_size=1)
    theirs, ours = graph.add("ProbeEmbedding"), graph.link("CLIPTextEncode")
    graph.set("VAEDecode", samples=k_sampler(graph, model, ours, theirs, latent))
    assert "text, not an embedding" in failed(comfy, graph, "KSampler")


def test_the_stock_sampler_itself_works(comfy, graph):
    """So that the test above fails for the reason that it names."""
    model, latent = graph.add("ProbeDiffusionModel"), graph.add("EmptyLatentImage", width=64, height=64, batch_size=1)
    theirs = graph.add("ProbeEmbedding")
    graph.prompt.pop(graph.id("SaveImage"))
    graph.add("SaveLatent", samples=k_sampler(graph, model, theirs, theirs, latent), filename_prefix="stock")
    assert comfy.files(comfy.run(graph.prompt), "latents")


@pytest.mark.contract
def test_stock_node_for_another_text_encoder(comfy, graph):
    clip = graph.link("ADTTreeModelLoader", 1)
    text = {"text_g": "a house", "text_l": "a house"}
    sizes = {"width": 64, "height": 64, "crop_w": 0, "crop_h": 0, "target_width": 64, "target_height": 64}
    graph.set("ADTTreeSampler", positive=graph.add("CLIPTextEncodeSDXL", clip=clip, **text, **sizes))
    assert "plain CLIP Text Encode" in failed(comfy, graph, "CLIPTextEncodeSDXL")


@pytest.mark.parametrize(
    "node", ["ADTTreeModelLoader", "ADTTreeDrafterLoader", pytest.param("ADTTreeSampler", marks=pytest.mark.contract)]
)
@pytest.mark.small_models
def test_an_input_that_no_log_can_print(comfy, graph, node):
    """Half of a surrogate pair as its name. ComfyUI's worker would end for everybody where an exception quotes it."""
    link = graph.add("EmptyLatentImage", width=64, height=64, batch_size=1)
    said = failed(comfy, graph.set(node, **{"\ud800": link}), node)
    assert r"'\ud800' is no input of this node" in said
    assert comfy.run(graph.drop(node, "\ud800").prompt)


def test_the_server_has_survived_all_that(comfy, graph):
    assert comfy.files(comfy.run(graph.prompt))


@pytest.fixture(scope="module")
def other_models(release, tmp_path_factory):
    """A server with good and damaged checkpoints in its folders and in one that extra_model_paths.yaml adds."""
    base, extra = (tmp_path_factory.mktemp(f"{name}-{release.version}") for name in ("models", "extra"))
    bundled = ROOT / "adt_core" / "bundled"
    shutil.copytree(bundled / "target", base / "models" / "ar_image" / "someone" / "copy")
    cut = shutil.copytree(bundled / "target", base / "models" / "LLM" / "cut")
    weights = next(cut.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    other = base / "models" / "LLM" / "llama"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "llama"}')
    shutil.copytree(bundled / "drafter", extra / "drafters" / "mine")
    shutil.copytree(bundled / "target", extra / "targets" / "deep" / "er" / "elsewhere")
    listed = f"tests:\n  ar_image_models: {extra / 'targets'}\n  ar_image_drafters: {extra / 'drafters'}\n"
    (extra / "paths.yaml").write_text(listed)
    with Comfy(release, base, PACKS, ("--extra-model-paths-config", str(extra / "paths.yaml"))) as server:
        yield server


def test_models_of_the_user(other_models, workflow):
    info = other_models.get("/object_info")
    models = info["ADTTreeModelLoader"]["input"]["optional"]["model"][1]["options"]
    there = [name for name in models if not name.endswith(" (not installed)")]
    assert models[0] == "bundled" and set(there[1:]) == {"someone/copy", "deep/er/elsewhere", "cut"}
    drafters = info["ADTTreeDrafterLoader"]["input"]["optional"]["drafter"][1]["options"]
    assert drafters == ["auto", "bundled", "jacobi", "repeat", "mine"]
    graph = Graph(to_prompt(workflow, info)).set("ADTTreeSampler", preset="custom")  # the copy counts as an Anole
    (bundled,) = other_models.files(other_models.run(graph.prompt))
    graph.set("ADTTreeModelLoader", model="deep/er/elsewhere").set("ADTTreeDrafterLoader", drafter="mine")
    (same,) = other_models.files(other_models.run(graph.prompt))
    assert pixels(same) == pixels(bundled)
    message = failed(other_models, graph.set("ADTTreeModelLoader", model="cut"), "ADTTreeModelLoader")
    assert "model.safetensors" in message and "download it again" in message
    # A model that arrives while ComfyUI runs is listed at the next look.
    shutil.copytree(
        other_models.base / "models" / "ar_image" / "someone" / "copy",
        other_models.base / "models" / "ar_image" / "new",
    )
    info = other_models.get("/object_info/ADTTreeModelLoader")
    assert "new" in info["ADTTreeModelLoader"]["input"]["optional"]["model"][1]["options"]


def pixels(png: bytes) -> bytes:
    return Image.open(io.BytesIO(png)).tobytes()


def k_sampler(graph, model, positive, negative, latent) -> list:
    plugs = {"model": model, "positive": positive, "negative": negative, "latent_image": latent}
    return graph.add(
        "KSampler", **plugs, seed=0, steps=1, cfg=2.0, sampler_name="euler", scheduler="normal", denoise=1.0
    )
