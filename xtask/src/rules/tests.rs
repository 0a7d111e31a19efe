//! Each rule finds an offender that is planted for it, and nothing where it is mended.

mod tables;

use std::collections::BTreeSet;

use serde_json::json;

use super::{Rule, all, judge, licences};
use crate::{house::House, tree::Tree};

/// What the rules need to know of the planted trees.
const SETTINGS: &str = r#"
[paths]
unsafe = ["low/src/mem/"]
outside_workspace = ["fuzz/"]
rdma_sys = ["low/src/rdma.rs"]
above_providers = ["high/src/"]
independent = ["low/src/rdma.rs"]
hot = ["high/src/hot.rs"]
threads = ["high/src/"]
starts_threads = ["high/src/thread.rs"]
packed = ["high/src/"]
packs = ["high/src/pack.rs"]
checked = ["high/src/"]
floors = ["high/src/floor/"]
counted_copies = ["high/src/"]
woken = ["high/src/"]
wakes = ["high/src/wake.rs"]
interrupted = ["high/src/"]
futures = ["high/src/"]
configs = ["high/src/config.rs"]
builders = ["high/src/"]
no_builders = []
contract = ["low/src/"]
kinds = ["high/src/frame.rs"]
tuned = ["high/src/pace.rs"]
sentences = ["README.md", "high/src/guide.rs"]
[providers]
shm = ["low/src/shm/"]
verbs = ["low/src/verbs/"]
[contract]
traits = ["Port", "Bulk"]
[independent]
words = ["gimmal"]
[facade]
crate = "high"
[kinds]
enum = "Kind"
[ledger]
file = "ledger.toml"
"#;

