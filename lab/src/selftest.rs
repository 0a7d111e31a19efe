//! Checks of the lab that need a guest.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;

use crate::{
    fabric::{Fabrics, Role},
    packages::{self, SELFTEST},
    pair::pair,
    run::{self, Limits},
    spec::{Memlock, Spec, Variable},
    verdict,
};

struct Check {
    name: &'static str,
    fabrics: Fabrics,
    /// One shell command for one guest, two for a pair.
    scripts: &'static [&'static str],
    timeout_s: u64,
    want: &'static [u8],
}

/// A client that comes too early is refused, and rping then hangs instead of failing.
macro_rules! rping {
    ($address:literal) => {
        concat!(
            "rping -s -a ",
            $address,
            " -C 10 & server=$!\n",
            "for try in $(seq 100); do rdma resource show cm_id | grep -q LISTEN && break; sleep 0.1; done\n",
            "timeout 60 rping -c -a ",
            $address,
            " -C 10 && wait $server",
        )
    };
}

const CHECKS: &[Check] = &[
    Check {
        name: "rping over rxe",
        fabrics: Fabrics::Both,
        scripts: &[rping!("$GIMMAL_RXE_ADDR")],
        timeout_s: 120,
        want: &[0],
    },
    Check {
        name: "rping over siw",
        fabrics: Fabrics::Both,
        scripts: &[rping!("$GIMMAL_SIW_ADDR")],
        timeout_s: 120,
        want: &[0],
    },
    Check {
        name: "an exit code travels",
        fabrics: Fabrics::None,
        scripts: &["exit 37"],
        timeout_s: 120,
        want: &[37],
    },
    Check {
        name: "a fault of the kernel ends a run",
        fabrics: Fabrics::None,
        scripts: &["echo 'WARNING: a test' > /dev/kmsg"],
        timeout_s: 120,
        want: &[verdict::KERNEL],
    },
    Check {
        name: "a time limit ends a guest",
        fabrics: Fabrics::None,
        scripts: &["sleep 600"],
        timeout_s: 15,
        want: &[verdict::TIMEOUT],
    },
    Check {
        name: "rping between two guests",
        fabrics: Fabrics::Rxe,
        scripts: &[
            "rping -s -a $GIMMAL_LOCAL_ADDR -C 10",
            "for try in 1 2 3 4 5; do timeout 20 rping -c -a a -C 10 && exit 0; sleep 1; done; exit 1",
        ],
        timeout_s: 180,
        want: &[0, 0],
    },
];

/// Runs all checks; the last line on stdout counts them.
pub(crate) fn run() -> Result<u8> {
    packages::require(&[SELFTEST])?;
    let (mut passed, mut failed) = (0, 0);
    for check in CHECKS {
        let verdicts = check.run()?;
        let codes: Vec<_> = verdicts.iter().map(|verdict| verdict.code).collect();
        if codes == check.want {
            passed += 1;
            println!("ok      {}", check.name);
        } else {
            failed += 1;
            println!("FAILED  {}: {codes:?} instead of {:?}", check.name, check.want);
            for line in verdicts.iter().flat_map(|verdict| &verdict.lines) {
                println!("        {line}");
            }
        }
    }
    println!("{passed} passed, {failed} failed, 0 skipped");
    Ok(u8::from(failed > 0))
}

impl Check {
    fn run(&self) -> Result<Vec<verdict::Verdict>> {
        let limits = Limits { timeout: Duration::from_secs(self.timeout_s), allow_kernel_warnings: false };
        if let [a, b] = self.scripts {
            let (a, b) = (self.spec(Some(Role::A), a), self.spec(Some(Role::B), b));
            return Ok(pair([&a, &b], None, &limits, true)?.into());
        }
        self.scripts.iter().map(|script| run::run(&self.spec(None, script), None, &limits, true)).collect()
    }

    fn spec(&self, role: Option<Role>, script: &str) -> Spec {
        Spec {
            role,
            fabrics: self.fabrics,
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            cwd: PathBuf::from("/"),
            env: Variable::inherited(),
            shares: Vec::new(),
            memlock: Memlock::Unlimited,
            mem_mb: 2048,
            cpus: 2,
            nodes: 1,
        }
    }
}
