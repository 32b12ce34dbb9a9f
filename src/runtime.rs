//! Connects the parts that run a plan: the pool, the broker, the external agents and the status socket.

use std::path::PathBuf;
use std::sync::Arc;

use crate::adapter::attach::Attachments;
use crate::adapter::requirement_server::RequirementServer;
use crate::agents::ExternalAgents;
use crate::broker::Broker;
use crate::external::{ExternalAgentPool, LaunchContext, NoExternalAgents};
use crate::graph::Plan;
use crate::services::{BuiltinRegistry, Pool, PoolOptions};
use crate::task::TaskScope;

mod status;

pub use status::{StatusReport, reports};

/// The paths that a running Skein process uses.
#[derive(Debug, Clone)]
pub struct RuntimePaths {
    /// The folder for sockets.
    pub sockets: PathBuf,
    /// The Skein executable, which external agents and services start to attach to this process.
    pub program: PathBuf,
    /// A folder for temporary files.
    pub scratch: PathBuf,
}

/// Everything that was started; [`Runtime::stop`] ends all of it.
#[derive(Debug)]
pub struct Runtime {
    broker: Broker,
    pool: Pool,
    /// `None` if the runtime was started without paths.
    agents: Option<ExternalAgentPool>,
    scope: TaskScope,
}

impl Runtime {
    /// Creates a runtime. Starts only the status socket, and only if `home` is given; without `home` there are no
    /// external agents, and no program of a service reaches a service that it requires.
    pub fn start(plan: Arc<Plan>, registry: BuiltinRegistry, options: PoolOptions, home: Option<RuntimePaths>) -> Self {
        let scope = TaskScope::new();
        let (environment, reaper, sandbox) =
            (options.environment.clone(), options.reaper.clone(), options.sandbox.clone());
        let pool = Pool::new(registry, options);
        let mut broker = Broker::new(plan, pool.clone());
        let agents = home.map(|home| {
            let attachments = Attachments::new(home.sockets.clone(), &scope);
            let publisher = RequirementServer::new(attachments.clone(), home.program.clone());
            broker = broker.with_publisher(Arc::new(publisher));
            let (program, scratch) = (home.program, home.scratch);
            let context = LaunchContext { environment, reaper, attachments, program, scratch, sandbox };
            let agents = ExternalAgentPool::new(context);
            status::serve(&home.sockets, pool.clone(), agents.clone(), &scope);
            agents
        });
        Self { broker, pool, agents, scope }
    }

    /// Returns the port that runs external agents. Without paths, it runs none.
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
