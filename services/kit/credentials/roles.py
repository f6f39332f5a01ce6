"""The role that each RPC needs: one table. A test compares it with the protos.

A role includes those before it. The two tokens of the settings do not use it: they tell admin services from others.
"""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """What a named credential may do."""

    READ = 1  # search, encode, evaluate, look
    ANNOTATE = 2  # lease tasks of people, and judge them
    ADJUDICATE = 3  # change what others have decided
    ADMIN = 4  # start work, change what is served, delete


_TABLE = {
    Role.READ: {
        "EncoderService": "Encode EncodeStream GetInfo Score",
        "IndexService": "GetInfo GetPremises ListCorpora ListPremises Retrieve Search",
        "PeopleService": "GetAgreement GetTree ListQueues ListTasks WatchTasks WatchTree",
        "SamplerService": "ExportTrees GetInfo GetRun ListPairs ListRuns WatchRun",
        "TrainerService": "Evaluate GetCheckpoint GetInfo GetJob ListCheckpoints ListJobs WatchJob",
    },
    Role.ANNOTATE: {
        "PeopleService": "AmendVerdicts CloseTask LeaseTask ReleaseTask RenewLease RetrieveAgain SubmitVerdicts "
        "UndoVerdicts"
    },
    Role.ADJUDICATE: {"PeopleService": "Adjudicate ListChanges"},
    Role.ADMIN: {
        "IndexAdminService": "ActivateGeneration BuildGeneration DeleteGeneration HoldGeneration ListGenerations "
        "PutExplanations ReleaseGeneration VerifyGeneration",
        "RegistryAdminService": "DeleteLabel ListLabels ListRollouts Publish Rollback SetLabel",
        "SamplerAdminService": "CollectGarbage DeleteRun",
        "SamplerService": "CancelRun ImportPairs ResumeRun StartRun",
        "TrainerAdminService": "CollectGarbage DeleteCheckpoint DeleteJob",
        "TrainerService": "CancelJob ResumeJob StartJob",
    },
}
NEEDED = {
    f"/aeenc.v1.{service}/{rpc}": role
    for role, services in _TABLE.items()
    for service, rpcs in services.items()
    for rpc in rpcs.split()
}
REFLECTION_PREFIX = "/grpc.reflection."


def role_for(method: str) -> Role:
    """Returns the role that a method (`/package.Service/Rpc`) needs. One that nobody has listed needs `admin`."""
    return Role.READ if method.startswith(REFLECTION_PREFIX) else NEEDED.get(method, Role.ADMIN)
