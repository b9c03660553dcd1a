# Python for the drivers here, with the libraries of both.
source "$(dirname "${BASH_SOURCE[0]}")/../venv.sh" bench-python \
    redis==8.1.0 hiredis==3.5.0 kazoo==2.11.0
