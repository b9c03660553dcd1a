"""See peers.py. Its argument is the server, with the path below which it locks."""

import sys

from kazoo.client import KazooClient
from kazoo.version import __version__

from turns import serve

client = KazooClient(hosts=sys.argv[1])
client.start()
serve(__version__, "its defaults", lambda name, _: client.Lock(f"/{name}"))
client.stop()
