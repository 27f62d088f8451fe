#!/usr/bin/env bash
# A real cluster of two Ray nodes on this machine, with an MLflow server on Postgres, all of it on loopback only and
# behind a token; for development and the tests. `down` ends exactly the processes that `up` started.
#
#   cluster/local.sh up      start it in $NBSR_CLUSTER_FOLDER (.nbsr-cluster by default), say how to use it
#   cluster/local.sh env     print what to export: source <(cluster/local.sh env)
#   cluster/local.sh status  say what runs
#   cluster/local.sh start|kill PART   one part alone: postgres, mlflow, head or worker (kill: without warning)
#   cluster/local.sh down    end it; results, runs and logs stay in the folder
#
# NBSR_PYTHON: interpreter with nbsr in it. NBSR_NODE_CPUS: CPUs that each node claims (1).
# NBSR_PATIENCE: seconds in which each part must answer (300); a machine that is busy with other things needs more.
set -euo pipefail
umask 077

folder=$(realpath -m "${NBSR_CLUSTER_FOLDER:-.nbsr-cluster}")
python=$(realpath -s "${NBSR_PYTHON:-$(command -v python3)}")
cpus=${NBSR_NODE_CPUS:-1}
patience=${NBSR_PATIENCE:-300}
settings=$folder/settings.sh
parts=(postgres mlflow head worker)

fail() { echo "$*" >&2; exit 2; }

# Postgres refuses to run as root: then it runs as the user that Debian's package made for it.
postgres_programs() {
    for place in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin; do
        if [ -x "$place/initdb" ]; then echo "$place"; fi
    done | sort -V | tail -1
}
as_postgres() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }

# ---- processes: each part is the leader of a session of its own, and what it starts stays in that session or, as a job's
# driver, which gets a session of its own, carries the part's mark in its environment

pid_file() { echo "$folder/pids/$1"; }
# A pid alone may have been given to somebody else in the meantime: the time of its start goes with it.
birth() { cut -d' ' -f22 "/proc/$1/stat" 2>/dev/null || true; }
session_of() {
    local pid born
    [ -s "$(pid_file "$1")" ] || return 1
    read -r pid born < "$(pid_file "$1")"
    if [ -e "/proc/$pid" ] && [ "$(birth "$pid")" != "$born" ]; then return 1; fi
    echo "$pid"
}
mark() { echo "NBSR_CLUSTER_PART=$folder:$1"; }
members() {
    local leader
    leader=$(session_of "$1") || return 0
    { ps -o pid= -s "$leader" | tr -d ' '
      grep -lzxF -e "$(mark "$1")" /proc/[0-9]*/environ 2> /dev/null | cut -d/ -f3; } | sort -u || true
}
alive() { [ -n "$(members "$1")" ]; }

# Python takes modules from the folder that it is started in: parts start in ours, and -P keeps all else from doing so.
launch() { # PART COMMAND...: in the background, in a new session; its pid is kept
    local part=$1; shift
    mkdir -p "$folder/pids" "$folder/logs"
    rm -f "$(pid_file "$part")" "$folder/logs/$part.log"
    env -C "$folder" "$(mark "$part")" setsid --fork bash -c 'echo "$$ $(cut -d" " -f22 /proc/$$/stat)" > "$1.new"; mv "$1.new" "$1"; shift; exec "$@"' \
        _ "$(pid_file "$part")" "$@" < /dev/null >> "$folder/logs/$part.log" 2>&1
    for _ in $(seq 100); do [ -s "$(pid_file "$part")" ] && return; sleep 0.1; done
    fail "$part did not start; see $folder/logs/$part.log"
}

end() { # PART: asked first, then killed
    local pid leader
    leader=$(session_of "$1") || { rm -f "$(pid_file "$1")"; return 0; }
    [ "$1" = postgres ] && kill -INT "$leader" 2>/dev/null || kill -TERM "$leader" 2>/dev/null || true
    for _ in $(seq 100); do alive "$1" || break; sleep 0.2; done
    for pid in $(members "$1"); do kill -KILL "$pid" 2>/dev/null || true; done
    rm -f "$(pid_file "$1")"
}

kill_now() { # PART: as if its machine had lost power
    local pid
    for _ in $(seq 50); do # whoever is killed late may have started another meanwhile
        alive "$1" || break
        for pid in $(members "$1"); do kill -KILL "$pid" 2>/dev/null || true; done
        sleep 0.1
    done
    rm -f "$(pid_file "$1")"
}

until_true() { # PART WHAT COMMAND...: wait for it as long as the part lives
    local part=$1 what=$2; shift 2
    local deadline=$((SECONDS + patience))
    until "$@" > /dev/null 2>&1; do
        alive "$part" || fail "$what has ended; see $folder/logs/$part.log"
        [ "$SECONDS" -lt "$deadline" ] || fail "$what does not answer after $patience s; see $folder/logs/$part.log"
        sleep 0.5
    done
}

