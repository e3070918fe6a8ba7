"""TLS and an account: `python secured_client.py BOOTSTRAP CA_FILE USER PASSWORD_FILE` names the cluster's nodes."""

import asyncio
import sys
from pathlib import Path

from ingestd import AuthenticationFailed, Client, ClientSettings, ConnectionSettings, Scram, Secret, TlsSettings


async def main(bootstrap: str, ca_file: str, user: str, password_file: str) -> None:
    """Certificate and name of each broker are verified, and that it knows the password too, which is never sent."""
    security = ConnectionSettings(
        tls=TlsSettings(ca_file=Path(ca_file)),
        sasl=Scram(user, Secret(file=Path(password_file))),
    )
    async with Client([bootstrap], ClientSettings(security)) as client:
        try:
            metadata = await client.metadata.refresh((), timeout=10)
        except AuthenticationFailed as refused:
            print(f"refused: {refused}")
            return
        for node in metadata.nodes.values():
            print(f"node {node.id} at {node.host}:{node.port}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
