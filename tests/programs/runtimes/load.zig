// SPDX-License-Identifier: GPL-2.0-only
// Runs without end: a tree, sorting, formatting, calls through pointers.

const std = @import("std");

const Node = struct { key: u32, left: ?*Node = null, right: ?*Node = null };

var nodes: [512]Node = undefined;
var used: usize = 0;
pub var sum: u64 = 0;

noinline fn insert(place: *?*Node, key: u32) void {
    if (place.*) |node| {
        insert(if (key < node.key) &node.left else &node.right, key);
        return;
    }
    nodes[used] = .{ .key = key };
    place.* = &nodes[used];
    used += 1;
}

noinline fn depth(place: ?*const Node) u32 {
    const node = place orelse return 0;
    return 1 + @max(depth(node.left), depth(node.right));
}

noinline fn tree(turn: u32) u64 {
    var root: ?*Node = null;
    used = 0;
    var key = turn *% 7919;
    while (used < nodes.len) {
        key = key *% 1103515245 +% 12345;
        insert(&root, key >> 8);
    }
    return depth(root);
}

noinline fn sorted(turn: u32) u64 {
    var list: [300]u32 = undefined;
    for (&list, 0..) |*item, at| item.* = (@as(u32, @intCast(at)) *% 7919 +% turn) % 1009;
    std.mem.sort(u32, &list, {}, std.sort.desc(u32));
    return list[7];
}

noinline fn formatted(turn: u32) u64 {
    var buffer: [200]u8 = undefined;
    const text = std.fmt.bufPrint(&buffer, "{d} {x:0>8} {s} {d:.3}", .{
        turn, turn *% 31, "text", @as(f64, @floatFromInt(turn)) / 7.0,
    }) catch return 0;
    return std.hash.Wyhash.hash(turn, text);
}

const parts = [_]*const fn (u32) u64{ tree, sorted, formatted };

pub fn main() void {
    var turn: u32 = 0;
    while (true) : (turn +%= 1) {
        for (parts) |part| {
            const pointer: *const volatile *const fn (u32) u64 = &part;
            sum +%= pointer.*(turn);
        }
        std.mem.doNotOptimizeAway(sum);
    }
}
