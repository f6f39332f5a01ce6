"""Where the time of short texts goes on a GPU, and how much of a card a large encoder uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from benchmarks.encoder.gpu_encoders import MAX_TOKENS, batched, by_turns, dim_of, open_model, tokenizing
from benchmarks.encoder.gpu_setting import VOCABULARY, Setting, flops_of, product_flops
from benchmarks.harness.rows import Rows
from services.encoder.batching.queues import Queues
from services.encoder.runtime.runners import PaddedRunner, Tokens
from services.encoder.runtime.torch_session import session_of
from services.transformer import PooledTransformer

STAGES = ("tokenization", "cutting batches, copying to the card", "forward pass", "pooling, copying back")
BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
LARGE_TEXTS, LARGE_SHARE = 2_048, 0.5  # of BERT-large: texts, and the least share of the card's products


async def stages(rows: Rows, setting: Setting) -> None:
    """Shares of the time of facts by stage, one after the other; and the rate with token ids instead of texts."""
    facts, tokenize = setting.texts["facts"], tokenizing(setting.model)
    model = open_model(setting.model, setting.device)
    session, dim = session_of(model, setting.device, half=True), dim_of(model)
    seconds, marks = Counter[str](), dict[str, float]()
    hooks = [
        model.transformer.register_forward_pre_hook(lambda *_: marks.update(begun=setting.clock())),
        model.transformer.register_forward_hook(lambda *_: marks.update(ended=setting.clock())),
    ]

    def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*given: Any) -> Any:
            begun = setting.clock()
            returned = function(*given)
            seconds[stage] += setting.clock() - begun
            return returned

        return timing

    run = PaddedRunner.run

    def in_stages(runner: PaddedRunner, batch: Sequence[Tokens]) -> NDArray[np.float32]:
        begun = setting.clock()
        vectors = run(runner, batch)
        ends = (begun, marks["begun"], marks["ended"], setting.clock())
        seconds.update(dict(zip(STAGES[1:], np.diff(ends).tolist(), strict=True)))
        return vectors

    alone = batched(session, dim, timed(STAGES[0], tokenize), callers=1, workers=1)
    with patch.object(PaddedRunner, "run", in_stages), patch.object(Queues, "take", timed(STAGES[1], Queues.take)):
        await alone(facts)
        seconds.clear()
        begun = setting.clock()
        for _ in range(setting.rounds):
            await alone(facts)
        whole = setting.clock() - begun
    rows.note("facts, one stage after the other", setting.rounds * len(facts) / whole, "texts/s")
    for stage in STAGES:
        rows.note(f"facts: share of {stage}", seconds[stage] / whole, "")
    rows.note("facts: share of the rest of Python", 1 - seconds.total() / whole, "")
    for hook in hooks:  # they wait for the card
        hook.remove()
    if setting.on_card:
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            await alone(facts)
        found = [one.self_device_time_total for one in profiled.key_averages() if one.device_type.name == "CUDA"]
        rows.note("facts: share of kernels and copies alone", sum(found) / 1e6 * setting.rounds / whole, "")
    tokens = tokenize(facts)
    of_ids = batched(session, dim, list)
    encoders = {"ours": batched(session, dim, tokenize), "token ids from callers": lambda _: of_ids(tokens)}
    for name, rate in (await by_turns(encoders, facts, setting.rounds)).items():
        rows.note(f"facts, stages beside each other: {name}", rate, "texts/s")


async def bert_large(rows: Rows, setting: Setting) -> None:
    """The share of the card's matrix products that an encoder of BERT-large's shape makes of real tokens."""
    from transformers import BertConfig, BertModel

    shape = BERT_LARGE | {"num_hidden_layers": setting.count(BERT_LARGE["num_hidden_layers"], 1)}
    product = product_flops(setting)
    with torch.device(setting.device):
        transformer = BertModel(BertConfig(vocab_size=VOCABULARY, **shape), add_pooling_layer=False)
    model = PooledTransformer(transformer, "mean").eval().requires_grad_(False)
    flops = flops_of(transformer, [MAX_TOKENS])
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (setting.count(LARGE_TEXTS), MAX_TOKENS))
    encode = batched(session_of(model, setting.device, half=True), dim_of(model), list)
    rate = (await by_turns({"ours": encode}, [Tokens(one) for one in ids.tolist()], setting.rounds))["ours"]
    name = f"{MAX_TOKENS} tokens, {shape['num_hidden_layers']} layers of BERT-large"
    rows.note(f"{name}: token ids to vectors", rate, "texts/s")
    share = flops * rate / product
    rows.at_least(f"{name}: share of matrix products", share, "", setting.least(LARGE_SHARE), flops * rate / 1e12)