# Sockets that listen on a port, by inode, from the kernel's own list: no interpreter has to be started for it.
sockets() {
    awk -v port="$(printf ':%04X' "$1")" '$4 == "0A" && substr($2, length($2) - 4) == port { print $10 }' \
        /proc/net/tcp /proc/net/tcp6 2> /dev/null
}
# Somebody else's server on our port would answer too: a part is up when one of its own processes listens.
listens() { # PART PORT
    local inode pid
    for inode in $(sockets "$2"); do
        for pid in $(members "$1"); do
            if find "/proc/$pid/fd" -lname "socket:\[$inode\]" 2> /dev/null | grep -q .; then return 0; fi
        done
    done
    return 1
}
free() { # WHAT PORT: ports are chosen once a folder, and may have been taken since
    [ -z "$(sockets "$2")" ] ||
        fail "port $2 of $1 is taken by another process: end that one, or choose another NBSR_CLUSTER_FOLDER"
}

# ---- settings: made once a folder, so that a part that is started again is found where it was

free_ports() {
    "$python" -P - "$1" <<'PY'
import socket, sys
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in held))
PY
}

make_settings() {
    mkdir -p "$folder" "$folder/home" "$folder/artifacts"
    local ports token password
    read -ra ports <<< "$(free_ports 7)"
    token=$("$python" -P -c 'import secrets; print(secrets.token_hex(32))')
    password=$("$python" -P -c 'import secrets; print(secrets.token_hex(16))')
    printf '%s' "$token" > "$folder/token"
    printf '127.0.0.1:%s:*:nbsr:%s\n' "${ports[0]}" "$password" > "$folder/pgpass"
    printf '%s' "$password" > "$folder/pgpassword"
    # Unix sockets have short names only: Ray's own files cannot be deep below the folder.
    cat > "$settings" <<SETTINGS
postgres_port=${ports[0]} mlflow_port=${ports[1]} gcs_port=${ports[2]} dashboard_port=${ports[3]} client_port=${ports[4]}
head_agent_port=${ports[5]} worker_agent_port=${ports[6]} ray_temp=$(mktemp -d /tmp/nbsr-ray.XXXXXX)
SETTINGS
}

exports() {
    cat <<EXPORTS
export NBSR_CLUSTER=http://127.0.0.1:$dashboard_port
export NBSR_TRACKING=http://127.0.0.1:$mlflow_port
export NBSR_STORAGE=postgresql+psycopg://nbsr@127.0.0.1:$postgres_port/optuna
export NBSR_HOME=$(printf %q "$folder/home")
export PGPASSFILE=$(printf %q "$folder/pgpass")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$(printf %q "$folder/token")
EXPORTS
}

# ---- the four parts

start_postgres() {
    local programs data=$folder/postgres
    programs=$(postgres_programs)
    [ -n "$programs" ] || fail "Postgres is not installed: apt-get install postgresql"
    if [ ! -e "$data/PG_VERSION" ]; then
        mkdir -p "$data"
        cp "$folder/pgpassword" "$data.pw"
        if [ "$(id -u)" = 0 ]; then # the postgres user must be able to reach its own folder, and only that
            chmod o+x "$folder"
            chown postgres "$data" "$data.pw"
            as_postgres test -x "$data" ||
                fail "user postgres cannot reach $data: chmod o+x the folders above, or choose another NBSR_CLUSTER_FOLDER"
        fi
        (cd / && as_postgres "$programs/initdb" --pgdata="$data" --username=nbsr --pwfile="$data.pw" --encoding=UTF8 \
            --auth=scram-sha-256 --no-sync) > "$folder/logs/initdb.log" 2>&1 ||
            fail "initdb failed; see $folder/logs/initdb.log"
        rm -f "$data.pw"
    fi
    local command=("$programs/postgres" -D "$data" -c listen_addresses=127.0.0.1 -p "$postgres_port"
        -c unix_socket_directories= -c max_connections=300)
    if [ "$(id -u)" = 0 ]; then command=(setpriv --reuid=postgres --regid=postgres --init-groups "${command[@]}"); fi
    free Postgres "$postgres_port"
    launch postgres bash -c 'cd / && exec "$@"' _ "${command[@]}"
    export PGPASSFILE=$folder/pgpass
    local sql=("$programs/psql" -h 127.0.0.1 -p "$postgres_port" -U nbsr -v ON_ERROR_STOP=1 -qAt)
    until_true postgres Postgres "${sql[@]}" -d postgres -c 'select 1'
    for name in mlflow optuna; do
        [ -n "$("${sql[@]}" -d postgres -c "select 1 from pg_database where datname = '$name'")" ] ||
            "${sql[@]}" -d postgres -c "create database $name"
    done
}

