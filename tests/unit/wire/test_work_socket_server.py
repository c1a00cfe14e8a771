"""Limit of sockets that have not presented a connection id."""

from synergai.errors import Unavailable
from synergai.wire.work_socket import MAX_UNAUTHENTICATED, WorkSocket, WorkSocketServer


def present_id(socket: WorkSocket, connection_id: bytes = b"an-id") -> None:
    data = len(connection_id).to_bytes(4, "little") + connection_id
    socket.get_buffer(-1)[: len(data)] = data
    socket.buffer_updated(len(data))


async def test_oldest_socket_without_an_id_makes_room_for_a_new_one() -> None:
    authenticated: list[str] = []
    server = WorkSocketServer(lambda connection_id, _: authenticated.append(connection_id))
    agent, *idle = [server._accept() for _ in range(MAX_UNAUTHENTICATED)]
    present_id(agent)
    newer = [server._accept() for _ in range(3)]
    assert authenticated == ["an-id"]
    assert not agent.closed.done()
    assert [socket.closed.done() for socket in idle[:3]] == [True, True, False]
    assert isinstance(idle[0].closed.exception(), Unavailable)
    for socket in (agent, *idle, *newer):
        socket.close()
