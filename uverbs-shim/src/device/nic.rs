//! The NIC of this process, shared by all contexts, and the routing of its events to them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use roxie::host::{Device, DeviceConfig, Stack};
use roxie::verbs::AsyncEvent;

use crate::base::fork;
use crate::base::lock::lock;
use crate::base::object::Errno;
use crate::base::report;
use crate::device::event_queue::{Element, EventQueue};
use crate::device::settings;

/// The NIC, open while at least one context is.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) device: Device,
    generation: u32,
    router: Arc<Mutex<Router>>,
}

/// Maps events to the queues of contexts.
#[derive(Debug, Default)]
struct Router {
    objects: HashMap<Source, (Arc<EventQueue>, Element)>,
    contexts: Vec<Weak<EventQueue>>,
}

/// Source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Qp(u32),
    Cq(u32),
    Srq(u32),
}

/// The open NIC, and the generation of the process that opened it.
static OPEN: Mutex<(u32, Weak<Nic>)> = Mutex::new((0, Weak::new()));

/// The process that opened the NIC. A child of `vfork` runs in its parent's memory, and ends by `_exit`.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Called on changes of the port, in addition to the contexts' queues. Must not block.
static PORT_WATCHER: OnceLock<fn()> = OnceLock::new();

/// Registers `tell`, to be called on each change of the port by the thread that runs the NIC. There is one caller,
/// which may call repeatedly.
pub(crate) fn watch_port(tell: fn()) {
    PORT_WATCHER.get_or_init(|| tell);
}

impl Nic {
    /// Returns the NIC of this process, and opens it if necessary.
    pub(crate) fn open(call: &'static str) -> Result<Arc<Nic>, Errno> {
        fork::watch();
        let mut open = lock(&OPEN);
        if let (true, Some(nic)) = (open.0 == fork::generation(), open.1.upgrade()) {
            return Ok(nic);
        }
        let nic = Arc::new(Nic::start(call)?);
        *open = (fork::generation(), Arc::downgrade(&nic));
        // SAFETY: no preconditions.
        OWNER.store(unsafe { libc::getpid() }, Relaxed);
        Ok(nic)
    }

    /// Returns the NIC of this process if it is open. Returns `None` also while another thread opens it.
    pub(crate) fn if_open() -> Option<Arc<Nic>> {
        // SAFETY: no preconditions.
        if OWNER.load(Relaxed) != unsafe { libc::getpid() } {
            return None;
        }
        let open = OPEN.try_lock().ok()?;
        if open.0 == fork::generation() { open.1.upgrade() } else { None }
    }

    fn start(call: &'static str) -> Result<Nic, Errno> {
        let settings = settings::settings();
        let Some(interface) = settings::interface(settings) else { return Err(libc::ENODEV) };
        let congestion = settings.congestion.clone();
        let control_file = settings.control_file.clone();
        let config = DeviceConfig {
            name: settings.name.clone(),
            drive: settings.drive,
            cores: settings.cores.clone(),
            congestion,
            control_file,
            selective_repeat: settings.selective_repeat,
            ack_requests: settings.ack_requests,
            roce_v1: settings.roce_v1,
            profile: settings.profile,
            ..DeviceConfig::default()
        };
        let stack = Stack {
            fault: settings.fault.clone(),
            rules: settings.rules.clone(),
            capture: settings.capture.clone(),
        };
        roxie::stderr_log::install();
        let opened = Device::open_unclaimed(&interface, settings.port, stack, &config);
        let device = opened.map_err(|error| {
            report::print(call, &error);
            report::errno_of_open(&error)
        })?;
        let router = Arc::new(Mutex::new(Router::default()));
        let weak = Arc::downgrade(&router);
        device.set_event_sink(Box::new(move |event| {
            if let Some(router) = weak.upgrade() {
                lock(&router).route(event);
            }
        }));
        Ok(Nic { device, generation: fork::generation(), router })
    }

    /// Returns the generation of the process that opened it ([`fork::generation`]).
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Delivers events of the port and of the whole device to `queue` as well, while it exists.
    pub(crate) fn add_context(&self, queue: &Arc<EventQueue>) {
        let mut router = lock(&self.router);
        router.contexts.retain(|context| context.strong_count() > 0);
        router.contexts.push(Arc::downgrade(queue));
    }

    /// Delivers events of `source` to `queue`, as events of `element`.
    pub(crate) fn add_source(&self, source: Source, queue: &Arc<EventQueue>, element: Element) {
        lock(&self.router).objects.insert(source, (Arc::clone(queue), element));
    }

    /// Stops the delivery, and discards the pending events of `source`.
    pub(crate) fn remove_source(&self, source: Source) {
        let removed = lock(&self.router).objects.remove(&source);
        if let Some((queue, element)) = removed {
            queue.forget(element);
        }
    }
}

impl Router {
    /// Delivers an event. Called by the thread that runs the NIC.
    fn route(&self, event: AsyncEvent) {
        let (source, kind) = match event {
            AsyncEvent::Qp(index, kind) => (Source::Qp(index.0), kind),
            AsyncEvent::Cq(index, kind) => (Source::Cq(index.0), kind),
            AsyncEvent::Srq(index, kind) => (Source::Srq(index.0), kind),
            AsyncEvent::Port(kind) | AsyncEvent::Device(kind) => {
                if let Some(notify) = PORT_WATCHER.get() {
                    notify();
                }
                for context in self.contexts.iter().filter_map(Weak::upgrade) {
                    context.push(Element::Port, kind);
                }
                return;
            }
        };
        if let Some((queue, element)) = self.objects.get(&source) {
            queue.push(*element, kind);
        }
    }
}
