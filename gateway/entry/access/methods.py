"""Permissions that each call needs, for gRPC and HTTP alike.

A call that is not in it is refused. Where an engine or a tenant is concerned, the service checks
the same roles again for these.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.entry.access.caller import ANY, READERS, Caller, Role
from synergai.errors import PermissionDenied, Unauthenticated


class Permission(Struct, frozen=True):
    """The permission that a call needs: one of some roles, for the engine if there is one.

    Without roles, any authenticated caller may make it, and anonymous ones with any grant.
    """

    roles: tuple[Role, ...] = ()
    engine: str | None = None
    public: bool = False

    def check(self, caller: Caller) -> None:
        if self.public:
            return
        if self.roles:
            caller.check(*self.roles, engine=self.engine)
        elif caller.anonymous and not caller.has_grants:
            raise Unauthenticated(
                "this needs credentials: send them, such as a token in the header "
                "'authorization: Bearer TOKEN', or in SYNERGAI_TOKEN"
            )


PUBLIC: Final = Permission(public=True)
KNOWN: Final = Permission()
_READ: Final = Permission(READERS)
_OBSERVE: Final = Permission((Role.OBSERVE,))
_OBSERVE_ALL: Final = Permission((Role.OBSERVE,), ANY)
"""For what shows all engines together: a pattern for some of them does not match ``*``."""
_INFER: Final = Permission((Role.INFER,))
_SUBMIT: Final = Permission((Role.SUBMIT,))
_FOLLOW: Final = Permission((Role.SUBMIT, Role.OBSERVE))
_CANCEL: Final = Permission((Role.SUBMIT, Role.OPERATE))
_OPERATE: Final = Permission((Role.OPERATE,))
_INSPECT: Final = Permission((Role.OBSERVE, Role.OPERATE))

_OIP: Final = "/inference.GRPCInferenceService"
METHODS: Final = {
    "/grpc.health.v1.Health/Check": PUBLIC,
    "/grpc.health.v1.Health/Watch": PUBLIC,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": KNOWN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": KNOWN,
    f"{_OIP}/ServerLive": PUBLIC,
    f"{_OIP}/ServerReady": PUBLIC,
    f"{_OIP}/ServerMetadata": KNOWN,
    f"{_OIP}/ModelReady": _READ,
    f"{_OIP}/ModelMetadata": _READ,
    f"{_OIP}/ModelConfig": _READ,
    f"{_OIP}/ModelStatistics": _READ,
    f"{_OIP}/ModelInfer": _INFER,
    f"{_OIP}/ModelStreamInfer": _INFER,
    f"{_OIP}/RepositoryIndex": _READ,
    f"{_OIP}/RepositoryModelLoad": _OPERATE,
    f"{_OIP}/RepositoryModelUnload": _OPERATE,
    "/synergai.v1.Jobs/Submit": _SUBMIT,
    "/synergai.v1.Jobs/Get": _FOLLOW,
    "/synergai.v1.Jobs/Watch": _FOLLOW,
    "/synergai.v1.Jobs/List": _FOLLOW,
    "/synergai.v1.Jobs/Cancel": _CANCEL,
    "/synergai.v1.Jobs/Upload": _SUBMIT,
    "/synergai.v1.Jobs/Results": _FOLLOW,
    "/synergai.v1.Fleet/ListWorkers": _OBSERVE,
    "/synergai.v1.Fleet/Explain": _READ,
    "/synergai.v1.Fleet/ListDeployments": _OBSERVE,
    "/synergai.v1.Fleet/GetDictionary": _OBSERVE,
    "/synergai.v1.Fleet/ForgetEngine": _OPERATE,
    "/synergai.v1.Store/Open": _OPERATE,
    "/synergai.v1.Store/Upload": _OPERATE,
    "/synergai.v1.Store/Publish": _OPERATE,
    "/synergai.v1.Store/Place": _OPERATE,
    "/synergai.v1.Store/Remove": _OPERATE,
    "/synergai.v1.Store/List": _INSPECT,
    "/synergai.v1.Fleet/GetVersionPolicy": _OBSERVE,
    "/synergai.v1.Fleet/SetVersionPolicy": _OPERATE,
    **{
        f"{_OIP}/{kind}SharedMemory{call}": KNOWN
        for kind in ("System", "Cuda")
        for call in ("Status", "Register", "Unregister")
    },
    f"{_OIP}/TraceSetting": KNOWN,
    f"{_OIP}/LogSettings": KNOWN,
}
"""Calls of the clients' port."""

_MODEL: Final = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
ROUTES: Final = {
    "/": PUBLIC,
    "/openapi.json": KNOWN,
    "/healthz": PUBLIC,
    "/metrics": _OBSERVE_ALL,
    # The page's files, which hold no data: a browser loads them without credentials.
    "/fleet": PUBLIC,
    "/fleet/{file}": PUBLIC,
    "/fleet/events": _OBSERVE_ALL,
    "/fleet/explain/{id}": _OBSERVE_ALL,
    "/v2": KNOWN,
    "/v2/": KNOWN,
    "/v2/health/live": PUBLIC,
    "/v2/health/ready": PUBLIC,
    "/v2/models/stats": _READ,
    **dict.fromkeys(_MODEL, _READ),
    **{f"{model}/{call}": _READ for model in _MODEL for call in ("ready", "config", "stats")},
    **{f"{model}/infer": _INFER for model in _MODEL},
    "/v2/repository/index": _READ,
    "/v2/repository/models/{name}/load": _OPERATE,
    "/v2/repository/models/{name}/unload": _OPERATE,
    "/v2/systemsharedmemory/{rest:path}": KNOWN,
    "/v2/cudasharedmemory/{rest:path}": KNOWN,
    "/v2/trace/setting": KNOWN,
    "/v2/models/{name}/trace/setting": KNOWN,
    "/v2/models/{name}/generate": KNOWN,
    "/v2/models/{name}/generate_stream": KNOWN,
    "/v2/logging": KNOWN,
}
"""Routes of the HTTP port, with any method."""


def check_call(permission: Permission | None, caller: Caller) -> None:
    """Check that a caller may make a call; one without a permission is refused."""
    if permission is None:
        KNOWN.check(caller)
        raise PermissionDenied("this call is not served: no role allows it")
    permission.check(caller)
