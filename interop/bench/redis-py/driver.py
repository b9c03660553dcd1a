"""See peers.py. Its argument is the server."""

import sys

import hiredis
import redis

from turns import serve

TTL = 20

host, port = sys.argv[1].split(":")
# A connection that nobody else has is faster for one caller, and a pool for many.
single = redis.Redis(host=host, port=int(port), single_connection_client=True)
pool = redis.Redis(host=host, port=int(port))
settings = f"hiredis {hiredis.__version__}, ttl {TTL} s, a connection of its own for one caller; " \
    "else its defaults (asks again after 0.1 s)"
serve(redis.__version__, settings,
    lambda name, callers: (single if callers == 1 else pool).lock(name, timeout=TTL))
