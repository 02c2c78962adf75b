#!/bin/bash
# A PostgreSQL that listens at a Unix socket alone; its files are below /data, for as long as the demo runs.
set -euo pipefail
[ -e /data/shop/PG_VERSION ] || initdb -D /data/shop -A trust -U shop --no-sync >/dev/null
exec postgres -D /data/shop -k /data -c listen_addresses= -c dynamic_shared_memory_type=mmap -c fsync=off
