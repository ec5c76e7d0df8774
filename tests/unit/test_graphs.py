"""Captured forwards, with a recorder that runs again where a GPU would replay: what is read lies where the graph
expects it, and no result is overwritten."""

import logging
from copy import deepcopy

import pytest
import torch

from adt_core import Drafting, Sampling, load_drafter, load_target
from adt_core.app.benchmark import sources
from adt_core.models import graphs
from adt_core.models.cache import KVCache
from adt_core.models.graphs import SIZES, Graphed, graphed, repeat_first, stretched
from adt_core.models.layers import rope_tables
from adt_core.models.rows import Roots, Rows, Step
from tests.drafted import METHODS, run, write_drafter
from tests.tiny import write_tiny_checkpoint

CPU = torch.device("cpu")


class Recorder:
    """Keeps to a graph's rules: the same memory is read and written every time, and results of other shapes share
    it."""

    def __init__(self):
        self.captured = self.replayed = 0
        self.results = []

    def __call__(self, forward, pool):
        self.captured += 1
        result = forward().clone()
        self.results.append(result)

        def replay():
            self.replayed += 1
            for other in self.results:
                other.fill_(torch.nan)
            result.copy_(forward())

        return replay, result


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of a target and its drafter."""
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("target"), max_positions=300)
    return folder, write_drafter(tmp_path_factory.mktemp("drafter"), load_target(folder))


@pytest.fixture(scope="module")
def target(folders):
    return load_target(folders[0], dtype=torch.float64)


@pytest.fixture(scope="module")
def drafters(folders, target):
    return sources(load_drafter(folders[1], target))


@pytest.fixture(autouse=True)
def nothing_refused(monkeypatch):
    monkeypatch.setattr(graphs, "refused", [])


@pytest.fixture
def recorder(monkeypatch):
    found = Recorder()
    for module in ("adt_core.engine.queue", "adt_core.drafters.eagle"):
        monkeypatch.setattr(f"{module}.graphed", lambda network, device: Graphed(network, found))
    return found


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("at_once", [None, 2])
def test_an_image_is_the_same_with_graphs(target, drafters, recorder, name, at_once):
    source, options = METHODS[name]
    prompts = ("a cat", "three small dogs", "fog")
    expected = run(target, prompts=prompts).codes
    captured = recorder.captured
    assert run(
        target, drafters[source], prompts, drafting=Drafting(**options), at_once=at_once, sampling=Sampling()
    ).codes.equal(expected)
    assert recorder.captured > captured and recorder.replayed > recorder.captured


def test_stretched_tokens_change_nothing(target):
    """Neither what the others make of the cache nor what is in it afterwards, but for the spare slot; and all that is
    computed is a number."""
    decoder, prompts = target.decoder, [list(target.encode_prompt("a cat")), list(target.encode_prompt("a dog in fog"))]
    rows = Rows(prompts, 60, decoder.embedding)
    rope = rope_tables(decoder.config, decoder.embedding)
    ids = decoder.image_ids[torch.arange(3)].expand(2, -1)
    caches, results = [], []
    for longer in (False, True):
        cache = KVCache(decoder.config, 2, 60, decoder.embedding)
        decoder(rows.ids, rows.prefill(), cache, rope)
        step = rows.causal_step(Roots.all_at(torch.zeros(2, dtype=torch.long), 0), 3)
        if longer:
            positions, slots, mask = stretched(step, 8, 50, 59)
            out = decoder(repeat_first(ids, 8), Step(positions, slots, mask), cache, rope)
        else:
            out = decoder(ids, step, cache, rope)
        caches.append(cache.data)
        results.append(out)
    assert results[1].isfinite().all() and results[1].shape[1] == 8
    torch.testing.assert_close(results[1][:, :3], results[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(caches[1][..., :59, :], caches[0][..., :59, :], rtol=1e-12, atol=1e-12)


def test_a_wrong_capture_is_noticed_and_given_up(target, monkeypatch, caplog):
    def wrong(forward, pool):
        result = forward()
        return (lambda: result.add_(1)), result

    monkeypatch.setattr("adt_core.engine.queue.graphed", lambda network, device: Graphed(network, wrong))
    with caplog.at_level(logging.WARNING):
        decoding = run(target)
    monkeypatch.undo()
    assert decoding.codes.equal(run(target).codes)
    assert [record.getMessage() for record in caplog.records] == [
        "No CUDA graphs, which costs speed but changes nothing else: its result is not that of the eager forward."
    ]


def test_a_capture_that_captured_nothing_is_noticed(target, monkeypatch, caplog):
    """As when kernels are launched on another device: the result is right once, and never changes again."""
    monkeypatch.setattr(
        "adt_core.engine.queue.graphed",
        lambda network, device: Graphed(network, lambda forward, pool: (lambda: None, forward())),
    )
    decoding = run(target)
    monkeypatch.undo()
    assert decoding.codes.equal(run(target).codes) and "not that of the eager forward" in caplog.text


def test_a_refusing_driver_is_no_error(target, monkeypatch, caplog):
    def refuse(forward, pool):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with more.")

    expected = run(target).codes
    monkeypatch.setattr("adt_core.engine.queue.graphed", lambda network, device: Graphed(network, refuse))
    assert run(target).codes.equal(expected)
    assert "not permitted when stream is capturing." in caplog.text and "Compile" not in caplog.text


def forward_of(decoder, recorder, prompt, check=None):
    """Makes the forward that reads the first code behind a prompt, over and over."""
    rows, read = Rows([list(prompt)], 60, decoder.embedding), Graphed(decoder, recorder)
    cache, rope = KVCache(decoder.config, 1, 60, decoder.embedding), rope_tables(decoder.config, decoder.embedding)
    decoder(rows.ids, rows.prefill(), cache, rope)
    roots = Roots.all_at(torch.zeros(1, dtype=torch.long), 0)
    return lambda: read(
        decoder.image_ids[:1][None], step=rows.causal_step(roots, 1), cache=cache, rope=rope, check=check
    )


def test_weights_that_have_moved_are_captured_anew(target):
    """ComfyUI may move a model between two runs; a graph remembers addresses."""
    decoder, recorder = deepcopy(target.decoder), Recorder()
    one = forward_of(decoder, recorder, target.encode_prompt("a cat"))
    expected = [one() for _ in range(graphs.CAPTURED_AT_USE + 2)][-1]
    assert recorder.captured == 1 and recorder.replayed == 1 + 3  # once to see whether it is right
    decoder.embedding.data = decoder.embedding.data.clone()
    for _ in range(3):
        torch.testing.assert_close(one(), expected)
    assert recorder.captured == 2


def test_a_cancelled_run_is_cancelled_between_replays(target):
    class Stop(Exception):
        pass

    calls = []

    def check():
        calls.append(1)
        if len(calls) == 6:
            raise Stop

    one = forward_of(target.decoder, Recorder(), target.encode_prompt("a cat"), check)
    with pytest.raises(Stop):
        for _ in range(10):
            one()


def test_long_forwards_and_other_devices_stay_eager(target, monkeypatch):
    assert graphed(target.decoder, torch.device("cuda")) is target.decoder, "nobody has asked for them"
    monkeypatch.setenv(graphs.SWITCH, "1")
    assert graphed(target.decoder, CPU) is target.decoder
    calls = []
    read = Graphed(lambda *tokens, **others: calls.append(tokens), None)
    step = Step(torch.zeros(1, SIZES[-1] + 1), slice(0, 1), torch.zeros(1, 1, 1, 1))
    read(
        torch.zeros(1, SIZES[-1] + 1),
        step=step,
        cache=KVCache(target.decoder.config, 1, 4, target.decoder.embedding),
        rope=None,
    )
    assert len(calls) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", METHODS)
def test_real_graphs(folders, name, monkeypatch, caplog):
    """On a GPU: captured, and the same image as eagerly. float64, so that no near tie tells them apart."""
    source, options = METHODS[name]
    target = load_target(folders[0], "cuda", torch.float64)
    drafters, captured = sources(load_drafter(folders[1], target)), []
    expected = run(target).codes
    monkeypatch.setenv(graphs.SWITCH, "1")
    monkeypatch.setattr(
        graphs,
        "record",
        lambda *arguments, real=graphs.record, **named: captured.append(1) or real(*arguments, **named),
    )
    assert run(target, drafters[source], drafting=Drafting(**options)).codes.equal(expected)
    assert captured and not caplog.records
