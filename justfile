# Recipes of Tandem. `./dev RECIPE` sets up what is missing first; with everything there, plain
# `just RECIPE` does the same, but compiles into ./target unless CARGO_TARGET_DIR is set.

target := env("CARGO_TARGET_DIR", justfile_directory() / "target")

# What all tests are built with, so that one build serves them all. The rivals take minutes to compile, and only
# benches want them.
tests := "--profile quick --locked --workspace --exclude tandem-rivals --features tandem-profile/sampling"

# What is looked at without being run: all code, also that of the feature profiling.
looked_at := "--profile quick --locked --workspace --features tandem-profile/sampling,tandem/profiling"

before_commit := "d29371a4"
before := env("HOME") / ".cache/tandem/before" / before_commit

instrumented := env("HOME") / ".cache/tandem/fuzz"

# List the recipes
default:
    @just --list

# Build the optimized binary
build:
    cargo build --release --locked -p tandem

# Print the path of the optimized binary, and nothing else (builds it first)
bin:
    @cargo build --release --locked --quiet -p tandem
    @echo {{ target }}/release/tandem

# Run the main job on real input: all services, 64 real payloads, overlap verdict and timeline
demo *ARGS: build
    {{ target }}/release/tandem demo --corpus corpora/demo {{ ARGS }}

# Run the services as processes, with the flags of `tandem node`, such as --datadir DIR
cluster *ARGS: build
    {{ target }}/release/tandem cluster {{ ARGS }}

# Replay a corpus through the processes of the services, and say what each took of processors and memory
sizes CORPUS="corpora/demo" *ARGS: build
    #!/usr/bin/env bash
    set -euo pipefail
    tandem={{ target }}/release/tandem folder=$(mktemp -d) cluster=
    : > "$folder/says"
    trap '[ -z "$cluster" ] || kill "$cluster" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
    "$tandem" cluster --datadir "$folder/data" --genesis "{{ CORPUS }}/genesis.json.gz" \
        --authrpc.port 0 --http.port 0 --discovery.addr 127.0.0.1 --discovery.port 0 \
        --sessions.addr 127.0.0.1 --sessions.port 0 {{ ARGS }} \
        > "$folder/says" &
    cluster=$!
    until engine=$(sed -n 's/^ready: Engine API at \([^ ]*\) .*/\1/p' "$folder/says") && [ -n "$engine" ]; do
        kill -0 "$cluster"
        sleep 0.2
    done
    "$tandem" replay --engine "$engine" --jwtsecret "$folder/data/jwt.hex" "{{ CORPUS }}" >&2
    kill "$cluster"
    wait "$cluster"
    cluster=
    sed '1,/^ready:/d' "$folder/says"

# Run a test network of Tandem and geth that propose in turn, such as `./dev devnet --fork osaka --slots 50`
devnet *ARGS: build
    {{ target }}/release/tandem devnet {{ ARGS }}

# Run a network with a real consensus client, Lodestar 1.5.1 from its packages, by the rules of Paris and
# Shanghai, until so many epochs are final (docs/devnet.md); no part of `check`, as the packages are 320 MB
lodestar EPOCHS="20" SLOT_SECONDS="2" RATE="300": build
    tools/lodestar/run {{ target }}/release/tandem {{ EPOCHS }} {{ SLOT_SECONDS }} {{ RATE }}

# Run all tests, in a profile that compiles in less time than a release (Cargo.toml)
test *ARGS:
    cargo test {{ tests }} {{ ARGS }}

# Build with Node Discovery v5 (feature discv5) and test it, against geth's suite where devp2p is
# installed; no part of `check`, as most dependencies compile once more for it
discv5:
    cargo test --release --locked -p tandem-discovery --features discv5 --test v5 --test sockets
    cargo build --release --locked -p tandem --features discv5

# Build the binary that takes profiles of itself, for `tandem profile`
profiling:
    cargo build --release --locked -p tandem --features profiling

# Measure a topic's figures against their limits (docs/figures.md), such as `./dev figures repairs --quick`.
# TANDEM_CORPORA names a folder with more corpora, KUBECONFIG the cluster of `./dev figures operations`
[positional-arguments]
figures TOPIC *ARGS: build
    cargo build --release --locked -p tandem-figures
    [ "{{ TOPIC }}" != steady ] || {{ just_executable() }} profiling
    [ "{{ TOPIC }}" = operations ] || [ "{{ TOPIC }}" = steady ] || {{ just_executable() }} before
    ulimit -n 16384 && {{ target }}/release/figures "$@" --tandem {{ target }}/release/tandem \
        --before {{ before }}/tandem

# Processor time of a node among 30 peers for ten minutes, by subsystem: with the defaults, and with the
# legacy policies (docs/profiling.md); `--quick` for two minutes and ten peers
[positional-arguments]
steady *ARGS:
    {{ just_executable() }} figures steady "$@"

