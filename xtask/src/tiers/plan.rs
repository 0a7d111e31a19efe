//! The order of the tiers that were asked for.

use super::list::{ALL, QUICK, Tier, Turn};

/// Tiers by when they run. Each list is run one after the other.
#[derive(Default, Debug)]
pub(super) struct Plan {
    /// In front.
    pub(super) first: Vec<Tier>,
    /// In the lane, from the start.
    pub(super) early: Vec<Tier>,
    /// In the lane, when the lab has built and measured.
    pub(super) beside: Vec<Tier>,
    /// In front, when the lab and the lane are done.
    pub(super) last: Vec<Tier>,
}

impl Plan {
    /// The plan for these tiers; all where none is named.
    ///
    /// # Errors
    /// The name that no tier has.
    pub(super) fn of(names: &[String]) -> Result<Self, String> {
        let tiers = match names {
            [] => ALL.to_vec(),
            [quick] if quick == "quick" => QUICK.to_vec(),
            names => names.iter().map(|name| tier(name)).collect::<Result<_, _>>()?,
        };
        let has_lab = tiers.iter().any(|tier| tier.turn == Turn::Lab);
        let mut plan = Self::default();
        for tier in tiers {
            let list = match tier.turn {
                _ if !has_lab => &mut plan.first,
                Turn::Normal | Turn::Alone | Turn::Lab => &mut plan.first,
                Turn::FromStart => &mut plan.early,
                Turn::BesideLab => &mut plan.beside,
                Turn::AfterLab => &mut plan.last,
            };
            list.push(tier);
        }
        Ok(plan)
    }
}

fn tier(name: &str) -> Result<Tier, String> {
    let names = || ALL.iter().map(|tier| tier.name).collect::<Vec<_>>().join(" ");
    ALL.iter()
        .find(|tier| tier.name == name)
        .copied()
        .ok_or_else(|| format!("unknown tier {name}; there are quick, or {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(names: &str) -> [Vec<&'static str>; 4] {
        let names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
        let plan = Plan::of(&names).unwrap();
        [plan.first, plan.early, plan.beside, plan.last]
            .map(|list| list.iter().map(|tier| tier.name).collect())
    }

    #[test]
    fn without_the_lab_tiers_run_as_they_are_named() {
        assert_eq!(
            plan("tidy loom fmt readme"),
            [vec!["tidy", "loom", "fmt", "readme"], vec![], vec![], vec![]]
        );
    }

    #[test]
    fn all_tiers_run_once_around_the_lab() {
        let [first, early, beside, last] = plan("");
        let normal = [
            "fmt",
            "unit",
            "sysfs",
            "hostile",
            "churn",
            "conformance",
            "tidy",
            "bench",
            "demo",
            "cli",
            "programs",
            "lab",
        ];
        assert_eq!(first, normal);
        assert_eq!(early, ["lint", "doc", "planted", "loom"]);
        assert_eq!(beside, ["compile", "seeds", "worlds", "packages"]);
        assert_eq!(last, ["rdma_sys", "bincode", "sanitize", "readme"]);
    }

    #[test]
    fn an_unknown_tier_is_named() {
        assert!(Plan::of(&["tidy".to_owned(), "tidi".to_owned()]).unwrap_err().contains("unknown tier tidi"));
    }
}
