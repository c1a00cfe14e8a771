"""Network namespaces that are reached over a link of their own, which can be cut. Needs root."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

_INSIDE: Final = "SYNERGAI_TEST_NAMESPACE"


def enter_namespace() -> None:
    """Continue in a new network namespace, so that nothing of the machine's network changes."""
    if _INSIDE in os.environ:
        _ip("link set lo up")
    else:
        os.environ[_INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])


class Namespace:
    """A namespace behind a link; a context manager that removes it.

    Attributes:
        near: address of this end of the link.
        far: address of the other end, in the namespace.
        prefix: command that runs another one in the namespace.
    """

    def __init__(self, number: int) -> None:
        self._link = f"link{number}"
        self.near, self.far = f"10.9.{number}.1", f"10.9.{number}.2"
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.prefix = ["nsenter", "--target", str(self._holder.pid), "--net"]

    def __enter__(self) -> Self:
        own = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{self._holder.pid}/ns/net").readlink() == own:
            time.sleep(0.01)  # until `unshare` has begun
        _ip(f"link add {self._link} type veth peer name far netns {self._holder.pid}")
        _ip(f"addr add {self.near}/24 dev {self._link}")
        _ip(f"link set {self._link} up")
        _ip(f"addr add {self.far}/24 dev far", self.prefix)
        _ip("link set far up", self.prefix)
        _ip("link set lo up", self.prefix)
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait()

    def cut(self) -> None:
        """Let nothing pass: packets are lost."""
        _ip(f"link set {self._link} down")

    def mend(self) -> None:
        """Let everything pass again."""
        _ip(f"link set {self._link} up")


def _ip(command: str, prefix: list[str] | None = None) -> None:
    subprocess.run([*(prefix or []), "ip", *command.split()], check=True)
