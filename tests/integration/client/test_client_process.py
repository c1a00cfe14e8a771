"""Process-wide behaviour of the client: imports, connections and the protocol's stubs."""

import asyncio
import gc
import subprocess
import sys

import psutil

import synergai
from tests.integration.client.conftest import FakeGateway
from tests.waiting import until


def python(script: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'grpc', 'google.protobuf', 'typer'}"
    assert python(f"import synergai, sys; print({heavy} & set(sys.modules))") == "set()\n"


def test_jobs_need_no_numpy_and_no_stubs_of_the_protocol() -> None:
    script = (
        "import synergai.cli.jobs, synergai.client.client, sys\n"
        "print({'numpy', 'synergai.oip.inference_pb2'} & set(sys.modules))"
    )
    assert python(script) == "set()\n"


async def test_closed_client_has_no_connection(gateway: FakeGateway) -> None:
    port = int(gateway.address.rpartition(":")[2])

    def is_connected() -> bool:
        connections = psutil.Process().net_connections()
        return any(each.raddr[1:2] == (port,) for each in connections)

    gc.disable()
    try:
        async with synergai.Client(gateway.address) as client:
            await client.infer("identity", {"x": [1.0]})
            assert is_connected()
        await until(lambda: not is_connected(), 0.01)
    finally:
        gc.enable()


WITH_TRITON = """
import asyncio, sys
import tritonclient.grpc
import synergai

async def main():
    async with synergai.Client(sys.argv[1]) as client:
        job = await client.submit("identity", queries=1)
        print((await job.wait()).state.name)
        for attempt in (client.infer("identity", {"x": [1]}), client.engine("identity"),
                        client.ready(), anext(client.stream("identity", [{"x": [1]}]))):
            try:
                await attempt
            except synergai.NotSupported as error:
                print("tritonclient.grpc" in str(error))

asyncio.run(main())
"""


async def test_with_tritonclient_jobs_work_and_inference_is_rejected(
    gateway: FakeGateway,
) -> None:
    printed = await asyncio.to_thread(python, WITH_TRITON, gateway.address)
    assert printed == "SUCCEEDED\n" + 4 * "True\n"


IN_MANY_LOOPS = """
import asyncio, io, sys
import synergai

async def main():
    async with synergai.Client(sys.argv[1]) as client:
        await client.infer("identity", {"x": [1.0]})

sys.stderr = errors = io.StringIO()
for _ in range(20):
    asyncio.run(main())
print(errors.getvalue())
"""


async def test_client_leaves_nothing_for_a_loop_that_has_ended(gateway: FakeGateway) -> None:
    printed = await asyncio.to_thread(python, IN_MANY_LOOPS, gateway.address)
    assert printed == "\n"
