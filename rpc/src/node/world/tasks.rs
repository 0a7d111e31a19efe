//! Tasks of a world: each is polled when it was woken, once a turn.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

type Running = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Clone, Default)]
pub(super) struct Tasks {
    all: Rc<RefCell<BTreeMap<u64, Task>>>,
    made: Rc<Cell<u64>>,
}

struct Task {
    /// None while it is polled.
    running: Option<Running>,
    woken: Arc<Flag>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Tasks {
    pub(super) fn spawn(&self, running: Running) -> u64 {
        let number = self.made.get();
        self.made.set(number + 1);
        let task = Task { running: Some(running), woken: Arc::new(Flag(AtomicBool::new(true))) };
        self.all.borrow_mut().insert(number, task);
        number
    }

    pub(super) fn take(&self, number: u64) -> Option<Running> {
        let task = self.all.borrow_mut().remove(&number);
        task.and_then(|task| task.running)
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.all.borrow().contains_key(&number)
    }

    pub(super) fn len(&self) -> usize {
        self.all.borrow().len()
    }

    pub(super) fn poll(&self) {
        let numbers: Vec<u64> = self.all.borrow().keys().copied().collect();
        for number in numbers {
            let woken = self.all.borrow_mut().get_mut(&number).and_then(|task| {
                let is_woken = task.woken.0.swap(false, Ordering::Relaxed);
                let running = if is_woken { task.running.take() } else { None };
                running.map(|running| (running, Waker::from(Arc::clone(&task.woken))))
            });
            let Some((mut running, waker)) = woken else { continue };
            let is_over = running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            let mut all = self.all.borrow_mut();
            if is_over {
                all.remove(&number);
            } else if let Some(task) = all.get_mut(&number) {
                task.running = Some(running);
            }
        }
    }
}
