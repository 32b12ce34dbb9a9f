//! Binds the services that a service requires, so that its program can call them. The rules, the approval level and the
//! consents of the session apply to such a call, as if the model had made it.
//!
//! Invariant: a program calls a required service only while it works on a call of the session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio_util::sync::CancellationToken;

use super::RequiredBinder;
use super::binding::{Binding, BindingBase};
use super::session_state::BrokerState;
use crate::ids::ServiceName;
use crate::services::{ActiveCalls, RequirementHost, RequirementRequest, Service};
use crate::tool::{AddressForm, CallContext, Catalog, RequirementError, RequirementOffer};

/// Publishes a required service as an MCP server that one program can use.
pub trait RequirementPublisher: std::fmt::Debug + Send + Sync {
    /// Fails if the system gives no socket, port or random numbers, or this program is about to end.
    fn publish(&self, source: RequirementSource, form: AddressForm) -> Result<RequirementOffer, RequirementError>;
}

/// A binding, and the catalog that it shows.
type CatalogBinding = (Arc<Catalog>, Arc<Binding>);

/// Makes the bindings of required services for one session in one mode. The session's binding holds it.
pub(super) struct RequirementBinder {
    base: BindingBase,
    /// The bindings so far, with the catalog that each shows.
    bindings: Mutex<HashMap<ServiceName, CatalogBinding>>,
}

impl RequirementBinder {
    pub(super) fn new(base: BindingBase) -> Self {
        Self { base, bindings: Mutex::default() }
    }
}

impl RequiredBinder for RequirementBinder {
    fn binding(&self, service: &Arc<Service>, catalog: &Arc<Catalog>) -> Option<Arc<Binding>> {
        let name = service.name();
        let mut bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = bindings.get(name).filter(|(shown, _)| Arc::ptr_eq(shown, catalog)) {
            return Some(Arc::clone(known));
        }
        let entry = self.base.request.service(&self.base.plan, name.as_str())?;
        let base = BindingBase { scope: self.base.scope.for_required(entry), ..self.base.clone() };
        let binding = Arc::new(Binding::of_required(&base, service, catalog));
        bindings.insert(name.clone(), (Arc::clone(catalog), Arc::clone(&binding)));
        Some(binding)
    }
}

/// A required service, as the program of another service sees it. It holds no session, because a session ends its
/// services and they hold this.
#[derive(Clone)]
pub struct RequirementSource {
    caller: ServiceName,
    required: Arc<Service>,
    catalog: Arc<Catalog>,
    /// The calls that the caller works on.
    calls: Arc<ActiveCalls>,
    session: Weak<BrokerState>,
}

impl RequirementSource {
    /// Returns the service whose program calls.
    pub fn caller(&self) -> &ServiceName {
        &self.caller
    }

    /// Returns the required service.
    pub fn service(&self) -> &ServiceName {
        self.required.name()
    }

    /// Returns the binding of the required service in the session's current mode. `None` if the session has no mode at
    /// the moment.
    pub fn binding(&self) -> Option<Arc<Binding>> {
        let binder = self.session.upgrade()?.current_binder()?;
        binder.binding(&self.required, &self.catalog)
    }

    /// Returns the context of a call that the program makes now, and a token that is cancelled when the call must end.
    /// `None` if the program works on no call.
    pub fn context(&self) -> Option<(CallContext, CancellationToken)> {
        let (outer, ended) = self.calls.newest()?;
        Some((outer.inner(self.caller.clone()), ended))
    }
}

impl std::fmt::Debug for RequirementSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RequirementSource({} for {})", self.service(), self.caller)
    }
}

/// Offers required services to the programs of one session.
pub(super) struct SessionRequirements {
    pub(super) publisher: Option<Arc<dyn RequirementPublisher>>,
    pub(super) session: Weak<BrokerState>,
}

impl RequirementHost for SessionRequirements {
    fn offer(&self, request: RequirementRequest) -> Result<RequirementOffer, RequirementError> {
        let RequirementRequest { caller, required, catalog, calls, form } = request;
        let Some(publisher) = &self.publisher else {
            return Err(RequirementError::NoServer { service: required.name().clone() });
        };
        let session = Weak::clone(&self.session);
        publisher.publish(RequirementSource { caller, required, catalog, calls, session }, form)
    }
}

impl std::fmt::Debug for SessionRequirements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionRequirements").field("publisher", &self.publisher).finish_non_exhaustive()
    }
}
