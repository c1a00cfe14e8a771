"""Open connections of HTTP/2 to a gRPC port, and send nothing on them.

    python -m tests.acceptance.idle_connections HOST:PORT CONNECTIONS SECONDS

Prints how many are open at the end, and how long it took to open them, as JSON.
"""

import contextlib
import json
import resource
import sys
import time

from tests import http2


def main(address: str, connections: int, seconds: float) -> None:
    """Open the connections, and wait."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(connections):
            with contextlib.suppress(OSError):  # the gateway closes those beyond its limit
                opened.append(stack.enter_context(http2.Http2Connection(address)))
        open_s = time.monotonic() - began
        time.sleep(seconds)
        open_now = sum(not connection.is_closed() for connection in opened)
        print(json.dumps({"open": open_now, "open_s": round(open_s, 1)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
