"""node-redlock and lockkeeper with layout=plain on the same members."""

import os

from harness import done
from peer import Peer
from quorum import beside

PROGRAM = os.path.join(os.environ["MODULES"], "peer.js")

beside("node-redlock", lambda ports: Peer(["node", PROGRAM, *ports]), "layout=plain&value=hex")
done()
