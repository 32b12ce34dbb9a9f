//! A plan that runs: the pool, the broker over it, and the socket on which it tells how it is.

use std::path::PathBuf;
use std::sync::Arc;

use crate::broker::Broker;
use crate::graph::Plan;
use crate::services::{Pool, PoolOptions, Registry};
use crate::task::Scope;

mod status;

pub use status::{Report, reports};

/// Everything that was started; [`Runtime::stop`] ends all of it.
#[derive(Debug)]
pub struct Runtime {
    broker: Broker,
    pool: Pool,
    scope: Scope,
}

impl Runtime {
    /// Nothing is started yet but the status socket, in `sockets` if given.
    pub fn start(plan: Arc<Plan>, registry: Registry, options: PoolOptions, sockets: Option<PathBuf>) -> Self {
        let pool = Pool::new(registry, options);
        let scope = Scope::new();
        if let Some(folder) = sockets {
            status::serve(&folder, pool.clone(), &scope);
        }
        Self { broker: Broker::new(plan, pool.clone()), pool, scope }
    }

    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Ends every service, process and task.
    pub async fn stop(self) {
        self.scope.stop().await;
        self.pool.stop().await;
    }
}
