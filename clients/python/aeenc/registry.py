"""The registry's client: which checkpoint each label names, and which encoders serve it. The trainer serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from aeenc import values
from aeenc.calls.encoding import Precision
from aeenc.calls.inputs import listed
from aeenc.calls.rpc import ServiceClient, rpc, value
from aeenc.v1 import registry_pb2, registry_pb2_grpc
from aeenc.values.writing import duration


def _versions(version: str | Sequence[str]) -> Sequence[str]:
    return [version] if isinstance(version, str) else listed(version, "version")


_VERSIONS: dict[str, Any] = {"versions": _versions}
_WAIT: dict[str, Any] = {"wait": partial(duration, field="wait_s")}


class RegistryClient(ServiceClient):
    """Calls RegistryAdminService; the channel carries the admin credential. Raises the classes of `aeenc.errors`.

    Calls that move a label make a `request_id` where none is given: a repeated call must not move it twice.
    """

    _services = (registry_pb2_grpc.RegistryAdminServiceStub,)

    @rpc(registry_pb2.PublishRequest, value("Publication"), made=_VERSIONS | _WAIT)
    async def publish(
        self,
        version: str | Sequence[str],
        *,
        label: str = "stable",
        wait_s: float = 0.0,
        force: bool = False,
        only_better: bool = False,
        expected_revision: int | None = None,
        share: float | None = None,
        precision: Precision | None = None,
        request_id: str = "",
    ) -> values.Publication:
        """Points a label at a checkpoint; with `wait_s`, returns when every live encoder serves it or time is up.

        Several versions of cross-encoders are an ensemble, as in `set_label`; they are compared with nothing. With
        `only_better`, a version that was not shown to be better than what serves is refused, as a worse one is;
        `force` asks nothing.

        A version that was trained with a premise encoder becomes `stable` together with its generation (`generation` of
        the answer) or not at all: the call fails when an encoder does not serve it in time.
        `share`, for label `canary` only, is its part of the calls that name no model, 0 to 1; None: unchanged. A
        cross-encoder has none.
        `precision` is what every encoder computes queries, or pairs, in; one that cannot does not serve the version and
        says why. None: the best that the checkpoint has a file for and every live encoder reports.
        When the label moves again meanwhile, the answer comes at once, incomplete and with the label as it is now.
        """

    @rpc(registry_pb2.SetLabelRequest, value("Label", "label"), made=_VERSIONS)
    async def set_label(
        self,
        label: str,
        version: str | Sequence[str],
        *,
        expected_revision: int | None = None,
        share: float | None = None,
        precision: Precision | None = None,
        request_id: str = "",
    ) -> values.Label:
        """Points a label at a version; `share` as in `publish`. `precision` None: that of its last publication.

        Several versions are an ensemble of cross-encoders that re-ranks by sum of ranks.
        """

    @rpc(registry_pb2.DeleteLabelRequest)
    async def delete_label(self, label: str, *, space_id: str = "", request_id: str = "") -> None:
        """Removes a label."""

    @rpc(registry_pb2.RollbackRequest, value("Rollback"), made=_WAIT)
    async def rollback(
        self,
        *,
        label: str = "stable",
        space_id: str = "",
        wait_s: float = 0.0,
        expected_revision: int | None = None,
        corpus: str = "",
        request_id: str = "",
    ) -> values.Rollback:
        """Points a label back at its previous version; `space_id` names a space other than the trainer's own.

        With `corpus`, takes back a publication that activated a generation of it, encoders and generation together;
        then `expected_revision`, which is a label's, is refused.
        """

    @rpc(registry_pb2.ListLabelsRequest, value("Label"), pages="labels")
    def list_labels(self, *, space_id: str = "", page_size: int = 1000) -> AsyncIterator[values.Label]:
        """Yields all labels by space and name, or those of one space.

        A page of `page_size`, 1 to 1,000, is fetched when it is needed.
        """

    @rpc(registry_pb2.ListRolloutsRequest, value("Rollouts"))
    async def get_rollouts(self, label: str = "stable", *, space_id: str = "") -> values.Rollouts:
        """Says, for each live encoder, the revision of the label it serves, or why it does not."""
