// SPDX-License-Identifier: GPL-2.0-only

//! Rust, built without frame pointers: closures, trait objects, iterators, panics that unwind
//! through frames with something to drop and are caught, and threads. The standard library's code,
//! except for generic code compiled into this crate, has no `.sframe`.

use std::{
    collections::{
        BTreeMap,
        HashMap, //
    },
    hint::black_box,
    panic,
    sync::mpsc,
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

/// Calls of `work` in a short run.
const ROUNDS: u32 = 1;

#[inline(never)]
fn mix(value: u64, depth: u32) -> u64 {
    let frame = black_box([value, u64::from(depth), 1]);
    if depth == 0 {
        return frame[0].wrapping_mul(5).wrapping_add(frame[2]);
    }
    mix(value + 1, depth - 1) ^ frame[1]
}

trait Shape {
    fn area(&self, scale: u64) -> u64;
}

struct Square(u64);
struct Circle(f64);

impl Shape for Square {
    #[inline(never)]
    fn area(&self, scale: u64) -> u64 {
        mix(self.0, 3) % 1000 * scale
    }
}

impl Shape for Circle {
    #[inline(never)]
    fn area(&self, scale: u64) -> u64 {
        (self.0 * self.0 * 3.0) as u64 * scale
    }
}

fn shape(number: u64) -> Box<dyn Shape> {
    if number % 2 == 0 {
        Box::new(Square(number))
    } else {
        Box::new(Circle(number as f64))
    }
}

/// Something to drop while a panic passes by.
struct Guard(u64);

impl Drop for Guard {
    #[inline(never)]
    fn drop(&mut self) {
        black_box(mix(self.0, 4));
    }
}

#[inline(never)]
fn descend(depth: u64, fail: bool) -> u64 {
    let guard = Guard(depth);
    if depth == 0 {
        assert!(!fail, "as agreed");
        return 0;
    }
    descend(depth - 1, fail) + 1 + guard.0 / 1000
}

#[inline(never)]
fn apply(values: &[u64], each: &dyn Fn(u64) -> u64) -> u64 {
    values
        .iter()
        .map(|value| each(*value))
        .fold(0, u64::wrapping_add)
}

#[inline(never)]
fn through_a_channel(count: u64) -> u64 {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || {
        for at in 0..count {
            sender.send(mix(at, 10)).expect("the receiver waits");
        }
    });
    let sum = receiver.iter().fold(0, u64::wrapping_add);
    worker.join().expect("the worker does not panic");
    sum
}

fn work(round: u32) {
    let shapes: Vec<Box<dyn Shape>> = (0..200).map(shape).collect();
    black_box(shapes.iter().map(|shape| shape.area(3)).sum::<u64>());

    let mut values: Vec<u64> = (0..500)
        .map(|at| at * 7919 % 1009 + u64::from(round))
        .collect();
    values.sort_by_key(|value| mix(*value, 1));
    black_box(apply(&values, &|value| mix(value, 5)));

    let mut words = BTreeMap::new();
    let mut numbers = HashMap::new();
    for at in 0..100_u64 {
        words.insert(format!("{}", at * 7919 % 100), at);
        numbers.insert(at, mix(at, 2));
    }
    assert_eq!((words.len(), numbers.len()), (100, 100));

    for depth in 0..10 {
        assert_eq!(descend(depth, false), depth);
        assert!(panic::catch_unwind(|| descend(depth, true)).is_err());
    }
    assert_eq!(
        through_a_channel(20),
        (0..20).map(|at| mix(at, 10)).fold(0, u64::wrapping_add)
    );
}

fn main() {
    let seconds: f64 = std::env::args()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .expect("usage: PROGRAM SECONDS");
    panic::set_hook(Box::new(|_| ()));
    if seconds == 0.0 {
        (0..ROUNDS).for_each(work);
        return;
    }
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    (0..).take_while(|_| Instant::now() < end).for_each(work);
}
