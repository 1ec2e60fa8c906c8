#!/usr/bin/env bash
# Prepare a new primary for a ledger. The image of PostgreSQL runs this once, when the database is made.
# OWNER_PASSWORD, SERVER_PASSWORD and STANDBY_PASSWORD come from the environment.
set -euo pipefail
psql --username "${POSTGRES_USER:-postgres}" --dbname postgres --quiet --no-psqlrc -v ON_ERROR_STOP=1 \
    -v owner="$OWNER_PASSWORD" -v server="$SERVER_PASSWORD" -v standby="$STANDBY_PASSWORD" <<'SQL'
CREATE ROLE owner LOGIN PASSWORD :'owner';
CREATE ROLE counterveil LOGIN PASSWORD :'server';
CREATE ROLE standby LOGIN REPLICATION PASSWORD :'standby';
CREATE DATABASE ledger OWNER owner;
GRANT pg_read_all_stats TO owner, counterveil;
\connect ledger
ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT USAGE ON SCHEMAS TO counterveil;
ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO counterveil;
-- From the next start on: until then no standby is there to wait for.
ALTER SYSTEM SET synchronous_standby_names = 'standby';
SQL
echo "host replication standby all scram-sha-256" >> "$PGDATA/pg_hba.conf"
