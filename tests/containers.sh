#!/usr/bin/env bash
# Run deploy/ on this machine without a container daemon: image, PostgreSQL with standbys, proxies with TLS, a question.
#
#     tests/containers.sh ROOT        as root, with PostgreSQL and nginx of Debian, and this repository's .venv
#
# ROOT is the root folder of an image that deploy/Containerfile made, for example by
#     buildah bud --isolation chroot --file deploy/Containerfile --tag counterveil .
#     ROOT=$(buildah mount "$(buildah from counterveil)")
# The image runs as compose.yaml says: read-only but for state, cache and /tmp, as user 10001, without capabilities.
# Not tried here: compose itself, its networks, and the images of PostgreSQL and nginx. Operator N is at 127.0.0.N.
set -euo pipefail
root=$(realpath "$1")
cd "$(dirname "$0")/.."
repository=$PWD
work=$(mktemp -d)
chmod 755 "$work"
programs=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
started=()
finish() {
    for pid in "${started[@]}"; do kill "$pid" 2> /dev/null || true; done
    wait
    rm -rf "$work"
}
trap finish EXIT
say() { echo "--- $*"; }

# What the image's command runs as: arguments are the operator's number, and those of counterveil.
inside() {
    local n=$1
    shift
    unshare --mount --pid --fork --kill-child bash -euc '
        root=$1 work=$2 n=$3; shift 3
        mount --bind "$root" "$root"
        for place in var/lib/counterveil:state var/cache/counterveil:cache etc/counterveil:files; do
            mkdir -p "$root/${place%%:*}"; mount --bind "$work/$n/${place##*:}" "$root/${place%%:*}"
        done
        mount -t tmpfs tmpfs "$root/tmp"; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"
        mount -o remount,bind,ro "$root"; mount -o remount,bind,ro "$root/etc/counterveil"
        exec env --ignore-environment PATH=/srv/counterveil/bin:/usr/local/bin:/usr/bin:/bin HOME=/var/lib/counterveil \
            NUMBA_CACHE_DIR=/var/cache/counterveil PYTHONDONTWRITEBYTECODE=1 SSL_CERT_FILE=/etc/counterveil/ca.pem \
            COUNTERVEIL_SERVE_LEDGER="postgresql://counterveil:server$n@127.0.0.$n/ledger" \
            /usr/sbin/chroot "$root" /usr/bin/setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs \
            --inh-caps=-all --bounding-set=-all "$@"
    ' inside "$root" "$work" "$n" "$@"
}

as_postgres() { runuser -u postgres -- env PATH="$programs:/usr/bin:/bin" "$@"; }

# A primary and its standby, by the scripts of deploy/postgres. Debian's programs stand for the image's.
database() {
    local n=$1 at=$work/$1/postgres
    install -d -o postgres -m 700 "$at" "$at/socket"
    echo "admin$n" > "$at/password" && chown postgres "$at/password"
    as_postgres initdb -D "$at/primary" -U postgres --auth-local=trust --auth-host=scram-sha-256 \
        --pwfile="$at/password" --data-checksums > /dev/null
    echo "host all all all scram-sha-256" >> "$at/primary/pg_hba.conf"
    as_postgres pg_ctl -D "$at/primary" -w -s -l "$at/log" -o "-c listen_addresses='' -k $at/socket" start
    as_postgres env PGDATA="$at/primary" PGHOST="$at/socket" OWNER_PASSWORD="owner$n" SERVER_PASSWORD="server$n" \
        STANDBY_PASSWORD="standby$n" bash "$repository/deploy/postgres/primary.sh"
    as_postgres pg_ctl -D "$at/primary" -w -s stop
    as_postgres env PGDATA="$at/primary" postgres -c listen_addresses="127.0.0.$n" -c port=5432 -k "$at/socket" \
        2>> "$at/log" &
    started+=($!)
    until as_postgres pg_isready -q -h "127.0.0.$n"; do sleep 0.2; done
    as_postgres env PGDATA="$at/standby" PRIMARY="127.0.0.$n" STANDBY_PASSWORD="standby$n" \
        bash "$repository/deploy/postgres/standby.sh" -c listen_addresses="127.0.0.$n" -c port=5433 -k "$at/socket" \
        2>> "$at/log" &
    started+=($!)
    until as_postgres pg_isready -q -h "127.0.0.$n" -p 5433; do sleep 0.2; done
}

