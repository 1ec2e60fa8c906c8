#!/usr/bin/env bash
# Run a synchronous standby of the primary: copy the primary at the first start, and follow it.
# STANDBY_PASSWORD comes from the environment; PRIMARY and PRIMARY_PORT say where the primary is.
set -euo pipefail
at="host=${PRIMARY:-primary} port=${PRIMARY_PORT:-5432} user=standby application_name=standby"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    PGPASSWORD="$STANDBY_PASSWORD" pg_basebackup --dbname "$at" --pgdata "$PGDATA" \
        --write-recovery-conf --wal-method stream --checkpoint fast
    chmod 700 "$PGDATA"
fi
exec postgres "$@"
