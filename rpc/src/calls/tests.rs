use gimmal_engine::transport::Instant;

use super::*;
use crate::{
    method::MethodKind,
    status::Status,
    stream::{Budget, lanes_begun},
};

static METHOD: Method = Method::new("Test", "call", "()", "raw", MethodKind::Raw);
const MANY: u32 = 50_000;

fn waiting(deadline: Time) -> Calls {
    let mut calls = Calls::new(1, MANY as usize);
    for _ in 0..MANY {
        let kept = calls
            .insert_waiting(&METHOD, (Time(0), deadline), (None, None), Reply::Local, |_| Ok::<_, ()>(()));
        kept.map_err(|_| ()).unwrap();
    }
    calls
}

fn finish(calls: &mut Calls, index: u32) {
    assert_eq!(calls.withdraw(index), State::Waiting);
    let woken = calls.finish(index, Status::new(crate::Code::DeadlineExceeded, "").into());
    assert!(woken.is_none(), "a local call has no task of another thread");
}

#[test]
fn many_waiting_calls_end_in_the_time_of_one_each() {
    let began = Instant::now();
    let mut calls = waiting(Time(10));
    assert_eq!(calls.poll_expired(Time(9), 0), None);
    let (mut from, mut ended) = (0, 0);
    while let Some(index) = calls.poll_expired(Time(10), from) {
        (from, ended) = (index + 1, ended + 1);
        finish(&mut calls, index);
    }
    assert_eq!((ended, calls.next_deadline(), calls.is_queued()), (MANY, Time::NEVER, false));
    let mut calls = waiting(Time::NEVER);
    let (mut from, mut ended) = (0, 0);
    while let Some(index) = calls.next_live(from) {
        (from, ended) = (index + 1, ended + 1);
        finish(&mut calls, index);
    }
    assert_eq!((ended, calls.is_queued()), (MANY, false));
    assert!(began.elapsed().as_secs() < 5, "each end went through all others: {:?}", began.elapsed());
}

#[test]
fn a_pass_of_ends_knows_the_next_deadline() {
    let mut calls = Calls::new(1, 8);
    for deadline in [30, 10, 20, 10] {
        let times = (Time(0), Time(deadline));
        let kept = calls.insert_waiting(&METHOD, times, (None, None), Reply::Local, |_| Ok::<_, ()>(()));
        kept.map_err(|_| ()).unwrap();
    }
    for (now, expired, next) in
        [(10, vec![1, 3], 20), (25, vec![2], 30), (25, vec![], 30), (30, vec![0], u64::MAX)]
    {
        let (mut from, mut found) = (0, Vec::new());
        while let Some(index) = calls.poll_expired(Time(now), from) {
            from = index + 1;
            found.push(index);
            finish(&mut calls, index);
        }
        assert_eq!((found, calls.next_deadline()), (expired, Time(next)));
    }
}

static DOWN: Method = Method::new("Test", "down", "()", "raw", MethodKind::Async).with_streams(false, true);

#[test]
fn a_stream_that_begins_late_comes_before_the_answer_and_to_its_own_call() {
    let (mut calls, budget) = (Calls::new(1, 1), Budget::new(4 << 10, 1 << 20, 1000));
    for is_read in [true, false, true, false] {
        let id = calls.next_wire().unwrap();
        let (key, call) = calls.insert(id, &DOWN, (Time(0), Time::NEVER));
        call.expect_begin(budget.offer(0));
        let index = key.index();
        assert!(calls.may_begin(index) && calls.take_begun(key).is_none());
        let lanes = lanes_begun(&budget, 4 << 10);
        let down = Begun::of(&lanes).unwrap();
        assert!(calls.call(index).begin(lanes, down).is_some() && !calls.may_begin(index), "once");
        if is_read {
            assert_eq!(calls.answered(id), Some(index));
            assert!(calls.finish(index, Response::nothing()).is_none());
            assert!(calls.take_begun(key).is_some() && calls.take_begun(key).is_none());
            assert!(calls.take(key, &Cell::default()).is_some());
        } else {
            // Nobody has looked.
            assert_eq!(calls.forget(key), Some(State::Posted(id.slot)));
            calls.cancel_left();
        }
        assert_eq!((calls.take_begun(key).is_none(), budget.left()), (true, 1 << 20));
    }
}

/// A full client asks before each request whether a pull waits for room.
#[test]
fn calls_that_wait_are_not_looked_at_for_pulls() {
    let (began, mut calls) = (Instant::now(), waiting(Time::NEVER));
    for _ in 0..MANY {
        assert_eq!(calls.first_unpulled(), None);
    }
    assert!(began.elapsed().as_secs() < 5, "each look went through all calls: {:?}", began.elapsed());
}

#[test]
fn calls_of_a_pipeline_that_end_together_are_taken_in_the_time_of_one_each() {
    let (began, mut calls) = (Instant::now(), Calls::new(1, MANY as usize));
    for tag in 0..u64::from(MANY) {
        let reply = Reply::Tagged(Tagged { pipeline: u32::try_from(tag % 2).unwrap(), tag });
        let times = (Time(0), Time::NEVER);
        let kept = calls.insert_waiting(&METHOD, times, (None, None), reply, |_| Ok::<_, ()>(()));
        kept.map_err(|_| ()).unwrap();
    }
    (0..MANY).for_each(|index| finish(&mut calls, index));
    let mut taken = [Vec::new(), Vec::new()];
    for (pipeline, taken) in (0..).zip(&mut taken) {
        taken.extend(std::iter::from_fn(|| calls.take_tagged(pipeline, &mut Vec::new())).map(|(tag, _)| tag));
    }
    for (first, mut taken) in (0..).zip(taken) {
        taken.sort_unstable();
        assert!(taken.into_iter().eq((first..u64::from(MANY)).step_by(2)), "each once");
    }
    assert!(calls.is_empty() && !calls.has_done());
    assert!(began.elapsed().as_secs() < 5, "each one went through all others: {:?}", began.elapsed());
}