say "keys, a bundle of 20,000 rows, terms for servers that work together"
PATH=$repository/.venv/bin:$PATH
cd "$work"
mkdir -p 1/{state,cache,files,tls} 2/{state,cache,files,tls}
python -c '
import random
print("age,income,debt,verdict")
for _ in range(20_000): print(random.randint(18, 80), random.randint(0, 90), random.randint(0, 50), random.randint(0, 1), sep=",")
' > people.csv
counterveil keygen keys > /dev/null
counterveil schema infer people.csv --exclude verdict -o people.toml > /dev/null
counterveil build people.csv --schema people.toml --accepted verdict --key keys/issuer.key -o people.bundle > /dev/null
for n in 1 2; do
    counterveil keygen --operator "operator-$n" > /dev/null
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=operator \
        -addext "subjectAltName=IP:127.0.0.$n" -keyout $n/tls/tls.key -out $n/tls/tls.pem 2> /dev/null
done
cat 1/tls/tls.pem 2/tls/tls.pem > ca.pem
counterveil terms people.bundle --key keys/issuer.key --service containers -o people.terms \
    --server https://127.0.0.1:8443 operator-1/server.pub --server https://127.0.0.2:8443 operator-2/server.pub \
    --scheme table/sealed --protocol joint > /dev/null
for n in 1 2; do
    cp people.bundle people.terms "operator-$n/server.key" ca.pem $n/files/
    cat > $n/files/serve.toml <<TOML
server = $n
key = "/etc/counterveil/server.key"
terms = "/etc/counterveil/people.terms"
common-key = "/var/lib/counterveil/keys"
host = "127.0.0.$n"
TOML
    chown -R 10001:10001 $n/files $n/state $n/cache
    chmod 700 $n/state $n/cache
done

for n in 1 2; do
    say "operator $n: PostgreSQL with its standby, a ledger, the server, the proxy"
    database $n
    inside $n sh -c 'cd /var/lib/counterveil && umask 077 && mkdir keys && cat > keys/common.key' < keys/common.key
    inside $n counterveil ledger new "postgresql://owner:owner$n@127.0.0.$n/ledger" --server $n
    inside $n counterveil serve /etc/counterveil/people.bundle --config /etc/counterveil/serve.toml 2> $n/log &
    started+=($!)
    echo "127.0.0.$n server" > $n/hosts
    sed "s/listen 8443 ssl/listen 127.0.0.$n:8443 ssl/; s#/tmp/#$work/$n/#" "$repository/deploy/nginx.conf" > $n/nginx.conf
    chown -R www-data $n/tls
done
for n in 1 2; do
    unshare --mount bash -euc 'mount --bind "$1/hosts" /etc/hosts; mkdir -p /etc/nginx; mount -t tmpfs tmpfs /etc/nginx
        cp -a "$1/tls" "$1/nginx.conf" /etc/nginx/; chmod 755 /etc/nginx; chown www-data "$1"
        exec setpriv --reuid www-data --regid www-data --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \
            nginx -c /etc/nginx/nginx.conf -g "daemon off;"' proxy "$work/$n" 2>> $n/proxy.log &
    started+=($!)
    for _ in $(seq 120); do
        curl -sf --cacert ca.pem "https://127.0.0.$n:8443/readyz" > /dev/null && break
        sleep 0.5
    done
    curl -sf --cacert ca.pem "https://127.0.0.$n:8443/readyz" || { cat $n/log $n/proxy.log; exit 1; }
done

say "the image's health check, at server 1"
inside 1 python -c "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4).status)"
say "what the server may do"
inside 1 bash -c 'id; grep -E "CapEff|CapBnd|NoNewPrivs" /proc/self/status; touch /srv/x /usr/x /etc/counterveil/x' || true
say "through the proxy: metrics are hidden, and the health is not"
for path in metrics healthz; do
    curl -s -o /dev/null -w "/$path %{http_code}\n" --cacert ca.pem "https://127.0.0.1:8443/$path"
done
say "a question through both proxies: an upload to each server, and a WebSocket between them"
counterveil ticket issue --key keys/issuer.key --terms people.terms --count 2 -o tickets > /dev/null
counterveil doctor --terms people.terms --ca ca.pem || true
counterveil ask --terms people.terms --ca ca.pem --operator operator-2/server.pub --tickets tickets \
    --set age=30 --set income=20 --set debt=40
say "the ledgers"
for n in 1 2; do inside $n counterveil ledger status "postgresql://owner:owner$n@127.0.0.$n/ledger"; done
grep -h '"/v1/attempt"' 1/log | tail -1
