"""Network namespaces for agents, whose links to the others send at limited rates; needs root."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


class Namespaces:
    """A namespace for each name, and a bridge between them.

    Args:
        subnet: number of the network 10.77.0.0/24, 10.77.1.0/24 and so on.

    Attributes:
        gateway: address of this machine.
        hosts: addresses by name.
    """

    def __init__(self, names: Sequence[str], subnet: int = 0) -> None:
        self.gateway = f"10.77.{subnet}.1"
        self.hosts = {name: f"10.77.{subnet}.{2 + place}" for place, name in enumerate(names)}
        self._bridge = f"hops{subnet}"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._set_up(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _set_up(self, stack: ExitStack) -> None:
        ip(f"link add {self._bridge} type bridge")
        stack.callback(ip, f"link del {self._bridge}")
        ip(f"addr add {self.gateway}/24 dev {self._bridge}")
        ip(f"link set {self._bridge} up")
        for name, host in self.hosts.items():
            space = self._space(name)
            ip(f"netns add {space}")
            stack.callback(ip, f"netns del {space}")
            ip(f"link add {space} type veth peer name eth0 netns {space}")
            # The kernel removes the links of a deleted namespace later.
            stack.callback(ip, f"link del {space}")
            ip(f"link set {space} master {self._bridge} up")
            ip(f"-n {space} addr add {host}/24 dev eth0")
            ip(f"-n {space} link set eth0 up")
            ip(f"-n {space} link set lo up")

    def limit(self, name: str, mbit_s: float) -> None:
        """Set the rate at which a host sends and receives."""
        space = self._space(name)
        limit = f"root tbf rate {mbit_s * 1e6:.0f}bit burst 64kb limit 8mb"
        tc(f"qdisc replace dev {space} {limit}")
        tc(f"-n {space} qdisc replace dev eth0 {limit}")

    def blackhole(self, name: str, other: str) -> None:
        """Let nothing that one host sends reach another one."""
        ip(f"-n {self._space(name)} route add blackhole {self.hosts[other]}/32")

    def prefix(self, name: str) -> list[str]:
        """Return the command that runs another one on a host."""
        return ["ip", "netns", "exec", self._space(name)]

    def _space(self, name: str) -> str:
        """Return the name of a namespace, and of the link to it."""
        return f"{self._bridge}-{name}"


def ip(command: str) -> None:
    """Run a command of iproute2."""
    subprocess.run(["ip", *command.split()], check=True)


def tc(command: str) -> None:
    """Run a command that sets the rate of a link."""
    subprocess.run(["tc", *command.split()], check=True)
