"""Kubernetes on this machine: a control plane and two nodes, in namespaces of their own.

Nothing outside of the namespaces and of one folder changes. The programs are taken from PATH and
from the folder that the environment variable KUBERNETES_BIN names. A cluster of Kubernetes 1.20 has
no DNS server and no load balancers; dnsmasq and `publish` stand in for them.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final, Self

from tests.waiting import wait_until

CNI: Final = Path("/usr/lib/cni")
"""Network plugins of Debian's containernetworking-plugins."""
PATH: Final = os.pathsep.join(filter(None, (os.environ.get("KUBERNETES_BIN"), os.environ["PATH"])))
PROGRAMS: Final = (
    *("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"),
    *("kubectl", "etcd", "containerd", "ctr", "runc", "conntrack", "iptables", "dnsmasq"),
    *("openssl", "unshare", "nsenter", "ip"),
)
NODES: Final = {"n1": "10.1.1.1", "n2": "10.1.1.2"}
_SERVER: Final = NODES["n1"]
BALANCER: Final = "10.1.2.1"
"""Address at which a Service is published to machines outside of the cluster."""
_USERS: Final = {
    "admin": 'admin,"system:masters"',
    "scheduler": "system:kube-scheduler",
    "proxy": 'system:kube-proxy,"system:node-proxier"',
    **{name: f'system:node:{name},"system:nodes"' for name in NODES},
}
_PREPARE: Final = """
set -e
for each in /run /var/lib /var/log; do mount -t tmpfs none $each; done
mkdir -p /var/lib/synergai/models
mount --bind {models} /var/lib/synergai/models
ip link set lo up
ip link add cni0 type bridge
ip addr add {first}/24 dev cni0
ip addr add {second}/24 dev cni0
ip link set cni0 up
ip route add default via {first}
echo 1 > /proc/sys/net/ipv4/ip_forward
touch {folder}/prepared
exec sleep infinity
"""
_CONTAINERD: Final = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
disable_apparmor = true
sandbox_image = "{pause}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni}"
conf_dir = "{folder}/cni"
"""
_NETWORK: Final = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.1.1.0/24", "rangeStart": "10.1.1.10"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


def missing_programs(*more: str) -> list[str]:
    """Return the programs that the cluster, or a test with `more` of them, lacks."""
    lacking = [name for name in (*PROGRAMS, *more) if shutil.which(name, path=PATH) is None]
    return lacking if CNI.is_dir() else [*lacking, str(CNI)]


class Cluster:
    """A cluster whose pods come from images that are imported.

    Args:
        folder: its files and logs; the path has to be short, for sockets.
        models: the directory of models of both nodes.
        pause: image of the container that holds a pod's namespaces.
    """

    def __init__(self, folder: Path, models: Path, pause: str) -> None:
        self.folder = folder
        self._models = models
        self._pause = pause
        self._processes = ExitStack()
        self._ending: list[subprocess.Popen[bytes]] = []
        self._network: list[str] = []
        self._inside: list[str] = []

    def __enter__(self) -> Self:
        with ExitStack() as on_failure:
            on_failure.push(self._processes)
            self._create_namespaces()
            self._start_control_plane()
            for number, name in enumerate(NODES):
                self._start_node(name, number)
            wait_until(lambda: self.kubectl("get", "nodes").count(" Ready ") == len(NODES))
            wait_until(lambda: "default" in self.kubectl("get", "serviceaccounts"))
            on_failure.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, check: bool = True
    ) -> str:
        """Run a program in the cluster's network, outside of its pods; return its output."""
        done = subprocess.run(
            [*self._network, "--", *command],
            env=self.environment | dict(environment or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def popen(self, *command: str, output: IO[str] | int) -> subprocess.Popen[str]:
        """Start a program in the cluster's network, outside of its pods."""
        return subprocess.Popen(
            [*self._network, "--", *command],
            env=self.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": PATH,
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.folder / "admin.kubeconfig"),
        }

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        return self.run("kubectl", *arguments, check=check)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "--output", "json"))

    def apply(self, *objects: object) -> None:
        path = self.folder / "objects.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        self.kubectl("apply", "--validate=ignore", "--filename", str(path))

    def import_image(self, archive: Path) -> None:
        """Make the image of an OCI archive available on both nodes."""
        for name in NODES:
            self._ctr(name, "import", str(archive))

    def tag_image(self, image: str, new: str) -> None:
        """Give an image another name on both nodes."""
        for name in NODES:
            self._ctr(name, "tag", "--force", image, new)

    def name_service(self, service: str) -> str:
        """Let pods resolve the name of a Service; return its address."""
        address: str = self.get("service", service)["spec"]["clusterIP"]
        line = f"{address} {service}.default.svc.cluster.local\n"
        (self.folder / "hosts" / service).write_text(line)
        return address

    def publish(self, service: str) -> None:
        """Do as a load balancer: publish a Service of that type at `BALANCER`."""
        status = {"status": {"loadBalancer": {"ingress": [{"ip": BALANCER}]}}}
        patch = ["--type", "merge", "--patch", json.dumps(status)]
        self.kubectl("patch", "service", service, "--subresource", "status", *patch)

    def _create_namespaces(self) -> None:
        first, second = NODES.values()
        script = _PREPARE.format(
            models=self._models, first=first, second=second, folder=self.folder
        )
        own = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        command = [*own, "--propagation", "private", "bash", "-c", script]
        unshare = subprocess.Popen(command)
        self._ending.append(unshare)
        self._processes.callback(self._end)
        wait_until((self.folder / "prepared").exists)
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text()
        self._network = ["nsenter", "--target", children.split()[0], "--net"]
        self._inside = [*self._network, "--mount", "--pid", "--"]

    def _start(self, program: str, *options: str, log: str = "") -> None:
        """Start a process in all of the namespaces, which ends with them."""
        with (self.folder / f"{log or program}.log").open("w") as output:
            process = subprocess.Popen(
                [*self._inside, program, *options],
                env=self.environment,
                stdout=output,
                stderr=output,
            )
        self._ending.append(process)

    def _start_control_plane(self) -> None:
        folder = self.folder
        (folder / "hosts").mkdir()
        for command in (
            ["openssl", "genrsa", "-out", "sa.key", "2048"],
            ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
        ):
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        rows = []
        for user, names in _USERS.items():
            name, _, groups = names.partition(",")
            rows.append(f"{user}-token,{name},{user}{groups and ','}{groups}\n")
            self._write_kubeconfig(user)
        (folder / "tokens.csv").write_text("".join(rows))
        at = "http://127.0.0.1:2379"
        own = [f"--data-dir={folder}/etcd", "--listen-peer-urls=http://127.0.0.1:2380"]
        own += [f"--listen-client-urls={at}", f"--advertise-client-urls={at}"]
        self._start("etcd", "--unsafe-no-fsync", *own)
        self._start(
            "kube-apiserver",
            f"--etcd-servers={at}",
            f"--advertise-address={_SERVER}",
            f"--cert-dir={folder}/certificates",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={folder}/sa.key",
            f"--service-account-key-file={folder}/sa.pub",
            "--kubelet-preferred-address-types=InternalIP",
        )
        wait_until(lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok")
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={folder}/admin.kubeconfig",
            f"--service-account-private-key-file={folder}/sa.key",
            f"--root-ca-file={folder}/certificates/apiserver.crt",
            "--leader-elect=false",
        )
        scheduler = [f"--kubeconfig={folder}/scheduler.kubeconfig", "--leader-elect=false"]
        self._start("kube-scheduler", *scheduler)
        dns = ["--no-hosts", "--no-resolv", "--local=/cluster.local/"]
        dns += [f"--hostsdir={folder / 'hosts'}", "--user=root"]
        self._start("dnsmasq", "--keep-in-foreground", "--log-facility=-", *dns)

    def _start_node(self, name: str, number: int) -> None:
        folder = self.folder / name
        (folder / "cni").mkdir(parents=True)
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(_NETWORK))
        (folder / "containerd.toml").write_text(
            _CONTAINERD.format(folder=folder, pause=self._pause, cni=CNI)
        )
        self._start("containerd", f"--config={folder}/containerd.toml", log=f"{name}-containerd")
        wait_until((folder / "containerd.sock").exists)
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "port": 10250 + number * 100,
            "healthzPort": 10248 + number * 100,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "authentication": {"anonymous": {"enabled": True}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDNS": [_SERVER],
            "clusterDomain": "cluster.local",
            "evictionHard": {"memory.available": "0%"},
        }
        (folder / "kubelet.json").write_text(json.dumps(kubelet))
        self._start(
            "kubelet",
            f"--config={folder}/kubelet.json",
            f"--kubeconfig={self.folder}/{name}.kubeconfig",
            f"--hostname-override={name}",
            f"--node-ip={NODES[name]}",
            f"--root-dir={folder}/kubelet",
            f"--cert-dir={folder}/certificates",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{folder}/containerd.sock",
            log=f"{name}-kubelet",
        )
        if not number:  # both nodes share the network
            proxy = {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "clientConnection": {"kubeconfig": str(self.folder / "proxy.kubeconfig")},
                "hostnameOverride": name,
                "conntrack": dict.fromkeys(("tcpEstablishedTimeout", "tcpCloseWaitTimeout"), "0s")
                | {"maxPerCore": 0},
            }
            (folder / "proxy.json").write_text(json.dumps(proxy))
            self._start("kube-proxy", f"--config={folder}/proxy.json")

    def _write_kubeconfig(self, user: str) -> None:
        server = {"server": f"https://{_SERVER}:6443", "insecure-skip-tls-verify": True}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": server}],
            "users": [{"name": user, "user": {"token": f"{user}-token"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": user}}],
            "current-context": "here",
        }
        (self.folder / f"{user}.kubeconfig").write_text(json.dumps(content))

    def _ctr(self, node: str, *arguments: str) -> None:
        socket = self.folder / node / "containerd.sock"
        own = ["ctr", "--address", str(socket), "--namespace", "k8s.io", "images"]
        subprocess.run(
            [*self._inside, *own, *arguments],
            env=self.environment,
            check=True,
            capture_output=True,
        )

    def _end(self) -> None:
        """End the first process of the namespaces, and with it all others."""
        self._ending[0].kill()
        for process in self._ending:
            process.wait()
