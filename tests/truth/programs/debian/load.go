// SPDX-License-Identifier: GPL-2.0-only

// Without end: what Go has of its own: goroutines, channels, maps, interfaces, panics, reflection,
// stacks that grow, a collector.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"sort"
	"strings"
	"sync"
)

type node struct {
	Left, Right *node
	Key         int
}

func (n *node) insert(key int) *node {
	if n == nil {
		return &node{Key: key}
	}
	if key < n.Key {
		n.Left = n.Left.insert(key)
	} else {
		n.Right = n.Right.insert(key)
	}
	return n
}

func (n *node) walk(visit func(int)) {
	if n != nil {
		n.Left.walk(visit)
		visit(n.Key)
		n.Right.walk(visit)
	}
}

func deep(depth int) (sum int) {
	var large [64]int
	large[depth%64] = depth
	if depth == 0 {
		panic(fmt.Errorf("the end"))
	}
	return deep(depth-1) + large[depth%64]
}

func caught(depth int) (message string) {
	defer func() { message = recover().(error).Error() }()
	deep(depth)
	return
}

func turn(number int) {
	var tree *node
	for at := 0; at < 100; at++ {
		tree = tree.insert(at * 7919 % 1009)
	}
	keys := []int{}
	tree.walk(func(key int) { keys = append(keys, key) })
	if !sort.IntsAreSorted(keys) || caught(number%50) != "the end" {
		os.Exit(1)
	}
	text, err := json.Marshal(tree)
	if err != nil || json.Unmarshal(text, tree) != nil {
		os.Exit(1)
	}
	counts := map[string]int{}
	for _, word := range regexp.MustCompile(`[0-9]+`).FindAllString(string(text), -1) {
		counts[strings.Repeat(word, 2)]++
	}
}

func main() {
	numbers := make(chan int)
	var all sync.WaitGroup
	for at := 0; at < 3; at++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for number := range numbers {
				turn(number)
			}
		}()
	}
	for number := 0; ; number++ {
		numbers <- number
	}
}
