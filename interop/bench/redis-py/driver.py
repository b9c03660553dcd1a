"""See peers.py. Its argument is the server."""

import sys

import hiredis
import redis

from turns import serve

TTL = 20

host, port = sys.argv[1].split(":")
client = redis.Redis(host=host, port=int(port))
settings = f"hiredis {hiredis.__version__}, ttl {TTL} s; else its defaults (asks again after 0.1 s)"
serve(redis.__version__, settings, lambda name: client.lock(name, timeout=TTL))
