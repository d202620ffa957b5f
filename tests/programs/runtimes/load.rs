// SPDX-License-Identifier: GPL-2.0-only

//! Runs without end: a tree, sorting, formatting, a map of strings, calls through pointers.

use std::{
    collections::HashMap,
    hint::black_box, //
};

#[derive(Default)]
struct TreeNode {
    key: u32,
    left: Option<Box<TreeNode>>,
    right: Option<Box<TreeNode>>,
}

#[inline(never)]
fn insert(place: &mut Option<Box<TreeNode>>, key: u32) {
    match place {
        Some(node) if key < node.key => insert(&mut node.left, key),
        Some(node) => insert(&mut node.right, key),
        None => {
            *place = Some(Box::new(TreeNode {
                key,
                ..TreeNode::default()
            }));
        }
    }
}

#[inline(never)]
fn depth(place: &Option<Box<TreeNode>>) -> u64 {
    let below = |node: &Box<TreeNode>| 1 + depth(&node.left).max(depth(&node.right));
    place.as_ref().map_or(0, below)
}

#[inline(never)]
fn tree(turn: u32) -> u64 {
    let mut root = None;
    for key in 0..300u32 {
        insert(
            &mut root,
            key.wrapping_add(turn).wrapping_mul(2_654_435_761),
        );
    }
    depth(&root)
}

#[inline(never)]
fn sorted(turn: u32) -> u64 {
    let key = |number: u32| number.wrapping_add(turn).wrapping_mul(2_654_435_761) >> 7;
    let mut words: Vec<String> = (0..200)
        .map(|number| format!("{:x}", key(number)))
        .collect();
    words.sort_by(|one, other| one.len().cmp(&other.len()).then_with(|| other.cmp(one)));
    words.iter().map(|word| word.len() as u64).sum()
}

#[inline(never)]
fn counted(turn: u32) -> u64 {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for number in 0..400u32 {
        *counts
            .entry(format!("key {}", number * turn % 61))
            .or_default() += 1;
    }
    counts.values().map(|count| count * count).sum()
}

fn main() {
    let loads: [fn(u32) -> u64; 3] = [tree, sorted, counted];
    let mut sum = 0u64;
    for turn in 0.. {
        let load = black_box(loads[turn as usize % loads.len()]);
        sum = black_box(sum.wrapping_add(load(turn)));
    }
}
