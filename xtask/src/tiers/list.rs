//! The tiers: their commands, when they run, and how long they may take.

use std::time::Duration;

/// When a tier runs, where `lab` runs too. Without it tiers run one after the other, in the order of their names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// One after the other.
    Normal,
    /// With nothing beside it: it measures times.
    Alone,
    /// At the lowest priority from the start: it computes for long and has a build of its own.
    FromStart,
    /// At the lowest priority beside the lab, whose guests leave much of the processors idle.
    BesideLab,
    /// Built beside the lab, and run when that is done, with nothing beside it.
    AfterLab,
    /// As soon as its turn comes; tiers of other turns depend on it.
    Lab,
}

/// A command of a tier: a line of bash that may use what `tests/programs.sh` defines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) line: &'static str,
    /// Whether the rest of the tier makes no sense without it.
    pub(super) is_needed: bool,
    /// Whether the lane is halted meanwhile, and may begin what waits for the lab afterwards.
    pub(super) is_timed: bool,
}

/// A tier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tier {
    pub(super) name: &'static str,
    pub(super) turn: Turn,
    /// How long it may take on the machine of CI, builds included, seconds. Printed; what takes three times as long is ended.
    pub(super) budget_s: u64,
    pub(super) steps: &'static [Step],
    /// What makes its build, where that can be made before its turn.
    pub(super) build: Option<&'static str>,
}

const fn needed(line: &'static str) -> Step {
    Step { line, is_needed: true, is_timed: false }
}

const fn step(line: &'static str) -> Step {
    Step { line, is_needed: false, is_timed: false }
}

const fn tier(name: &'static str, turn: Turn, budget_s: u64, steps: &'static [Step]) -> Tier {
    Tier { name, turn, budget_s, steps, build: None }
}

impl Tier {
    const fn built_by(self, line: &'static str) -> Self {
        Self { build: Some(line), ..self }
    }

    /// How long each of its steps may take before it is ended as one that hangs: what a machine a third as fast as CI's would need, and
    /// what a slow download may. In the lane it may also have to wait for whatever is in front.
    pub(super) fn limit(&self) -> Duration {
        let times = if matches!(self.turn, Turn::Normal | Turn::Alone | Turn::Lab) { 3 } else { 30 };
        Duration::from_secs(self.budget_s.saturating_mul(times).max(600))
    }
}

/// Every tier, in the order in which they run by themselves.
pub(super) const ALL: &[Tier] = &[
    FMT,
    // Each provider alone, so that none is needed by another; all features, which is the backend `rdma-sys`; the default one; none. In a
    // folder of its own, so that no build in front waits for its lock.
    tier(
        "lint",
        Turn::FromStart,
        600,
        &[
            needed(
                "for alone in '' shm tcp verbs; do \
             lint -p gimmal-transport -p gimmal-engine --lib --no-default-features --features \"$alone\" || exit 1; done",
            ),
            needed("lint --workspace --all-targets --all-features"),
            needed("lint -p gimmal-transport --all-targets --features verbs,testing,floor"),
            needed("lint -p gimmal-transport"),
            needed("lint -p gimmal-rdma --all-targets"),
        ],
    ),
    tier(
        "doc",
        Turn::FromStart,
        180,
        &[step(
            "CARGO_TARGET_DIR=target/lint RUSTDOCFLAGS='-D warnings' cargo doc -q --workspace --all-features --no-deps",
        )],
    ),
    // The default build needs neither headers nor clang. Seeds enough to see that they run; `seeds` and `worlds` have many.
    tier(
        "unit",
        Turn::Normal,
        840,
        &[
            step(
                "GIMMAL_SEEDS=16 cargo test --workspace --exclude xtask --no-fail-fast --features $test_features",
            ),
            step("bash tests/backends.sh"),
        ],
    ),
    tier(
        "compile",
        Turn::BesideLab,
        120,
        &[step("cargo test --workspace --exclude xtask --features $test_features --test compile")],
    ),
    tier("rdma_sys", Turn::AfterLab, 240, &[step("rdma_sys_tests")]).built_by("rdma_sys_tests --no-run"),
    tier("bincode", Turn::AfterLab, 240, &[step("bincode_tests")]).built_by("bincode_tests --no-run"),
    tier("sysfs", Turn::Normal, 60, &[step("cargo test -p gimmal-engine --lib place")]),
    // 2,100 runs of 1,000 messages there and back, 700 seeds on each of three media.
    tier(
        "seeds",
        Turn::BesideLab,
        300,
        &[step(
            "GIMMAL_SEEDS=700 GIMMAL_MESSAGES=1000 GIMMAL_FAULT_SEEDS=100 program_tests --test sim --test faults",
        )],
    ),
    // 1,050 worlds for each behaviour of calls.
    tier("worlds", Turn::BesideLab, 300, &[step("GIMMAL_SEEDS=350 rpc_tests sim_")]),
    tier("planted", Turn::FromStart, 1_800, &[step("cargo xtask planted")]),
    // 3 x 3,400,000 hostile operations, and 200,000 spoiled inputs for each parser.
    tier(
        "hostile",
        Turn::Normal,
        240,
        &[step(
            "GIMMAL_HOSTILE_OPERATIONS=3400000 GIMMAL_FUZZ_INPUTS=200000 program_tests --test attack --test fuzz -- --nocapture",
        )],
    ),
    // Its tests of the transport have windows of tens of milliseconds: nothing may run beside them, and nothing halt them.
    tier("sanitize", Turn::AfterLab, 600, &[step("bash tests/sanitize.sh")])
        .built_by("bash tests/sanitize.sh --no-run"),
    tier("churn", Turn::Normal, 240, &[step("GIMMAL_CALLS=1000000 program_tests --test churn shm::")]),
    tier("conformance", Turn::Normal, 300, &[step("bash tests/conformance.sh")]),
    tier(
        "loom",
        Turn::FromStart,
        1_200,
        &[step(
            "RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target/loom \
         cargo test -p gimmal-transport --release --lib --no-default-features loom_",
        )],
    ),
    TIDY,
    tier("bench", Turn::Alone, 600, &[step("bash tests/bench.sh")]),
    tier("demo", Turn::Alone, 240, &[step("bash tests/demo.sh")]),
    tier("cli", Turn::Normal, 60, &[step("bash tests/cli.sh")]),
    // Clients and servers of gRPC in other languages, through edges, and programs of Debian through tunnels. They are downloaded once.
    tier("programs", Turn::Normal, 120, &[step("bash tests/interop/run.sh")]),
    // The crates as others get them.
    tier("packages", Turn::BesideLab, 120, &[step("bash tests/packages.sh")]),
    tier("readme", Turn::AfterLab, 300, &[step("bash tests/readme.sh")])
        .built_by("CARGO_TARGET_DIR=target/readme cargo build --release -q -p gimmal-examples --bin files"),
    LAB,
];

