//! Cases of the tables that must be whole.

use super::{Case, case};

pub(super) fn row_of_the_cm(row: &str, says: &'static str) -> Case {
    let table = |rows: &str| format!("# The RDMA CM\n\n| C | Rust | shown by |\n|---|---|---|\n{rows}\n");
    let whole = "| `rdma_f` | `cm::Id::f`, `cm::K::A` | `t_there`, `a case in words`, `a case of a script` |";
    let (bad, good) = (table(row), table(whole));
    case("every row of transport/rdma/CM.md has an item and a test", beside(&bad), says, beside(&good))
}

/// The table of the RDMA CM, and everything that it may name.
fn beside(table: &str) -> [(&'static str, &str); 7] {
    [
        ("transport/rdma/CM.md", table),
        ("transport/rdma/src/cm/mod.rs", "pub use k::K; pub struct Id; impl Id { pub fn f() {} fn g() {} }"),
        ("transport/rdma/src/cm/k.rs", "kinds! { K; A = RAW_A }"),
        ("transport/rdma/src/sys/bundled/cm.rs", "functions! { need fn rdma_f(id: *mut rdma_id); }"),
        ("high/tests/it.rs", "fn t_there() {}"),
        ("lab/programs/src/main.rs", "const CASES: &[&str] = &[\"a case in words\"];"),
        ("tests/lab/cm.sh", "check \"a case of a script, $address\" true"),
    ]
}

/// Two cases of a table of findings: a row without an answer, and one whose number is left out.
pub(super) fn findings() -> [Case; 2] {
    let of = |intro: &str, row: &str| {
        let titles = "| finding | what | shown by |\n|---|---|---|";
        format!("# Faults\n\n## Findings\n\n### A\n\n{intro}\n\n{titles}\n| {row} |\n")
    };
    let rule = "every finding of tests/faults.md is answered";
    let (open, good) = (of("All.", "1 | it | —"), of("All.", "1 | it | stays: why"));
    let (gap, failed) = (of("All.", "2 | it | stays: why"), of("Failed trials.", "2 | it | stays: why"));
    let path = "tests/faults.md";
    [
        case(rule, [(path, &open)], "A: 1 is not answered", [(path, &good)]),
        case(rule, [(path, &gap)], "A: a number is missing", [(path, &failed)]),
    ]
}
