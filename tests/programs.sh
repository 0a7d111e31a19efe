# What several tiers run, built with the same features by whoever comes first. Sourced.

program_set=(-p gimmal-cli -p gimmal-examples -p gimmal-bench -p gimmal-transport -p gimmal-engine
    --features gimmal-examples/verbs,gimmal-bench/verbs,gimmal-transport/verbs,gimmal-transport/conformance,gimmal-engine/verbs)

# Every program and example, for speed and with verbs.
programs() { cargo build --release -q "${program_set[@]}" --bins --examples; }

# The features of everyday tests; the lab runs the same programs on its devices.
test_features=gimmal-transport/conformance,gimmal-transport/verbs,gimmal-engine/verbs,gimmal-rpc/verbs,gimmal-bench/hwloc

# Lays the test programs of the engine and of rpc where the lab finds them.
lab_programs() {
    local name program
    cargo test -q "$@" --no-run --message-format=json |
        sed -nE 's/.*"manifest_path":"[^"]*\/(rpc|engine)\/Cargo.toml".*"kind":\["test"\].*"name":"([a-z_]*)","src_path".*"executable":"([^"]*)".*/\2 \3/p' |
        while read -r name program; do ln -sf "$program" "target/release/lab-$name"; done
    [ -x target/release/lab-churn ]
}
