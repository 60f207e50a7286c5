# Recipes of Tandem. `./dev RECIPE` sets up what is missing first; with everything there, plain
# `just RECIPE` does the same, but compiles into ./target unless CARGO_TARGET_DIR is set.

target := env("CARGO_TARGET_DIR", justfile_directory() / "target")

host := arch() + "-unknown-linux-gnu"

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

# Run the main job on real input: six services, 64 real payloads, overlap verdict and timeline
demo *ARGS: build
    {{ target }}/release/tandem demo --corpus corpora/demo {{ ARGS }}

# Run all tests
test *ARGS:
    cargo test --release --locked --workspace {{ ARGS }}

# Run all conformance vectors that are on this machine, see docs/conformance.md
conformance *ARGS: build
    {{ target }}/release/tandem conformance "$(tests/conformance/locate)" {{ ARGS }}

# Run a fixed sample of all conformance vectors that are on this machine: what `check` runs of them
conformance-sample:
    cargo test --release --locked --workspace --test vectors -- \
        --ignored --nocapture a_sample_of_the_complete_sets_passes

# Check formatting
fmt:
    cargo fmt --all --check

# Lint everything, warnings denied
clippy:
    cargo clippy --release --locked --workspace --all-targets -- -D warnings

# Build the documentation, warnings denied
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --workspace --no-deps --quiet

# All that must hold before a change lands
check: fmt clippy test conformance-sample doc

# Micro-benches: the trie against alloy-trie, the peer table against scans
bench *ARGS:
    cargo bench --locked --workspace --bench trie --bench table {{ ARGS }}

# Fuzz one target, guided by coverage; what is new goes to its corpus folder (docs/fuzzing.md)
fuzz TARGET SECONDS="60" *ARGS: fuzz-build
    mkdir -p tests/fuzz/corpus/{{ TARGET }} {{ target }}/findings
    TANDEM_FUZZ_TARGET={{ TARGET }} {{ target }}/{{ host }}/release/guided tests/fuzz/corpus/{{ TARGET }} \
        -max_total_time={{ SECONDS }} -artifact_prefix={{ target }}/findings/{{ TARGET }}- \
        -rss_limit_mb=4096 -timeout=20 {{ ARGS }}

# Leave the fewest inputs in a target's corpus folder that reach the same code
fuzz-minimize TARGET: fuzz-build
    rm -rf {{ target }}/corpus/{{ TARGET }}
    mkdir -p {{ target }}/corpus/{{ TARGET }}
    TANDEM_FUZZ_TARGET={{ TARGET }} {{ target }}/{{ host }}/release/guided -merge=1 \
        {{ target }}/corpus/{{ TARGET }} tests/fuzz/corpus/{{ TARGET }}
    rm -rf tests/fuzz/corpus/{{ TARGET }}
    cp -r {{ target }}/corpus/{{ TARGET }} tests/fuzz/corpus/{{ TARGET }}

# RUSTFLAGS replaces those of .cargo/config.toml. Overflows and debug assertions are findings too.
[private]
fuzz-build:
    RUSTFLAGS="-Ctarget-cpu=x86-64-v3 -Ctarget-feature=+pclmulqdq,+aes \
        -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions=yes -Coverflow-checks=yes" \
        cargo build --release --locked --target {{ host }} -p tandem-fuzz --features guided --bin guided