# The version that figures are compared with, built once and kept outside of the checkout.
[private]
before:
    #!/usr/bin/env bash
    set -euo pipefail
    [ ! -x "{{ before }}/tandem" ] || exit 0
    mkdir -p "{{ before }}"
    trap 'git worktree remove --force "{{ before }}/checkout"' EXIT
    git worktree add --detach "{{ before }}/checkout" {{ before_commit }}
    cd "{{ before }}/checkout"
    CARGO_TARGET_DIR="{{ before }}/target" cargo build --release --locked -p tandem
    mv "{{ before }}/target/release/tandem" "{{ before }}/tandem"
    rm -rf "{{ before }}/target"

# Run all conformance vectors that are on this machine, see docs/conformance.md
conformance *ARGS: build
    {{ target }}/release/tandem conformance "$(tools/conformance/locate)" {{ ARGS }}

# Run random blocks of Amsterdam through geth's evm and Tandem, such as `./dev differential 10000 --seed 7 --server`
differential CASES="500" *ARGS:
    cargo run --release --locked --quiet -p tandem-differential -- {{ CASES }} {{ ARGS }}

# Run a fixed sample of all conformance vectors that are on this machine: what `check` runs of them
conformance-sample:
    cargo test {{ tests }} --test vectors -- \
        --ignored --nocapture a_sample_of_the_complete_sets_passes

# Make the images of docker-compose.yml where there is no registry (docs/compose.md)
images-offline: build
    deploy/images-offline {{ target }}/release/tandem

# Look into those images, start the stack of docker-compose.yml from them, replay the demo corpus, take it down
compose-test: images-offline
    cargo test {{ tests }} --test cli -- --ignored --nocapture --test-threads 1 deploy::stack::

# Check the chart: lint, render, Kubernetes' schemas, and start what it starts (helm/tandem/README.md).
# A part of `test`; `./dev helm-check` installs more tools to check with
helm-check *ARGS:
    cargo test {{ tests }} --test cli -- --nocapture deploy::helm:: {{ ARGS }}

# Check formatting
fmt:
    cargo fmt --all --check

# Lint everything, warnings denied
clippy:
    cargo clippy {{ looked_at }} --all-targets -- -D warnings

# Build the documentation, warnings denied
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc {{ looked_at }} --no-deps --quiet

# Check the dependencies against deny.toml: licences, bans, sources, and known advisories where their
# database can be fetched or is there from an earlier day
deny:
    #!/usr/bin/env bash
    set -euo pipefail
    if ! command -v cargo-deny >/dev/null; then
        echo "SKIPPED: cargo-deny is not installed, dependencies are not checked" >&2
        exit 0
    fi
    cargo deny --locked check --hide-inclusion-graph licenses bans sources
    databases="${CARGO_HOME:-$HOME/.cargo}/advisory-dbs"
    if timeout 120 cargo deny --locked fetch db 2>/dev/null; then
        cargo deny --locked check --hide-inclusion-graph advisories
    elif compgen -G "$databases/*/crates" >/dev/null; then
        echo "the database of advisories cannot be fetched: that of an earlier day is used" >&2
        cargo deny --locked --offline check --hide-inclusion-graph advisories
    else
        echo "SKIPPED: the database of advisories cannot be fetched, known advisories are not looked for" >&2
    fi

# All that must hold before a change lands
check: fmt clippy deny test conformance-sample doc

# Benches: the trie against ethrex-trie, alloy-trie and its hashing, the peer table against scans,
# reads of the state over layers, newPayload for each corpus (more of them by
# TANDEM_CORPORA=folder:folder), the proof stream in process and over gRPC, what a hop costs, two KZG libraries,
# blob-validator over gRPC
bench *ARGS:
    cargo bench --locked --workspace \
        --bench trie \
        --bench list \
        --bench floor \
        --bench table \
        --bench encode \
        --bench state_view \
        --bench new_payload \
        --bench proof_transport \
        --bench hop \
        --bench libraries \
        --bench blob_service \
        {{ ARGS }}

# All that may happen to a cluster, twenty times each: how soon it is got over (docs/cluster.md; the
# better part of an hour)
faults *ARGS:
    cargo test --release --locked --workspace --test faults -- --ignored --nocapture {{ ARGS }}

# Two hundred nodes and some of geth's on loopback: how soon they know each other, and what they cost
# once they do, beside the legacy policy (about ten minutes). Fails as long as the last node needs more
# than the goal of 20 s to know 50 others: it needed 40.8 s (docs/performance.md)
net:
    cargo bench --locked --workspace --bench net

