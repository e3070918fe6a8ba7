"""Passes connections on to other ports, each byte some time later: as if the other end were far away.

As a program: `python relay.py --delay SECONDS OUTER:INNER…`; says `ready`, and runs until it is stopped. A connection
has up to `WINDOW` bytes on the way in each direction, more than the window that TCP has by itself on most hosts.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["relayed"]

CHUNK = 256 * 1024
WINDOW = 64 * 1024 * 1024
START_SECONDS = 20


@contextmanager
def relayed(ports: Mapping[int, int], delay: float, cores: str) -> Iterator[None]:
    """Listen at the outer ports meanwhile, in a process of its own. `delay`: seconds in each direction."""
    command = ["taskset", "-c", cores, sys.executable, __file__, "--delay", str(delay)]
    command += [f"{outer}:{inner}" for outer, inner in ports.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the relay ended: exit {process.wait(START_SECONDS)}")
            yield
        finally:
            process.kill()


async def _serve(inner: int, delay: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", inner, limit=CHUNK)
    ways = [
        asyncio.create_task(_pass_on(reader, far_writer, delay)),
        asyncio.create_task(_pass_on(far_reader, writer, delay)),
    ]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for way in ways:
        way.cancel()
    await asyncio.gather(*ways, return_exceptions=True)
    far_writer.close()
    writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW // CHUNK)

    async def deliver() -> None:
        while True:
            due, data = await under_way.get()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            if not data:
                return
            writer.write(data)
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    try:
        while data := await reader.read(CHUNK):
            await under_way.put((loop.time() + delay, data))
        await under_way.put((loop.time() + delay, b""))
        await delivering
    except ConnectionError:
        return  # either end is gone, so is the other
    finally:
        delivering.cancel()


async def _run(ports: Mapping[int, int], delay: float) -> None:
    for outer, inner in ports.items():
        await asyncio.start_server(partial(_serve, inner, delay), "127.0.0.1", outer, limit=CHUNK)
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Relay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, required=True)
    parser.add_argument("ports", nargs="+")
    given = parser.parse_args()
    pairs = (text.partition(":") for text in given.ports)
    asyncio.run(_run({int(outer): int(inner) for outer, _, inner in pairs}, given.delay))


if __name__ == "__main__":
    main()
