//! Loom: what threads of one process share, and weakened copies that must fail. See `loom_tests` for what two processes do.

use std::sync::Arc;

use loom::{
    cell::UnsafeCell,
    sync::{
        Condvar, Mutex, Notify,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    },
    thread,
};

use super::{
    counter::Counter,
    doorbell::{arm, arm_task, disarm, must_ring, must_wake},
    flag::{is_raised, raise},
    once::take_or_register,
    publish::{observe, publish},
};

/// Stands for the eventfd. It has no spurious wakes: after one, loom lets a load see a value that a swap has replaced.
#[derive(Default)]
struct Event {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn write(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Another thread gives work twice to one that sleeps.
fn doorbell(must_ring: fn(&AtomicU32) -> bool, arm: fn(&AtomicU32) -> bool) {
    loom::model(move || {
        let armed = Arc::new(AtomicU32::new(0));
        let (work, event) = (Arc::new(AtomicU64::new(0)), Arc::new(Event::default()));
        let giver = {
            let (armed, work, event) = (Arc::clone(&armed), Arc::clone(&work), Arc::clone(&event));
            thread::spawn(move || {
                for done in 1..=2 {
                    work.store(done, Ordering::Release);
                    if must_ring(&armed) {
                        event.write();
                    }
                }
            })
        };
        while work.load(Ordering::Acquire) < 2 {
            arm(&armed);
            if work.load(Ordering::Acquire) < 2 {
                event.sleep();
            }
            disarm(&armed);
        }
        giver.join().unwrap();
    });
}

#[test]
fn loom_a_doorbell_loses_no_ring() {
    doorbell(must_ring, arm);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_ringer_without_its_fence_is_caught() {
    doorbell(|armed| armed.load(Ordering::Relaxed) == 1 && armed.swap(2, Ordering::AcqRel) == 1, arm);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_an_owner_without_its_fence_is_caught() {
    doorbell(must_ring, |armed| armed.swap(1, Ordering::Relaxed) == 2);
}

/// Another thread gives work twice to an owner that sleeps as a task. `sleep` says which task that is, and that it sleeps.
fn task_of_doorbell(sleep: fn(&AtomicU32, &mut dyn FnMut())) {
    loom::model(move || {
        let armed = Arc::new(AtomicU32::new(0));
        let (work, event) = (Arc::new(AtomicU64::new(0)), Arc::new(Event::default()));
        // Stands for the `AtomicWaker`: what was registered last is taken out and woken.
        let task = Arc::new(Mutex::new(None::<Arc<Event>>));
        let giver = {
            let (armed, work) = (Arc::clone(&armed), Arc::clone(&work));
            let (task, event) = (Arc::clone(&task), Arc::clone(&event));
            thread::spawn(move || {
                for done in 1..=2 {
                    work.store(done, Ordering::Release);
                    if must_ring(&armed) {
                        event.write();
                    } else if must_wake(&armed) {
                        let task = task.lock().unwrap().take();
                        if let Some(task) = task {
                            task.write();
                        }
                    }
                }
            })
        };
        while work.load(Ordering::Acquire) < 2 {
            arm(&armed);
            sleep(&armed, &mut || *task.lock().unwrap() = Some(Arc::clone(&event)));
            if work.load(Ordering::Acquire) < 2 {
                event.sleep();
            }
            disarm(&armed);
        }
        giver.join().unwrap();
    });
}

#[test]
fn loom_a_task_of_a_doorbell_loses_no_ring() {
    task_of_doorbell(|armed, register| {
        register();
        arm_task(armed);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_task_that_sleeps_before_it_is_known_is_caught() {
    task_of_doorbell(|armed, register| {
        arm_task(armed);
        register();
    });
}

/// A reader is done with bulk, and its memory is written again.
fn release(raise: fn(&AtomicBool), is_raised: fn(&AtomicBool) -> bool) {
    loom::model(move || {
        let (bulk, done) = (Arc::new(UnsafeCell::new(7)), Arc::new(AtomicBool::new(false)));
        let reader = {
            let (bulk, done) = (Arc::clone(&bulk), Arc::clone(&done));
            thread::spawn(move || {
                bulk.with(|bulk| {
                    // SAFETY: loom checks that nobody writes it.
                    assert_eq!(unsafe { *bulk }, 7);
                });
                raise(&done);
            })
        };
        while !is_raised(&done) {
            thread::yield_now();
        }
        bulk.with_mut(|bulk| {
            // SAFETY: loom checks that nobody else has it.
            unsafe { *bulk = 8 }
        });
        reader.join().unwrap();
    });
}

#[test]
fn loom_released_bulk_is_read_to_its_end() {
    release(raise, is_raised);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_weak_release_is_caught() {
    release(|flag| flag.store(true, Ordering::Relaxed), is_raised);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_weak_look_at_a_release_is_caught() {
    release(raise, |flag| flag.load(Ordering::Relaxed));
}

type Take = fn(&dyn Fn() -> Option<u64>, &dyn Fn()) -> Option<u64>;

/// A call's answer: the slot and the waker's place are stand-ins for crossbeam's queue and `AtomicWaker`.
fn one_shot(take_or_register: Take) {
    loom::model(move || {
        let slot = Arc::new(Mutex::new(None));
        let (registered, wake) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let worker = {
            let (slot, registered, wake) = (Arc::clone(&slot), Arc::clone(&registered), Arc::clone(&wake));
            thread::spawn(move || {
                *slot.lock().unwrap() = Some(11);
                if registered.swap(false, Ordering::AcqRel) {
                    wake.notify();
                }
            })
        };
        let take = || slot.lock().unwrap().take();
        let register = || {
            registered.swap(true, Ordering::AcqRel);
        };
        let mut found = take_or_register(&take, &register);
        while found.is_none() {
            wake.wait();
            found = take_or_register(&take, &register);
        }
        let answer = found.unwrap();
        assert_eq!(answer, 11);
        worker.join().unwrap();
        assert_eq!(take(), None, "one answer");
    });
}

#[test]
fn loom_an_answer_wakes_its_caller() {
    one_shot(|take, register| take_or_register(take, register));
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_caller_that_looks_once_is_caught() {
    one_shot(|take, register| {
        let found = take();
        if found.is_none() {
            register();
        }
        found
    });
}

/// One thread counts, another reads twice.
fn counts(add: fn(&Counter), writers: usize) {
    loom::model(move || {
        let counter = Arc::new(Counter::default());
        let threads: Vec<_> = (0..writers)
            .map(|_| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || {
                    for _ in 0..2 / writers {
                        add(&counter);
                    }
                })
            })
            .collect();
        let (first, second) = (counter.get(), counter.get());
        assert!(first <= second && second <= 2, "a count ran backwards: {first}, {second}");
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(counter.get(), 2, "a count was lost");
    });
}

#[test]
fn loom_a_counter_is_exact_and_never_runs_backwards() {
    counts(Counter::increment, 1);
}

#[test]
#[should_panic(expected = "a count was lost")]
fn loom_a_counter_with_two_writers_is_caught() {
    counts(Counter::increment, 2);
}

/// The closer published before; a thread that sees the close finds everything published.
fn closing(close: fn(&AtomicU64)) {
    loom::model(move || {
        let (word, closing) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let writer = {
            let (word, closing) = (Arc::clone(&word), Arc::clone(&closing));
            thread::spawn(move || {
                publish(&*word, 5);
                close(&closing);
            })
        };
        if observe(&*closing) != 0 {
            assert_eq!(observe(&*word), 5, "the last frame was not seen");
        }
        writer.join().unwrap();
    });
}

#[test]
fn loom_a_close_comes_after_the_last_frame() {
    closing(|closing| closing.store(1, Ordering::Release));
}

#[test]
#[should_panic(expected = "the last frame was not seen")]
fn loom_a_weak_close_is_caught() {
    closing(|closing| closing.store(1, Ordering::Relaxed));
}

/// The fence alone, as `observe` has it, is what orders: a plain load is not enough.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_look_without_its_fence_is_caught() {
    loom::model(|| {
        let (payload, word) = (Arc::new(UnsafeCell::new(0)), Arc::new(AtomicU64::new(0)));
        let writer = {
            let (payload, word) = (Arc::clone(&payload), Arc::clone(&word));
            thread::spawn(move || {
                payload.with_mut(|payload| {
                    // SAFETY: loom checks that nobody else has it.
                    unsafe { *payload = 3 }
                });
                publish(&*word, 1);
                fence(Ordering::SeqCst);
            })
        };
        if word.load(Ordering::Relaxed) != 0 {
            payload.with(|payload| {
                // SAFETY: loom checks that nobody writes it.
                assert_eq!(unsafe { *payload }, 3);
            });
        }
        writer.join().unwrap();
    });
}