# Start nodes of discovery as processes with default settings on loopback: how soon they know each
# other, and what each sends in each minute; fails where that is more than 60 packets at the end
quiet MINUTES="12" NODES="12": build
    #!/usr/bin/env bash
    set -euo pipefail
    tandem={{ target }}/release/tandem folder=$(mktemp -d) nodes={{ NODES }} pids=() boot=() metrics=()
    trap '[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
    # What follows a mark in a node's log, once it stands there.
    says() {
        until sed -n "s,.*$2\([^ \"]*\).*,\1,p" "$folder/$1.log" | grep -m1 .; do
            kill -0 "${pids[$1]}"
            sleep 0.02
        done
    }
    for ((n = 0; n < nodes; n++)); do
        "$tandem" discovery --datadir "$folder/$n" --discovery.addr 127.0.0.1 --discovery.port 0 \
            --metrics.port 0 "${boot[@]}" > "$folder/$n.log" 2>&1 &
        pids+=($!)
        [ "$n" != 0 ] || boot=(--bootnodes "enode://$(says 0 enode://)")
    done
    begin=$EPOCHREALTIME
    for ((n = 0; n < nodes; n++)); do
        metrics+=("http://$(says "$n" 'listening port="metrics" address=')/metrics")
    done
    # A metric's value on each node, least first.
    values() { curl -fsS "${metrics[@]}" | awk -v name="$1" '$1 == name { print $2 }' | sort -n; }
    sent() { values tandem_discovery_packets_sent_total | awk '{ sum += $1 } END { printf "%d", sum }'; }
    until [ "$(values 'tandem_peer_table_contacts{class="proven"}' | awk 'NR == 1' || true)" = $((nodes - 1)) ] &&
        [ "$(values 'tandem_peer_table_contacts{class="proven"}' | wc -l)" = "$nodes" ]; do
        sleep 0.1
    done
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "all know each other %.1f s after the last start\n", b - a }'
    before=0
    for ((minute = 1; minute <= {{ MINUTES }}; minute++)); do
        sleep "$(awk -v begin="$begin" -v minute="$minute" -v now="$EPOCHREALTIME" \
            'BEGIN { rest = begin + 60 * minute - now; print (rest > 0 ? rest : 0) }')"
        now=$(sent)
        packets=$(awk -v count=$((now - before)) -v nodes="$nodes" 'BEGIN { printf "%.1f", count / nodes }')
        echo "minute $minute: $packets packets per node"
        before=$now
    done
    awk -v packets="$packets" 'BEGIN { exit packets <= 60 ? 0 : 1 }'

# Memory over 20,000 blocks, and over a million sidecars, must stay flat
soak:
    cargo bench --locked --workspace --bench soak --bench blob_soak

# Send the pool ten million hostile transactions: its memory must stay within its settings (four minutes)
hostile-transactions COUNT="10000000":
    TANDEM_POOL_TRANSACTIONS={{ COUNT }} cargo test --release --locked --workspace \
        --test hostile_transactions -- --nocapture

# Fuzz one target, guided by coverage; what is new goes to its corpus folder (docs/fuzzing.md)
fuzz TARGET SECONDS="60" *ARGS: fuzz-build
    #!/usr/bin/env bash
    set -euo pipefail
    export TANDEM_FUZZ_TARGET={{ TARGET }} TANDEM_FUZZ_START=$(mktemp -d)
    trap 'rm -rf "$TANDEM_FUZZ_START"' EXIT
    corpus=tests/fuzz/corpus/{{ TARGET }} findings={{ instrumented }}/findings
    # The target writes its seeds and its dictionary before libFuzzer reads them.
    mkdir -p "$corpus" "$findings" "$TANDEM_FUZZ_START/seeds"
    {{ instrumented }}/release/guided "$corpus" "$TANDEM_FUZZ_START/seeds" \
        -dict="$TANDEM_FUZZ_START/dictionary" -max_total_time={{ SECONDS }} \
        -artifact_prefix="$findings/{{ TARGET }}-" -rss_limit_mb=4096 -timeout=60 {{ ARGS }}

# Leave the fewest inputs in a target's corpus folder that reach what the seeds do not
fuzz-minimize TARGET: fuzz-build
    #!/usr/bin/env bash
    set -euo pipefail
    export TANDEM_FUZZ_TARGET={{ TARGET }} TANDEM_FUZZ_START=$(mktemp -d)
    trap 'rm -rf "$TANDEM_FUZZ_START"' EXIT
    corpus=tests/fuzz/corpus/{{ TARGET }}
    # Merged into the seeds, so that nothing stays that they reach already; how often a place is
    # reached does not count, or most inputs would stay.
    mkdir -p "$corpus" "$TANDEM_FUZZ_START/seeds"
    {{ instrumented }}/release/guided -runs=0 "$TANDEM_FUZZ_START/seeds" 2>/dev/null
    ls "$TANDEM_FUZZ_START/seeds" > "$TANDEM_FUZZ_START/names"
    {{ instrumented }}/release/guided -merge=1 -use_counters=0 "$TANDEM_FUZZ_START/seeds" "$corpus"
    (cd "$TANDEM_FUZZ_START/seeds" && xargs rm -f < ../names)
    rm -rf "$corpus"
    mkdir "$corpus"
    find "$TANDEM_FUZZ_START/seeds" -type f -exec mv -t "$corpus" {} +

# The instrumented build has a target folder of its own; RocksDB's library is that of ./dev.
[private]
fuzz-build:
    #!/usr/bin/env bash
    set -euo pipefail
    [ -n "${ROCKSDB_LIB_DIR:-}" ] || exec ./dev fuzz-build
    export CARGO_TARGET_DIR={{ instrumented }}
    export RUSTC_WORKSPACE_WRAPPER={{ justfile_directory() }}/tests/fuzz/instrument
    exec cargo build --release --locked -p tandem-fuzz --features guided --bin guided
