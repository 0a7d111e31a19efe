//! The accounts of a port's connections. Verbs keeps them with their seats.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use crate::{ConnId, LoanError, PortConfig, mem::Account, sync::lock::lock};

/// The connections of a port that loans may be had for, and what each has.
#[derive(Default, Debug)]
pub(crate) struct Accounts {
    open: Mutex<BTreeMap<ConnId, Arc<Account>>>,
}

impl Accounts {
    /// From now on loans may be had for `conn`.
    pub(crate) fn open(&self, conn: ConnId, config: &PortConfig) {
        lock(&self.open).insert(conn, Account::new(config.loan_bytes_max));
    }

    /// From now on no loan may be had for `conn`.
    pub(crate) fn close(&self, conn: ConnId) {
        lock(&self.open).remove(&conn);
    }

    /// What `conn` has, while it is open.
    pub(crate) fn of(&self, conn: ConnId) -> Option<Arc<Account>> {
        lock(&self.open).get(&conn).cloned()
    }

    /// The account of `conn`, which may have memory of `bytes`.
    pub(crate) fn admit(
        &self,
        conn: ConnId,
        bytes: usize,
        config: &PortConfig,
    ) -> Result<Arc<Account>, LoanError> {
        let account = self.of(conn).ok_or(LoanError::Closed)?;
        let (bytes, limit) = (bytes as u64, config.bulk_bytes_max);
        if bytes > limit { Err(LoanError::TooLarge { bytes, limit }) } else { Ok(account) }
    }
}
