//! What comments must say.

use std::collections::BTreeMap;

use super::rule::{Found, Rule};
use crate::house::House;

/// The rules of this module.
pub const RULES: &[Rule] = &[
    Rule { name: "SAFETY comments argue", limit: 0, find: empty_safety },
    Rule { name: "every SYNC POINT has its other end", limit: 0, find: lonely_sync_points },
    Rule { name: "every future of rpc says whether it is cancel safe", limit: 0, find: unsaid_cancel_safety },
];

fn empty_safety(house: &House) -> Found {
    let found = house.sources.values().flat_map(|source| {
        let empty = source.comments.iter().filter(|comment| {
            let reason = comment.text.strip_prefix("SAFETY:").map(str::trim_start);
            reason.is_some_and(|reason| {
                reason.is_empty()
                    || ["ffi", "todo", "?"].iter().any(|it| reason.to_lowercase().starts_with(it))
            })
        });
        empty.map(|comment| source.show(comment.line))
    });
    found.collect::<Vec<_>>().into()
}

fn lonely_sync_points(house: &House) -> Found {
    let mut labels: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in house.sources.values() {
        for comment in &source.comments {
            for (_, after) in comment
                .text
                .match_indices("SYNC POINT: ")
                .map(|(at, it)| (at, &comment.text[at + it.len()..]))
            {
                let end = after
                    .find(|character: char| !matches!(character, 'a'..='z' | ' ' | '-'))
                    .unwrap_or(after.len());
                labels.entry(after[..end].to_owned()).or_default().push(source.show(comment.line));
            }
        }
    }
    let lonely = labels.into_values().filter(|places| places.len() < 2).flatten();
    lonely.collect::<Vec<_>>().into()
}

/// Futures whose documentation does not say what is lost when they are dropped before they are ready.
fn unsaid_cancel_safety(house: &House) -> Found {
    let found = house.listed("futures").flat_map(|source| {
        let futures = source.items.functions.iter().filter(|it| it.is_public && it.is_async && !it.is_test);
        let unsaid = futures.filter(|it| !it.doc.to_lowercase().contains("cancel safe"));
        unsaid.map(|it| source.show(it.line))
    });
    found.collect::<Vec<_>>().into()
}
