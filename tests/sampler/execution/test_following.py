"""Following a label to newer versions: a run that ends meanwhile keeps no label of its own."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from services.sampler.execution.holds import RunHolds


@dataclass(frozen=True)
class StandInRun:
    id: str = "r"
    ended: bool = False
    current_version: str = "v1"
    generation: str = "g"
    config: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(model=None, corpus="science"))

    @property
    def version(self) -> str:
        return self.current_version


class StandIns:
    """The store, the retrieval and the labels; `done` is what was asked of them."""

    def __init__(self, goes_on: bool) -> None:
        self.goes_on, self.done = goes_on, []

    async def get(self, _run_id):
        return StandInRun()

    async def resolve(self, *_):
        return "v2", ""

    def name(self, run_id):
        return f"run-{run_id}"

    async def hold(self, *_):
        self.done.append("hold")

    async def set_label(self, name, version):
        self.done.append(f"{name} {version}")

    async def follow(self, _run_id, version):
        self.done.append(f"follow {version}")
        return self.goes_on

    async def release(self, _run_id):
        self.done.append("release")

    async def delete_label(self, name):
        self.done.append(f"delete {name}")


@pytest.mark.parametrize("goes_on", [True, False])
async def test_the_label_of_a_run_that_ended_while_it_followed_is_dropped(goes_on: bool):
    world = StandIns(goes_on)
    await RunHolds(world, world, world, world).follow("r")  # type: ignore[arg-type]
    assert world.done == ["hold", "run-r v2", "follow v2", *([] if goes_on else ["release", "delete run-r"])]
