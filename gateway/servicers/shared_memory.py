"""Triton's calls that register system shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from gateway.access.caller import current_caller
from gateway.requests.shared_memory import Owner, Region
from gateway.servicers.inference import SERVICE
from synergai.oip import shared_memory_pb2 as pb
from synergai.protocol import rpc
from synergai.protocol.grpcio.front import peer_of

if TYPE_CHECKING:
    from gateway.requests.shared_memory import SharedMemoryRegions
    from synergai.protocol.rpc import Context


class SharedMemoryServicer:
    """Serves the calls of ``inference.GRPCInferenceService`` about system shared memory."""

    def __init__(self, regions: SharedMemoryRegions) -> None:
        self._regions = regions

    def handler(self) -> rpc.Service:
        """Return the handler to add to a server."""
        calls = {
            "Status": rpc.unary(self.status, pb.SystemSharedMemoryStatusRequest),
            "Register": rpc.unary(self.register, pb.SystemSharedMemoryRegisterRequest),
            "Unregister": rpc.unary(self.unregister, pb.SystemSharedMemoryUnregisterRequest),
        }
        named = {f"SystemSharedMemory{name}": call for name, call in calls.items()}
        # There are no regions of GPUs. Clients remove all before they begin.
        unregister = rpc.unary(_unregister_none, pb.SystemSharedMemoryUnregisterRequest)
        named["CudaSharedMemoryUnregister"] = unregister
        return rpc.Service(SERVICE, named)

    async def status(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Context
    ) -> pb.SystemSharedMemoryStatusResponse:
        """Return one region of the caller, or all."""
        response = pb.SystemSharedMemoryStatusResponse()
        for each in self._regions.status(_owner(context), request.name):
            response.regions[each.name].MergeFrom(response.RegionStatus(**asdict(each)))
        return response

    async def register(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Context
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Add a region for the caller."""
        region = Region(request.name, request.key, request.offset, request.byte_size)
        self._regions.register(_owner(context), region)
        return pb.SystemSharedMemoryRegisterResponse()

    async def unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Remove one region of the caller, or all."""
        self._regions.unregister(_owner(context), request.name)
        return pb.SystemSharedMemoryUnregisterResponse()


async def _unregister_none(
    _request: pb.SystemSharedMemoryUnregisterRequest, _context: Context
) -> pb.SystemSharedMemoryUnregisterResponse:
    return pb.SystemSharedMemoryUnregisterResponse()


def _owner(context: Context) -> Owner:
    return Owner(current_caller().tenant, peer_of(context).user)