const FMT: Tier = tier("fmt", Turn::Normal, 20, &[step("cargo fmt --all --check")]);

/// The rules, and that each of them finds what is planted for it.
const TIDY: Tier =
    tier("tidy", Turn::Normal, 60, &[step("cargo xtask tidy"), step("cargo test -p xtask --lib")]);

const LAB: Tier = tier(
    "lab",
    Turn::Lab,
    2_000,
    &[
        needed("programs"),
        // As the unit tier made them; but many calls want speed.
        needed("lab_programs cargo test -q --workspace --exclude xtask --features $test_features"),
        needed(
            "lab_programs program_tests --test churn --test streams --test many --test others --test stubs",
        ),
        // Before the lane builds beside it: both would wait for one lock.
        step("rdma_sys_programs"),
        Step {
            line: "target/release/gimmal-lab run --fabric rxe --timeout-s 300 -- bash \"$PWD/tests/lab_pace.sh\"",
            is_needed: false,
            is_timed: true,
        },
        step(
            "target/release/gimmal-lab run --fabric none --timeout-s 120 -- bash \"$PWD/tests/lab_none.sh\"",
        ),
        step(
            "target/release/gimmal-lab run --nodes 2 --fabric both --timeout-s 300 -- bash \"$PWD/tests/lab_nodes.sh\"",
        ),
        step("target/release/gimmal-lab run --fabric both --timeout-s 3600 -- bash \"$PWD/tests/lab.sh\""),
        step("bash tests/pair.sh"),
    ],
);

/// What `quick` runs: everyday checks, in debug builds, 6 minutes at most where the dependencies are built.
pub(super) const QUICK: &[Tier] = &[
    FMT,
    tier(
        "clippy",
        Turn::Normal,
        100,
        &[step("cargo clippy -q --workspace --all-targets --features $test_features -- -D warnings")],
    ),
    // The tests beside the code, and the engine's simulated runs with few seeds.
    tier(
        "few",
        Turn::Normal,
        140,
        &[step(
            "GIMMAL_SEEDS=2 cargo test --workspace --exclude xtask --no-fail-fast --features $test_features --lib --bins --test sim --test calls",
        )],
    ),
    TIDY,
    tier(
        "conformance",
        Turn::Normal,
        40,
        &[
            needed(
                "cargo build -q --workspace --exclude xtask --features $test_features --example conformance",
            ),
            step("bash tests/conformance.sh target/debug/examples/conformance"),
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_once() {
        for list in [ALL, QUICK] {
            let mut names: Vec<&str> = list.iter().map(|tier| tier.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), list.len());
        }
    }

    #[test]
    fn the_quick_tiers_may_take_six_minutes_together() {
        assert!(QUICK.iter().map(|tier| tier.budget_s).sum::<u64>() <= 360);
    }
}