start_mlflow() {
    # The address of the database goes through the environment: a command line can be read by everybody.
    # A worker of the server has 40 threads, and logging metrics takes two connections at once: with fewer than 80, writers
    # that hold their first one keep each other from the second.
    free MLflow "$mlflow_port"
    launch mlflow env PGPASSFILE="$folder/pgpass" MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
        MLFLOW_SQLALCHEMYSTORE_POOL_SIZE=20 MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW=80 \
        MLFLOW_BACKEND_STORE_URI="postgresql+psycopg://nbsr@127.0.0.1:$postgres_port/mlflow" \
        "$python" -m mlflow server --host 127.0.0.1 --port "$mlflow_port" --workers "${NBSR_MLFLOW_WORKERS:-2}" \
        --artifacts-destination "$folder/artifacts" --uvicorn-opts "--timeout-worker-healthcheck $patience"
    until_true mlflow "the MLflow server" listens mlflow "$mlflow_port"
}

# Ray replaces 127.0.0.1 by an address that others can reach, and where a node has any other address its parts listen on
# all interfaces. RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 has it keep loopback, as it does where it opens no cluster at all;
# but then it refuses a second node. So a node is started by `ray start` with just that refusal taken out.
ray_start='
import sys
from ray._private import ray_constants, services
from ray.scripts.scripts import main
ray_constants.ENABLE_RAY_CLUSTER = True
services.resolve_ip_for_localhost = lambda host: host
sys.exit(main())'

node() { # PART OPTIONS...: a Ray node with all that a driver needs in its environment
    local part=$1; shift
    (
        eval "$(exports)"
        unset NBSR_CLUSTER
        export NBSR_PYTHON=$python PATH="$(dirname "$python"):$PATH" RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 \
            RAY_raylet_start_wait_time_s=300 RAY_health_check_timeout_ms=30000 RAY_gcs_rpc_server_reconnect_timeout_s=300
        launch "$part" "$python" -c "$ray_start" start --block --disable-usage-stats --node-ip-address=127.0.0.1 \
            --num-cpus="$cpus" --object-store-memory=100000000 "$@"
    )
}

start_head() {
    free "the head" "$gcs_port"
    free "the head's dashboard" "$dashboard_port"
    free "the head's Ray Client" "$client_port"
    node head --head --port="$gcs_port" --dashboard-host=127.0.0.1 --dashboard-port="$dashboard_port" \
        --ray-client-server-port="$client_port" --dashboard-agent-listen-port="$head_agent_port" --temp-dir="$ray_temp"
    until_true head "the head" grep -q "Ray runtime started" "$folder/logs/head.log"
    until_true head "the head's dashboard" listens head "$dashboard_port"
}

start_worker() {
    # Files of its own, as on another machine: in one folder, a node that is done with a job's files takes them from all.
    mkdir -p "$ray_temp/worker"
    node worker --address="127.0.0.1:$gcs_port" --dashboard-agent-listen-port="$worker_agent_port" \
        --temp-dir="$ray_temp/worker"
    until_true worker "the worker" grep -q "Ray runtime started" "$folder/logs/worker.log"
}

# ---- commands

command=${1:-}
case $command in
up)
    "$python" -P -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("ray", "mlflow", "psycopg"))))' ||
        fail "$python lacks ray, mlflow or psycopg: pip install -e '.[cluster]', or set NBSR_PYTHON"
    for part in "${parts[@]}"; do
        if alive "$part"; then fail "$part is up already in $folder: cluster/local.sh down first"; fi
    done
    mkdir -p "$folder/logs"
    [ -e "$settings" ] || make_settings
    # shellcheck disable=SC1090
    source "$settings"
    mkdir -p "$ray_temp"
    trap 'for part in worker head mlflow postgres; do end "$part"; done' EXIT
    for part in "${parts[@]}"; do "start_$part"; done
    trap - EXIT
    echo "up in $folder: dashboard http://127.0.0.1:$dashboard_port, MLflow http://127.0.0.1:$mlflow_port"
    echo "use it:  source <(NBSR_CLUSTER_FOLDER=$(printf %q "$folder") $0 env); nbsr submit STUDY"
    ;;
down)
    for part in worker head mlflow postgres; do end "$part"; done
    if [ -e "$settings" ]; then
        source "$settings"
        case $ray_temp in /tmp/nbsr-ray.*) rm -rf "$ray_temp" ;; esac
    fi
    echo "down; results, runs and logs stay in $folder"
    ;;
start|kill)
    part=${2:-}
    case " ${parts[*]} " in *" $part "*) ;; *) fail "$command: which part? one of ${parts[*]}" ;; esac
    [ -e "$settings" ] || fail "nothing was ever up in $folder"
    source "$settings"
    if [ "$command" = kill ]; then
        kill_now "$part"
    else
        if alive "$part"; then fail "$part is up already"; fi
        trap 'end "$part"' EXIT
        "start_$part"
        trap - EXIT
    fi
    ;;
env)
    [ -e "$settings" ] || fail "nothing was ever up in $folder"
    source "$settings"
    exports
    ;;
status)
    for part in "${parts[@]}"; do
        count=$(members "$part" | wc -l)
        if [ "$count" -gt 0 ]; then echo "$part: up, $count processes"; else echo "$part: down"; fi
    done
    ;;
*)
    sed -n '2,13s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
