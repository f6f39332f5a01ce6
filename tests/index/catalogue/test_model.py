"""Random operations against a model in memory: what is listed, active and found is always what the model says."""

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from aeenc import AsyncClient, errors
from services.index.__main__ import build
from services.index.settings import IndexSettings
from support.waiting import until
from support.worlds.index_world import SPACE, RunningEncoder, brute_force, premise, vector_of

CORPORA = st.sampled_from(["science", "history"])
# A text with and one without the exclamation mark have the same vector: ties.
FACT = st.builds("fact {} is like fact {}{}".format, st.integers(0, 9), st.integers(0, 3), st.sampled_from(["", "!"]))
TEXTS = st.lists(FACT, min_size=1, max_size=12)


Premise = tuple[tuple[str, ...], str]  # all its ids, and its text


def folded(base: list[Premise], deleted: set[str], sent: list[tuple[str, str]]) -> list[Premise]:
    """A base without deleted ids, then new premises; those of one text are one premise."""
    by_text = {text: left for ids, text in base if (left := tuple(one for one in ids if one not in deleted))}
    for one, text in sent:
        by_text[text] = (*by_text.get(text, ()), one)
    return [(ids, text) for text, ids in by_text.items()]


class IndexMachine(RuleBasedStateMachine):
    """The model: by corpus, the generations with their premises in order, the active one, those with a changed byte."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="aeenc-model-"))
        self.runner = asyncio.Runner()
        self.open = contextlib.AsyncExitStack()
        self.generations: dict[str, dict[str, list[Premise]]] = {"science": {}, "history": {}}
        self.active: dict[str, str] = {}
        self.damaged: set[str] = set()
        self.numbers = iter(range(10_000))
        self.encoder = self.runner.run(self.start_encoder())
        self.runner.run(self.start())

    async def start_encoder(self) -> RunningEncoder:
        encoder = RunningEncoder()
        await encoder.server.start()
        return encoder

    async def start(self) -> None:
        chosen = IndexSettings(port=0, artifacts_dir=self.root, encoder_target=self.encoder.target, build_batch=4)
        server = await self.open.enter_async_context(build(chosen))
        await until(lambda: server.readiness.answers)
        client = await self.open.enter_async_context(AsyncClient(index=f"127.0.0.1:{server.port}"))
        self.client = client.index

    def teardown(self) -> None:
        self.runner.run(self.open.aclose())
        self.runner.run(self.encoder.stop())
        self.runner.close()
        shutil.rmtree(self.root)

    def pick(self, data: st.DataObject, corpus: str) -> str:
        return data.draw(st.sampled_from(sorted(self.generations[corpus])))

    def refused(self, kind: type[errors.AeencError], call) -> None:
        with pytest.raises(kind) as caught:
            self.runner.run(call)
        assert type(caught.value) is kind

    @rule(corpus=CORPORA, texts=TEXTS, activate=st.booleans(), data=st.data(), twice=st.booleans())
    def build(self, corpus, texts, activate, data, twice):
        base, deleted = "", []
        sound = sorted(set(self.generations[corpus]) - self.damaged)
        if sound and data.draw(st.booleans()):
            base = data.draw(st.sampled_from(sound))
            known = [one for ids, _ in self.generations[corpus][base] for one in ids]
            deleted = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=4))
        sent = [(f"{corpus}{next(self.numbers)}", text) for text in texts]
        fields = {"base_generation": base, "delete_ids": deleted, "activate": activate, "request_id": sent[0][0]}
        premises = [premise(*one) for one in sent]
        built = self.runner.run(self.client.build(corpus, premises, **fields))
        if twice:
            encoded = len(self.encoder.servicer.encoded_premises)
            assert self.runner.run(self.client.build(corpus, premises, **fields)).id == built.id
            assert len(self.encoder.servicer.encoded_premises) == encoded
        self.generations[corpus][built.id] = folded(self.generations[corpus].get(base, []), set(deleted), sent)
        if activate:
            self.active[corpus] = built.id

    @precondition(lambda self: any(self.generations.values()))
    @rule(corpus=CORPORA, data=st.data(), expected=st.sampled_from(["right", "wrong", "not said"]))
    def activate(self, corpus, data, expected):
        if not self.generations[corpus]:
            return
        chosen = self.pick(data, corpus)
        said = {"right": self.active.get(corpus, ""), "wrong": "g0", "not said": None}[expected]
        call = self.client.activate(corpus, chosen, expected=said)
        if expected == "wrong":
            self.refused(errors.Aborted, call)
        elif chosen in self.damaged:
            self.refused(errors.DataLoss, call)
        else:
            assert self.runner.run(call).previous_generation == self.active.get(corpus, "")
            self.active[corpus] = chosen

    @precondition(lambda self: self.damaged)
    @rule(data=st.data())
    def activate_damaged(self, data):
        chosen = data.draw(st.sampled_from(sorted(self.damaged)))
        (corpus,) = (name for name, generations in self.generations.items() if chosen in generations)
        self.refused(errors.DataLoss, self.client.activate(corpus, chosen))

    @rule(corpus=CORPORA, data=st.data())
    def delete(self, corpus, data):
        if not self.generations[corpus]:
            self.refused(errors.NotFound, self.client.delete(corpus, "g0"))
            return
        chosen = self.pick(data, corpus)
        if chosen == self.active.get(corpus):
            self.refused(errors.FailedPrecondition, self.client.delete(corpus, chosen))
        else:
            self.runner.run(self.client.delete(corpus, chosen))
            del self.generations[corpus][chosen]
            self.damaged.discard(chosen)

    @rule(corpus=CORPORA, data=st.data(), name=st.sampled_from(["vectors.npy", "premises.jsonl"]))
    def damage(self, corpus, data, name):
        idle = sorted(set(self.generations[corpus]) - self.damaged - {self.active.get(corpus)})
        if idle:
            chosen = data.draw(st.sampled_from(idle))
            path = self.root / "generations" / corpus / chosen / name
            content = bytearray(path.read_bytes())
            content[-3] ^= 1
            path.write_bytes(content)
            self.damaged.add(chosen)

    @rule()
    def restart(self):
        self.runner.run(self.open.aclose())
        self.runner.run(self.start())

    @rule(corpus=CORPORA, k=st.integers(1, 15), query=FACT, data=st.data())
    def search(self, corpus, k, query, data):
        vector = vector_of(query)
        if corpus not in self.active:
            self.refused(errors.NotFound, self.client.search(corpus, vector[None], space_id=SPACE))
            return
        content = self.generations[corpus][self.active[corpus]]
        excluded = data.draw(st.lists(st.sampled_from([ids[0] for ids, _ in content]), max_size=3))
        found = self.runner.run(self.client.search(corpus, vector[None], space_id=SPACE, k=k, exclude=excluded))
        matrix = np.stack([vector_of(text) for _, text in content])
        best, scores = brute_force(matrix, vector, k, np.array([ids[0] not in excluded for ids, _ in content]))
        assert found.generation == self.active[corpus]
        assert found.ids[0] == [content[n][0][0] for n in best]
        assert found.scores[0].tobytes() == scores.tobytes()

    @rule(corpus=CORPORA)
    def look(self, corpus):
        async def found() -> dict[str, str]:
            return {one.corpus: one.active.id async for one in self.client.list_corpora()}

        shown = self.runner.run(found())
        assert shown.get(corpus, "") == self.active.get(corpus, "")
        assert (corpus in shown) == bool(self.generations[corpus])
        if shown.get(corpus):
            listed = self.runner.run(self.premises(corpus))
            assert [((one.id, *one.aliases), one.text) for one in listed] == self.generations[corpus][shown[corpus]]
        if self.generations[corpus]:
            found = self.runner.run(self.generations_of(corpus))
            assert {one.id for one in found} == set(self.generations[corpus])
            assert [one.id for one in found if one.active] == [one for one in [self.active.get(corpus)] if one]

    async def generations_of(self, corpus):
        return [one async for one in self.client.list_generations(corpus)]

    async def premises(self, corpus):
        return [one async for one in self.client.list_premises(corpus)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_random_operations_leave_what_a_model_in_memory_says():
    chosen = settings(
        max_examples=16,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(IndexMachine, settings=chosen)