/// A rule's case: its name, the files that break it, a word of what it says, and the files that do not.
struct Case {
    rule: &'static str,
    bad: Vec<(&'static str, String)>,
    says: &'static str,
    good: Vec<(&'static str, String)>,
}

fn case<const N: usize, const M: usize>(
    rule: &'static str,
    bad: [(&'static str, &str); N],
    says: &'static str,
    good: [(&'static str, &str); M],
) -> Case {
    let own = |files: &[(&'static str, &str)]| {
        files.iter().map(|(path, text)| (*path, (*text).to_owned())).collect()
    };
    Case { rule, bad: own(&bad), says, good: own(&good) }
}

fn house(files: &[(&'static str, String)]) -> House {
    let mut all = vec![
        ("low/Cargo.toml", "[package]\nname = \"low\""),
        ("high/Cargo.toml", "[package]\nname = \"high\""),
        ("tests/prose.txt", "\\b[Ww]hoever\\b ## name the actor"),
    ];
    all.extend(files.iter().map(|(path, text)| (*path, text.as_str())));
    House::with(Tree::of(&all), SETTINGS).unwrap()
}

fn rule(name: &str) -> Rule {
    all().into_iter().find(|rule| rule.name == name).unwrap_or_else(|| panic!("no rule is called {name:?}"))
}

#[test]
fn every_rule_finds_what_is_planted_and_nothing_else() {
    let cases = [
        code(),
        calls(),
        boundaries(),
        circles(),
        comments(),
        named_elsewhere(),
        names(),
        concepts(),
        sizes(),
        texts(),
        tables::findings().into(),
    ]
    .concat_all();
    let mut tried = BTreeSet::new();
    for case in &cases {
        let rule = rule(case.rule);
        let found = judge(&house(&case.bad), &rule);
        assert!(!found.is_kept, "{}: nothing was found", case.rule);
        let said = found.below.join("\n") + &found.notes.join("\n");
        assert!(said.contains(case.says), "{}: wanted {:?}, found: {said}", case.rule, case.says);
        let kept = judge(&house(&case.good), &rule);
        assert!(kept.is_kept, "{}: {} {:?}", case.rule, kept.line, kept.below);
        tried.insert(case.rule);
    }
    let by_themselves = [
        "every path of tests/tidy.toml is there",
        "licences and sources are those of deny.toml",
        "rust-version is one that every dependency builds with, and the README names it",
    ];
    let untried = all()
        .into_iter()
        .map(|rule| rule.name)
        .filter(|name| !tried.contains(name) && !by_themselves.contains(name));
    assert_eq!(untried.collect::<Vec<_>>(), Vec::<&str>::new(), "rules without a case");
}

trait ConcatAll {
    fn concat_all(self) -> Vec<Case>;
}

impl<const N: usize> ConcatAll for [Vec<Case>; N] {
    fn concat_all(self) -> Vec<Case> {
        self.into_iter().flatten().collect()
    }
}

fn code() -> Vec<Case> {
    vec![
        case(
            "no locks and no unbounded queues in the files every message passes",
            [("high/src/hot.rs", "use std::sync::Mutex;"), ("high/src/lib.rs", "mod hot;")],
            "hot.rs:1",
            [
                ("high/src/hot.rs", "// A Mutex.\n#[cfg(test)]\nmod tests { use std::sync::Mutex; }"),
                ("high/src/lib.rs", "mod hot;"),
            ],
        ),
        case(
            "threads are started by transport::thread::spawn",
            [("high/src/lib.rs", "use std::thread;\nfn f() { thread::spawn(|| ()); }")],
            "lib.rs:2",
            [("high/src/lib.rs", "use low::thread;\nfn f() { thread::spawn(\"name\", || ()); }")],
        ),
        case(
            "lines of a file",
            [("high/src/lib.rs", &"\n".repeat(601))],
            "601  high/src/lib.rs",
            [("high/src/lib.rs", &"\n".repeat(600))],
        ),
        case(
            "numbers are packed by pack.rs",
            [("high/src/lib.rs", "fn f(a: u64, b: u64) -> u64 { a | (b << 8) }")],
            "b << 8",
            [(
                "high/src/lib.rs",
                "type T = <<A as B>::C as D>::E;\nconst K: u64 = 1 << 8;\nfn f(a: u64) -> u64 { a << 8 // cut on purpose: a hash\n}",
            )],
        ),
        case(
            "checks hold in release builds too",
            [("high/src/lib.rs", "fn f() { debug_assert_eq!(1, 1); }")],
            "debug_assert_eq",
            [("high/src/lib.rs", "fn f() { assert_eq!(1, 1); }")],
        ),
    ]
}

fn calls() -> Vec<Case> {
    vec![
        case(
            "copies of requests and answers are counted",
            [("high/src/lib.rs", "fn f(a: &[u8]) -> Vec<u8> { a.to_vec() }")],
            "to_vec",
            [("high/src/lib.rs", "fn f(a: &[u8]) -> Vec<u8> {\n    a.to_vec() // counted\n}")],
        ),
        case(
            "nothing left to do in the code",
            [("high/tests/it.rs", "fn f() { todo!() }")],
            "it.rs:1",
            [("high/tests/it.rs", "// todo!()\nfn f() {}")],
        ),
        case(
            "only one file of rpc wakes",
            [("high/src/lib.rs", "fn f(waker: Waker) { waker.wake(); }")],
            "waker.wake()",
            [("high/src/wake.rs", "fn f(waker: Waker) { waker.wake(); }"), ("high/src/lib.rs", "mod wake;")],
        ),
        case(
            "calls that a signal can interrupt are started again",
            [("high/src/lib.rs", "fn f() { rustix::net::recvmsg(a); }")],
            "recvmsg",
            [("high/src/lib.rs", "fn f() { retry_on_intr(|| rustix::net::recvmsg(a)); }")],
        ),
    ]
}

fn boundaries() -> Vec<Case> {
    vec![
        case(
            "every Rust file can be read",
            [("high/src/lib.rs", "fn f( {}")],
            "high/src/lib.rs",
            [("high/src/lib.rs", "fn f() {}")],
        ),
        case(
            "unsafe only where tests/tidy.toml allows it",
            [("low/src/lib.rs", "fn f() { unsafe { g() } }")],
            "low/src/lib.rs:1",
            [("low/src/mem/mod.rs", "fn f() { unsafe { g() } }"), ("low/src/lib.rs", "mod mem; // unsafe\n")],
        ),
        case(
            "forbid(unsafe_code) in every other crate",
            [("high/src/lib.rs", "//! #![forbid(unsafe_code)]")],
            "high/src/lib.rs",
            [("high/src/lib.rs", "#![forbid(unsafe_code)]"), ("low/src/lib.rs", "mod mem;")],
        ),
        case(
            "rdma_sys is named in one file",
            [("low/src/lib.rs", "use rdma_sys::ibv_qp;")],
            "low/src/lib.rs",
            [("low/src/rdma.rs", "use rdma_sys::ibv_qp;"), ("low/src/lib.rs", "mod rdma; // rdma_sys")],
        ),
        case(
            "the rdma crate knows no word of gimmal",
            [("low/src/rdma.rs", "//! Made for Gimmal.")],
            "rdma.rs:1",
            [("low/src/rdma.rs", "//! gimmal_rdma"), ("low/src/lib.rs", "//! gimmal")],
        ),
        case(
            "engine and rpc name no provider",
            [
                ("low/src/lib.rs", "pub mod shm;"),
                ("low/src/shm/mod.rs", "pub struct Port;"),
                ("high/src/lib.rs", "use low::{self as transport};\ntype P = transport::shm::Port;"),
            ],
            "shm: high/src/lib.rs:2",
            [
                ("low/src/lib.rs", "pub mod shm; pub trait Port {}"),
                ("low/src/shm/mod.rs", ""),
                ("high/src/lib.rs", "use low::Port;\n#[cfg(test)]\nmod tests { use low::shm; }"),
            ],
        ),
        case(
            "providers do not import each other",
            [
                ("low/src/lib.rs", "mod shm; mod verbs; pub use verbs::Device;"),
                ("low/src/verbs/mod.rs", "pub struct Device;"),
                ("low/src/shm/mod.rs", "use crate::Device;"),
            ],
            "verbs: low/src/shm/mod.rs:1",
            [
                ("low/src/lib.rs", "mod shm; mod verbs; mod id;"),
                ("low/src/id.rs", "pub struct Id;"),
                ("low/src/verbs/mod.rs", "use crate::id::Id;"),
                ("low/src/shm/mod.rs", "use crate::id::Id;"),
            ],
        ),
    ]
}

fn circles() -> Vec<Case> {
    vec![case(
        "files in import circles inside a crate",
        [
            ("low/src/lib.rs", "mod a; mod b; mod c;"),
            ("low/src/a.rs", "use crate::b::B; pub struct A;"),
            ("low/src/b.rs", "pub struct B; fn f() -> super::c::C {}"),
            ("low/src/c.rs", "pub struct C; fn f(_: crate::a::A) {}"),
        ],
        "3 files in low: a.rs -> b.rs",
        [
            // A root that exports names again is in no circle, and tests may import anything.
            ("low/src/lib.rs", "mod a; mod b; mod c; pub use a::A;"),
            ("low/src/a.rs", "use crate::b::B; pub struct A;"),
            ("low/src/b.rs", "pub struct B;"),
            (
                "low/src/c.rs",
                "pub struct C; fn f(_: crate::A) {}\n#[cfg(test)]\nmod tests { use crate::a::A; }",
            ),
        ],
    )]
}

fn comments() -> Vec<Case> {
    vec![
        case(
            "SAFETY comments argue",
            [("low/src/lib.rs", "fn f() {\n    // SAFETY: ffi\n    g();\n}")],
            "lib.rs:2",
            [(
                "low/src/lib.rs",
                "const T: &str = \"// SAFETY: ffi\";\n// SAFETY: the handle is alive\nfn f() {}",
            )],
        ),
        case(
            "every SYNC POINT has its other end",
            [("low/src/lib.rs", "// SYNC POINT: one end\nfn f() {}")],
            "one end",
            [("low/src/lib.rs", "// SYNC POINT: one end\nfn f() {} // SYNC POINT: one end")],
        ),
        case(
            "every future of rpc says whether it is cancel safe",
            [("high/src/lib.rs", "/// Waits.\npub async fn f() {}")],
            "lib.rs:2",
            [("high/src/lib.rs", "/// Waits. Cancel safe.\npub async fn f() {}")],
        ),
    ]
}

fn named_elsewhere() -> Vec<Case> {
    vec![
        case(
            "every config field is in tuning.md",
            [
                ("high/src/lib.rs", "mod config;"),
                ("high/src/config.rs", "pub struct C { pub depth: u32 }"),
                ("tuning.md", "the depth"),
            ],
            "depth",
            [
                ("high/src/lib.rs", "mod config;"),
                ("high/src/config.rs", "pub struct C { pub depth: u32, own: u8 }"),
                ("tuning.md", "`c.depth`"),
            ],
        ),
        case(
            "every method of a builder is tested in pairs",
            [("high/src/lib.rs", "impl B { pub fn size(mut self, n: u32) -> Self { self } }")],
            "size",
            [(
                "high/src/lib.rs",
                "impl B { pub fn size(mut self, n: u32) -> Self { self } }\n#[cfg(test)]\nmod tests { const M: &str = \"size\"; }",
            )],
        ),
        case(
            "every test named in tests/faults.md and docs/limits.md exists",
            [("tests/faults.md", "| a | `r1_gone` |"), ("high/tests/it.rs", "// r1_gone\nfn r1_there() {}")],
            "r1_gone",
            [("tests/faults.md", "| a | `r1_there` |"), ("high/tests/it.rs", "fn r1_there() {}")],
        ),
        case(
            "every test named in tests/faults.md and docs/limits.md exists",
            [("docs/limits.md", "| a | `r1_gone` |"), ("high/tests/it.rs", "fn r1_there() {}")],
            "r1_gone",
            [("docs/limits.md", "| a | `r1_there` |"), ("high/tests/it.rs", "fn r1_there() {}")],
        ),
        case(
            "every row of docs/limits.md names its test",
            [("docs/limits.md", "| what | test |\n|---|---|\n| memory | – |")],
            "memory",
            [("docs/limits.md", "| what | test |\n|---|---|\n| memory | `it_ends` |")],
        ),
        tables::row_of_the_cm("| `rdma_f` | `cm::Id::f` | |", "cell"),
        tables::row_of_the_cm("| `rdma_f` | f | `t_there` |", "Rust names nothing"),
        tables::row_of_the_cm("| `rdma_f` | `cm::Gone` | `t_there` |", "cm::Gone does not exist"),
        tables::row_of_the_cm("| `rdma_f` | `cm::Id::g` | `t_there` |", "cm::Id::g does not exist"),
        tables::row_of_the_cm("| `rdma_f` | `cm::K::B` | `t_there` |", "cm::K::B does not exist"),
        tables::row_of_the_cm("| `rdma_f` | `cm::Id` | `t_gone` |", "t_gone does not exist"),
        tables::row_of_the_cm("| `rdma_g` | `cm::Id` | `t_there` |", "rdma_f is declared and has no row"),
    ]
}

/// A row of the RDMA CM's table that breaks its rule.
fn names() -> Vec<Case> {
    vec![
        case(
            "public types of one crate that share a name",
            [
                ("low/src/lib.rs", "mod a; mod b;"),
                ("low/src/a.rs", "pub struct Id;"),
                ("low/src/b.rs", "pub enum Id {}"),
            ],
            "Id: low/src/a.rs, low/src/b.rs",
            [
                ("low/src/lib.rs", "mod a; mod b;"),
                ("low/src/a.rs", "pub struct Id;"),
                ("low/src/b.rs", "pub(crate) enum Id {}"),
            ],
        ),
        case(
            "types imported into one file that share a name",
            [("low/src/lib.rs", "use std::io::Error;\nuse std::fmt::Error as Written;")],
            "Error: std::fmt::Error, std::io::Error",
            [
                // One type by two ways, and traits that are imported for their methods.
                ("low/src/lib.rs", "mod a; pub use a::Id;\nmod b;"),
                ("low/src/a.rs", "pub struct Id;"),
                (
                    "low/src/b.rs",
                    "use crate::Id; use crate::a::Id as Same; use std::fmt::Write as _; use std::io::Write;",
                ),
            ],
        ),
        case(
            "tuned constants without a line in the ledger",
            [
                ("high/src/lib.rs", "mod pace;"),
                (
                    "high/src/pace.rs",
                    "const SPINS: u32 = 3; // ledger: spins\nconst U: u32 = 4; // ledger: unknown\nconst BARE: u32 = 5;",
                ),
                ("ledger.toml", "[spins]\neffect = \"3 %\""),
            ],
            "BARE has no",
            [
                ("high/src/lib.rs", "mod pace;"),
                ("high/src/pace.rs", "const SPINS: u32 = 3; // ledger: spins"),
                ("ledger.toml", "[spins]"),
            ],
        ),
    ]
}

fn concepts() -> Vec<Case> {
    let methods =
        |count: usize| (0..count).map(|number| format!("fn m{number}(&self) {{}} ")).collect::<String>();
    let public =
        |count: usize| (0..count).map(|number| format!("pub fn m{number}(&self) {{}} ")).collect::<String>();
    let types = |count: usize| (0..count).map(|number| format!("pub struct T{number}; ")).collect::<String>();
    let kinds = |count: usize| (0..count).map(|number| format!("K{number}, ")).collect::<String>();
    vec![
        case(
            "methods that a provider can implement",
            [(
                "low/src/lib.rs",
                &format!("pub trait Port: Base {{ {} }} trait Base {{ {} }}", methods(20), methods(5)),
            )],
            "Base 5, Port 20",
            [(
                "low/src/lib.rs",
                &format!("pub trait Port: Base {{ {} }} trait Base {{ {} }}", methods(20), methods(4)),
            )],
        ),
        case(
            "public inherent methods of a type",
            [(
                "low/src/lib.rs",
                &format!("pub struct A; impl A {{ {} }} impl A {{ pub fn more() {{}} }}", public(20)),
            )],
            "21  low: A",
            [(
                "low/src/lib.rs",
                &format!(
                    "pub struct A; impl A {{ {} fn own() {{}} }} impl T for A {{ fn more() {{}} }}",
                    public(20)
                ),
            )],
        ),
        case(
            "names at the root of gimmal",
            [
                ("high/src/lib.rs", &format!("pub use low::*; {}", types(30))),
                ("low/src/lib.rs", &format!("pub mod m; {}", types(40).replace('T', "U"))),
            ],
            "U39",
            [
                ("high/src/lib.rs", &format!("pub use low::{{U1, U2}}; {}", types(30))),
                ("low/src/lib.rs", &types(40).replace('T', "U")),
            ],
        ),
        case(
            "kinds of RPC message",
            [
                ("high/src/lib.rs", "mod frame;"),
                ("high/src/frame.rs", &format!("enum Kind {{ {} }}", kinds(9))),
            ],
            "K8",
            [
                ("high/src/lib.rs", "mod frame;"),
                ("high/src/frame.rs", &format!("enum Kind {{ {} }}", kinds(8))),
            ],
        ),
    ]
}

fn sizes() -> Vec<Case> {
    let lines = |count: usize| "    g();\n".repeat(count);
    vec![
        case(
            "code lines of a file without its tests",
            [("high/src/lib.rs", &format!("fn f() {{\n{}}}", lines(499)))],
            "501  high/src/lib.rs",
            [(
                "high/src/lib.rs",
                &format!(
                    "/// Doc.\n// No code.\nfn f() {{\n{}}}\n\n#[cfg(test)]\nmod tests {{\nfn f() {{}}\n}}",
                    lines(498)
                ),
            )],
        ),
        case(
            "lines of a function",
            [("high/src/lib.rs", &format!("#[inline]\nfn f() {{\n{}}}", lines(69)))],
            "71  high/src/lib.rs:2 f",
            [("high/src/lib.rs", &format!("#[inline]\nfn f() {{\n{}}}", lines(68)))],
        ),
    ]
}

fn texts() -> Vec<Case> {
    let words = |count: usize| "word ".repeat(count);
    let code = "```sh\na command of six words\n```\n";
    vec![
        case(
            "words of README.md",
            [("README.md", &words(1_301))],
            "",
            [("README.md", &format!("{}\n{code}", words(1_300)))],
        ),
        case(
            "words of ARCHITECTURE.md",
            [("ARCHITECTURE.md", &words(4_501))],
            "",
            [("ARCHITECTURE.md", &words(4_500))],
        ),
        case(
            "lines of Markdown above 120 columns",
            [("docs/a.md", &"x".repeat(121))],
            "docs/a.md:1: 121 columns",
            [("docs/a.md", &format!("{}\n| {} |", "x".repeat(120), "x".repeat(200)))],
        ),
        case(
            "sentences above 40 words in README, ARCHITECTURE and the guide",
            [("README.md", &format!("Short one. Then {}end.", words(40))), ("high/src/lib.rs", "mod guide;")],
            "42 words: README.md:1: Then word",
            [
                (
                    "README.md",
                    &format!("{}end. A {}end.\n\n- {}\n- {}\n", words(38), words(38), words(30), words(30)),
                ),
                ("high/src/lib.rs", "mod guide;"),
                (
                    "high/src/guide.rs",
                    &format!("//! {}\n//!\n//! ```\n//! {}\n//! ```\n", words(40), words(50)),
                ),
            ],
        ),
        case(
            "patterns of tests/prose.txt in doc comments",
            [("high/src/lib.rs", "/// Wakes\n/// whoever waits.\nfn f() {}")],
            "lib.rs:1: \"whoever\": name the actor",
            [("high/src/lib.rs", "// whoever\n/// Wakes the caller.\nfn f() { let _ = \"whoever\"; }")],
        ),
    ]
}

#[test]
fn a_path_of_the_settings_that_is_gone_is_told() {
    let house =
        House::with(Tree::of(&[("a/b.rs", "")]), "[paths]\nhot = [\"a/b.rs\", \"a/\", \"a/c.rs\"]").unwrap();
    assert_eq!(house.dead_paths(), ["tests/tidy.toml: hot: no file is at a/c.rs"]);
}

#[test]
fn licences_that_are_not_allowed_are_found() {
    let deny = "[licenses]\nallow = [\"MIT\", \"ISC\"]";
    let registry = "registry+https://github.com/rust-lang/crates.io-index";
    let package = |name: &str, licence: &str, source: &str| json!({ "name": name, "version": "1.0.0", "license": licence, "source": source });
    let metadata = json!({ "packages": [
        package("free", "MIT OR GPL-3.0", registry),
        package("both", "MIT AND GPL-3.0", registry),
        package("old", "MIT/Apache-2.0", registry),
        package("elsewhere", "ISC", "git+https://example.org"),
    ] });
    let found = licences::judge(&metadata, deny);
    assert_eq!(found, ["both 1.0.0: MIT AND GPL-3.0", "elsewhere comes from git+https://example.org"]);
    assert_eq!(licences::judge(&json!({}), deny).len(), 1, "nothing to judge is no success");
}

#[test]
fn a_ceiling_allows_what_is_there_and_no_more() {
    let rule = rule("nothing left to do in the code");
    let judged = |text: &str, now: usize| {
        let settings = format!("[ceilings]\n\"{}\" = {{ now = {now}, aim = 0 }}", rule.name);
        judge(&House::with(Tree::of(&[("a.rs", text)]), &settings).unwrap(), &rule)
    };
    let (two, three) = ("fn f() { todo!(); dbg!(1) }", "fn f() { todo!(); dbg!(1); dbg!(2) }");
    assert!(judged(two, 2).is_kept && judged(two, 2).lower.is_none());
    assert!(!judged(three, 2).is_kept);
    assert_eq!(judged(two, 3).lower, Some(2));
    assert_eq!(judged("", 3).lower, Some(0));
}
