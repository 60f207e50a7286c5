# Recipes of Tandem. `./dev RECIPE` sets up what is missing first; with everything there, plain
# `just RECIPE` does the same, but compiles into ./target unless CARGO_TARGET_DIR is set.

target := env("CARGO_TARGET_DIR", justfile_directory() / "target")

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
check: fmt clippy test doc

# Micro-benches: the trie against alloy-trie, the peer table against scans
bench *ARGS:
    cargo bench --locked --workspace --bench trie --bench table {{ ARGS }}
