//! Loom: a call's answer meets its caller, and weakened copies that must fail.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::{
        Mutex, Notify,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{Answer, loom_parts::thread_panics, take_or_register};

/// A task that sleeps until it is woken.
struct Task(Notify);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

fn task() -> (Arc<Task>, Waker) {
    let task = Arc::new(Task(Notify::new()));
    (Arc::clone(&task), Waker::from(task))
}

/// An answer that counts how often it was given back.
struct Counted {
    number: usize,
    given_back: Arc<AtomicUsize>,
}

impl Counted {
    fn new(number: usize, given_back: &Arc<AtomicUsize>) -> Self {
        Self { number, given_back: Arc::clone(given_back) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // A model that has failed is over.
        if !thread_panics() {
            self.given_back.fetch_add(1, Ordering::Relaxed);
        }
    }
}

type Put = fn(&Answer<Counted>, Counted);
type Look = fn(&Answer<Counted>, &Waker) -> Option<Counted>;

fn wake(place: &Answer<Counted>) {
    place.take_waker().into_iter().for_each(Waker::wake);
}

fn put(place: &Answer<Counted>, answer: Counted) {
    place.put(answer);
    wake(place);
}

fn look(place: &Answer<Counted>, waker: &Waker) -> Option<Counted> {
    match place.poll(&Context::from_waker(waker)) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// Takes the next answer, asleep as `task` meanwhile.
fn wait(place: &Answer<Counted>, look: Look, (task, waker): &(Arc<Task>, Waker)) -> Counted {
    loop {
        if let Some(answer) = look(place, waker) {
            return answer;
        }
        task.0.wait();
    }
}

fn model(run: impl Fn(&Arc<Answer<Counted>>, &Arc<AtomicUsize>) + Send + Sync + 'static) {
    loom::model(move || run(&Arc::default(), &Arc::new(AtomicUsize::new(0))));
}

/// The caller asks once as one task, and goes on as another.
fn changed_task(put: Put, look: Look) {
    model(move |place, given_back| {
        let worker = {
            let (place, answer) = (Arc::clone(place), Counted::new(1, given_back));
            thread::spawn(move || put(&place, answer))
        };
        let (_, first) = task();
        let answer = look(place, &first).unwrap_or_else(|| wait(place, look, &task()));
        assert_eq!(answer.number, 1);
        drop(answer);
        worker.join().unwrap();
        assert!(place.pop().is_none(), "one answer");
        assert_eq!(given_back.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn loom_an_answer_wakes_the_task_that_asked_last() {
    changed_task(put, look);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_worker_that_wakes_before_it_puts_is_caught() {
    let put: Put = |place, answer| {
        wake(place);
        place.put(answer);
    };
    changed_task(put, look);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_weak_flag_of_an_answer_is_caught() {
    let put: Put = |place, answer| {
        place.answer.store(Some(Box::new(Some(answer))));
        place.is_filled.store(true, Ordering::Relaxed);
        wake(place);
    };
    changed_task(put, look);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_caller_that_does_not_look_again_is_caught() {
    let look: Look = |place, waker| {
        let found = place.pop();
        if found.is_none() {
            place.waker.register(waker);
        }
        found
    };
    changed_task(put, look);
}

/// The caller drops the call while its answer arrives, behind something that comes first where somebody waits.
#[test]
fn loom_a_dropped_call_and_its_answer_end_once() {
    loom::model(|| {
        let (place, given_back) =
            (loom::sync::Arc::<Answer<Counted>>::default(), Arc::new(AtomicUsize::new(0)));
        let worker = {
            let (place, first) = (loom::sync::Arc::clone(&place), Counted::new(1, &given_back));
            let answer = Counted::new(2, &given_back);
            thread::spawn(move || {
                if loom::sync::Arc::strong_count(&place) > 1 {
                    place.put_first(first);
                    wake(&place);
                }
                put(&place, answer);
            })
        };
        let (_, waker) = task();
        let taken = look(&place, &waker);
        drop((taken, place));
        worker.join().unwrap();
        assert_eq!(given_back.load(Ordering::Relaxed), 2, "each is given back once");
    });
}

/// The answer arrives while the connection is lost: the thread that takes the responder ends the call.
#[test]
fn loom_a_lost_connection_and_an_answer_end_a_call_once() {
    model(|place, given_back| {
        let responder = Arc::new(Mutex::new(Some(Arc::clone(place))));
        let enders = [1, 2].map(|number| {
            let (responder, outcome) = (Arc::clone(&responder), Counted::new(number, given_back));
            thread::spawn(move || {
                let taken = responder.lock().unwrap().take();
                taken.map(|place| put(&place, outcome)).is_some()
            })
        });
        let outcome = wait(place, look, &task());
        let ended = enders.map(|ender| ender.join().unwrap());
        assert_eq!(ended, [outcome.number == 1, outcome.number == 2]);
        assert!(place.pop().is_none(), "one outcome");
        drop(outcome);
        assert_eq!(given_back.load(Ordering::Relaxed), 2);
    });
}

/// What comes first is taken first, and the answer then, however the looks fall between. A swap that did not see a store comes before
/// it, which loom does not know: here the worker swaps.
fn begun(look: Look) {
    fn fill(place: &Answer<Counted>) {
        place.is_filled.swap(true, Ordering::AcqRel);
        wake(place);
    }
    model(move |place, given_back| {
        let worker = {
            let place = Arc::clone(place);
            let (first, answer) = (Counted::new(1, given_back), Counted::new(2, given_back));
            thread::spawn(move || {
                place.first.store(Some(Box::new(first)));
                fill(&place);
                place.answer.store(Some(Box::new(Some(answer))));
                fill(&place);
            })
        };
        let caller = task();
        assert_eq!([(); 2].map(|()| wait(place, look, &caller).number), [1, 2]);
        worker.join().unwrap();
        assert_eq!(given_back.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn loom_what_comes_first_hides_no_answer() {
    begun(look);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_flag_that_is_stored_over_an_answers_is_caught() {
    fn pop(place: &Answer<Counted>) -> Option<Counted> {
        if !place.is_filled.swap(false, Ordering::AcqRel) {
            return None;
        }
        if let Some(first) = place.first.take() {
            place.is_filled.store(true, Ordering::Release);
            return Some(*first);
        }
        place.answer.take().and_then(|mut answer| answer.take())
    }
    begun(|place, waker| take_or_register(|| pop(place), || place.waker.register(waker)));
}

/// The next call uses the place as soon as the answer before was taken, while that one's worker may still wake its caller.
#[test]
fn loom_a_place_that_is_used_again_has_the_next_answer() {
    model(|place, given_back| {
        let asks = Arc::new(AtomicUsize::new(1));
        let worker = {
            let (place, asks) = (Arc::clone(place), Arc::clone(&asks));
            let answers = [1, 2].map(|number| Counted::new(number, given_back));
            thread::spawn(move || {
                for answer in answers {
                    while asks.load(Ordering::Acquire) < answer.number {
                        thread::yield_now();
                    }
                    put(&place, answer);
                }
            })
        };
        for number in [1, 2] {
            assert_eq!(wait(place, look, &task()).number, number);
            asks.store(number + 1, Ordering::Release);
        }
        worker.join().unwrap();
        assert!(place.pop().is_none());
        assert_eq!(given_back.load(Ordering::Relaxed), 2);
    });
}
