# What several tiers run, built with the same features, so compiled once, by whoever comes first. Sourced.

program_set=(-p gimmal-cli -p gimmal-examples -p gimmal-lab-programs -p gimmal-bench -p gimmal-io -p gimmal-tonic -p gimmal-rdma -p gimmal-transport -p gimmal-testkit -p gimmal-engine -p gimmal-rpc
    --features gimmal-examples/verbs,gimmal-bench/verbs,gimmal-transport/verbs,gimmal-transport/testing,gimmal-testkit/verbs,gimmal-engine/verbs,gimmal-rpc/verbs,gimmal-io/futures,gimmal-io/axum,gimmal-io/tonic)

# Every program and example, for speed and with verbs.
programs() { cargo build --release -q "${program_set[@]}" --bins --examples; }

# program_tests ARGS...: test programs of any of these crates, for speed, on the libraries that the programs are made of.
program_tests() { cargo test --release "${program_set[@]}" "$@"; }

# rpc_tests ARGS...: the unit tests of rpc alone, on the same libraries: these packages and features come to the same.
rpc_tests() {
    cargo test --release -p gimmal-rpc -p gimmal-cli -p gimmal-examples --lib \
        --features gimmal-rpc/verbs,gimmal-rpc/bincode,gimmal-examples/verbs,gimmal-engine/default \
        --features gimmal-transport/default,gimmal-transport/floor,gimmal-transport/testing "$@"
}

# The features of everyday tests; the lab runs the same programs on its devices.
test_features=gimmal-transport/testing,gimmal-transport/tls,gimmal-rpc/tls,gimmal-transport/verbs,gimmal-testkit/verbs,gimmal-engine/verbs,gimmal-rpc/verbs,gimmal-rpc/zerocopy,gimmal-rpc/evolve,gimmal/tokio,gimmal/futures,gimmal-bench/hwloc,gimmal-io/futures,gimmal-io/axum,gimmal-io/tonic

# lint ARGS...: clippy, in a folder of its own, so that no build waits for its lock.
lint() { CARGO_TARGET_DIR=target/lint cargo clippy -q "$@" -- -D warnings; }

# rdma_sys_tests ARGS...: the other backend of verbs, compared with ours.
rdma_sys_tests() {
    cargo test -p gimmal-rdma -p gimmal-transport --lib --features gimmal-transport/testing,gimmal-transport/rdma-sys "$@"
}

# rdma_sys_programs: what the lab runs once more with rdma-core linked, in target/linked.
rdma_sys_programs() {
    cargo build -q -p gimmal-rdma -p gimmal-lab-programs -p gimmal-testkit \
        --features gimmal-rdma/rdma-sys,gimmal-testkit/verbs \
        --bin cm_checks --bin datagram_checks --example conformance || return 1
    mkdir -p target/linked
    cp target/debug/cm_checks target/debug/datagram_checks target/debug/examples/conformance target/linked/
}

# bincode_tests ARGS...: the RPC layer's cases with the other codec.
bincode_tests() {
    cargo test -p gimmal-rpc --no-fail-fast --features test-bincode \
        --test calls --test failures --test streams --test hostile --test nested "$@"
}

# lab_programs COMMAND...: lays the test programs that the command makes where the lab finds them: lab-NAME those of the engine and
# of rpc, lab-PLUGIN-NAME those of the plugins.
lab_programs() {
    local crate name program
    "$@" --no-run --message-format=json |
        sed -nE 's/.*"manifest_path":"[^"]*\/(rpc|engine|plugins\/[a-z]*)\/Cargo.toml".*"kind":\["test"\].*"name":"([a-z_]*)","src_path".*"executable":"([^"]*)".*/\1 \2 \3/p' |
        while read -r crate name program; do
            [ "${crate#plugins/}" = "$crate" ] || name=${crate#plugins/}-$name
            ln -sf "$program" "target/release/lab-$name"
        done
    [ -x target/release/lab-churn ]
}
