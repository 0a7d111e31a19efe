//! Admission to shared memory: the users and groups at the other end of a socket, as the kernel names them.

/// An allow-list for shared memory, by what `SO_PEERCRED` says of the process at the other end. By default: this user,
/// and root, who could read us anyway. One that names anybody lets in only those it names.
///
/// ```
/// use gimmal_transport::Allow;
///
/// let allow = Allow::default().uid(1000).gid(4242); // this user, and processes of that group
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allow {
    uids: Vec<u32>,
    gids: Vec<u32>,
}

impl Allow {
    /// Adds the user `uid`. A list admits only those it names: add this process's own user, and root, if they are to
    /// connect.
    #[must_use]
    pub fn uid(mut self, uid: u32) -> Self {
        self.uids.push(uid);
        self
    }

    /// Adds processes whose group is `gid`; groups beside a process's first do not count. A list admits only those it
    /// names.
    #[must_use]
    pub fn gid(mut self, gid: u32) -> Self {
        self.gids.push(gid);
        self
    }

    /// Whether it names nobody: this user and root.
    #[must_use]
    #[doc(hidden)]
    pub fn is_default(&self) -> bool {
        self.uids.is_empty() && self.gids.is_empty()
    }

    /// Whether a process of `uid` and `gid` is let in by a process of the user `ours`.
    #[must_use]
    #[doc(hidden)]
    pub fn admits(&self, ours: u32, uid: u32, gid: u32) -> bool {
        if self.is_default() {
            return uid == ours || uid == 0;
        }
        self.uids.contains(&uid) || self.gids.contains(&gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BuilderCall, no_call_undoes_another};

    #[test]
    fn no_name_on_a_list_undoes_another() {
        let calls: &[BuilderCall<Allow>] = &[("uid", |allow| allow.uid(7)), ("gid", |allow| allow.gid(7))];
        no_call_undoes_another(Allow::default, calls, |allow| allow);
    }

    #[test]
    fn only_the_named_are_let_in() {
        let default = Allow::default();
        assert!(default.admits(7, 7, 7) && default.admits(7, 0, 0) && !default.admits(7, 8, 7));
        let some = Allow::default().uid(8).gid(20);
        assert!(some.admits(7, 8, 1) && some.admits(7, 9, 20));
        assert!(!some.admits(7, 7, 7) && !some.admits(7, 0, 0), "a list is the whole list");
    }
}
