"""Connections that take time: a process hands on what comes to a port, so much later (for `scale.py`)."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen

LOCAL = "127.0.0.1"


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


@contextmanager
def delayed(port: int, seconds: float) -> Iterator[int]:
    """Yield a port from which all goes to another one, and what that answers back, each so much later."""
    command = [sys.executable, __file__, str(port), str(seconds)]
    with Popen(command, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def hand_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, seconds: float) -> None:
    """Write what is read, in its order, each piece so much later; then the end as well."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(due - loop.time())
            if not piece:
                return
            sink.write(piece)
            await sink.drain()

    with suppress(ConnectionError):
        writing = asyncio.create_task(write())
        while True:
            piece = await source.read(1 << 20)
            pieces.put_nowait((loop.time() + seconds, piece))
            if not piece:
                break
        await writing
    sink.close()


async def serve(port: int, seconds: float) -> None:
    """Listen at a free port, whose number is printed, until the process ends."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(LOCAL, port)
        await asyncio.gather(hand_on(reader, back, seconds), hand_on(there, writer, seconds))

    server = await asyncio.start_server(accept, LOCAL, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
