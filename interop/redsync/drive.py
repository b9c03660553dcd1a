"""redsync and lockkeeper with layout=plain&value=base64 on the same members."""

import os

from harness import done
from peer import Peer
from quorum import beside

beside("redsync", lambda ports: Peer([os.environ["REDSYNC"], *ports]), "layout=plain&value=base64")
done()
