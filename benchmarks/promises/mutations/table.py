"""Every RPC: which change something, and the world in which they are tried. A new one fails until it stands here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kit.test_authorisation import methods, names

from benchmarks.promises.fleet import NAMESPACE, running_fleet
from benchmarks.promises.mutations import deletions, index, people, sampler, trainer
from benchmarks.promises.mutations.mutation import Mutation, World
from services.sampler.people.task_store import TaskStore
from services.sampler.records.keys import TaskKeys

READS = {
    "EncoderService": "Encode EncodeStream GetInfo Score",
    "IndexService": "GetInfo GetPremises ListCorpora ListPremises Retrieve Search",
    "IndexAdminService": "ListGenerations VerifyGeneration",
    "PeopleService": "GetAgreement GetTree ListChanges ListQueues ListTasks WatchTasks WatchTree",
    "SamplerService": "ExportTrees GetInfo GetRun ListPairs ListRuns WatchRun",
    "TrainerService": "Evaluate GetCheckpoint GetInfo GetJob ListCheckpoints ListJobs WatchJob",
    "RegistryAdminService": "ListLabels ListRollouts",
    "OracleService": "Judge",  # its state, if it has any, is the user's
}
MUTATIONS: tuple[type[Mutation], ...] = (
    *index.MUTATIONS,
    *sampler.MUTATIONS,
    *people.MUTATIONS,
    *trainer.MUTATIONS,
    *(one for one in deletions.MUTATIONS if f"aeenc.v1.{one.rpc}" in methods()),
)


def unlisted() -> list[str]:
    """RPCs of the protos that stand in neither table, and names in a table that are none."""
    every = {name.removeprefix("aeenc.v1.") for name in methods()}
    return sorted(every ^ (names(READS) | {mutation.rpc for mutation in MUTATIONS}))


@asynccontextmanager
async def mutable_world() -> AsyncIterator[World]:
    """A fleet of one process a service, with a corpus, imported pairs and three versions to point labels at."""
    async with running_fleet() as fleet, fleet.store() as redis, fleet.client() as client:
        await fleet.build()
        world = World(fleet, client)
        await fleet.add_versions(3)
        world.shared["pairs"] = await fleet.import_pairs()
        world.shared["redis"] = redis
        world.shared["tasks"] = TaskStore(redis, TaskKeys(NAMESPACE))
        yield world
