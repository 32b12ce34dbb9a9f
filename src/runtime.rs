//! A plan that runs: the pool, the broker over it, and the socket on which it tells how it is.

use std::path::PathBuf;
use std::sync::Arc;

use crate::adapter::attach::Attachments;
use crate::agents::ExternalAgents;
use crate::broker::Broker;
use crate::external::{ExternalAgentPool, LaunchContext, NoExternalAgents};
use crate::graph::Plan;
use crate::services::{BuiltinRegistry, Pool, PoolOptions};
use crate::task::TaskScope;

mod status;

pub use status::{StatusReport, reports};

/// Where a running Skein is at home on this machine.
#[derive(Debug, Clone)]
pub struct RuntimePaths {
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
    agents: Option<ExternalAgentPool>,
    scope: TaskScope,
}

impl Runtime {
    /// Nothing is started yet but the status socket, at `home` if there is one.
    pub fn start(plan: Arc<Plan>, registry: BuiltinRegistry, options: PoolOptions, home: Option<RuntimePaths>) -> Self {
        let scope = TaskScope::new();
        let (environment, reaper) = (options.environment.clone(), options.reaper.clone());
        let pool = Pool::new(registry, options);
        let agents = home.map(|home| {
            let attachments = Attachments::new(home.sockets.clone(), &scope);
            let (program, scratch) = (home.program, home.scratch);
            let agents = ExternalAgentPool::new(LaunchContext { environment, reaper, attachments, program, scratch });
            status::serve(&home.sockets, pool.clone(), agents.clone(), &scope);
            agents
        });
        Self { broker: Broker::new(plan, pool.clone()), pool, agents, scope }
    }

    /// Whoever runs agents that are programs of their own.
    pub fn external_agents(&self) -> Arc<dyn ExternalAgents> {
        match &self.agents {
            Some(agents) => Arc::new(agents.clone()),
            None => Arc::new(NoExternalAgents),
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
