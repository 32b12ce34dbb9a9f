//! A plan that runs: the pool, the broker over it, and the socket on which it tells how it is.

use std::path::PathBuf;
use std::sync::Arc;

use crate::adapter::attach::Attachments;
use crate::agents::Outside;
use crate::broker::Broker;
use crate::external::{Agents, Nobody, Surroundings};
use crate::graph::Plan;
use crate::services::{Pool, PoolOptions, Registry};
use crate::task::Scope;

mod status;

pub use status::{Report, reports};

/// Where a running Skein is at home on this machine.
#[derive(Debug, Clone)]
pub struct Home {
    /// The folder of its sockets.
    pub sockets: PathBuf,
    /// The program itself, which others start to attach to it.
    pub program: PathBuf,
    /// A folder for what does not last.
    pub scratch: PathBuf,
}

/// Everything that was started; [`Runtime::stop`] ends all of it.
#[derive(Debug)]
pub struct Runtime {
    broker: Broker,
    pool: Pool,
    /// Without a home there are none.
    agents: Option<Agents>,
    scope: Scope,
}

impl Runtime {
    /// Nothing is started yet but the status socket, at `home` if there is one.
    pub fn start(plan: Arc<Plan>, registry: Registry, options: PoolOptions, home: Option<Home>) -> Self {
        let scope = Scope::new();
        let (environment, reaper) = (options.environment.clone(), options.reaper.clone());
        let pool = Pool::new(registry, options);
        let agents = home.map(|home| {
            let attachments = Attachments::new(home.sockets.clone(), &scope);
            let (program, scratch) = (home.program, home.scratch);
            let agents = Agents::new(Surroundings { environment, reaper, attachments, program, scratch });
            status::serve(&home.sockets, pool.clone(), agents.clone(), &scope);
            agents
        });
        Self { broker: Broker::new(plan, pool.clone()), pool, agents, scope }
    }

    /// Whoever runs agents that are programs of their own.
    pub fn outside(&self) -> Arc<dyn Outside> {
        match &self.agents {
            Some(agents) => Arc::new(agents.clone()),
            None => Arc::new(Nobody),
        }
    }

    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Ends every service, process and task.
    pub async fn stop(self) {
        if let Some(agents) = &self.agents {
            agents.stop().await;
        }
        self.scope.stop().await;
        self.pool.stop().await;
    }
}
