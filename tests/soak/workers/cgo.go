// cgo: goroutines that call C and compute, while the garbage collector runs. See threads.c for what it prints.
package main

/*
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long by_way_of_text(unsigned long seed) {
	char* text = malloc(64 + seed % 4000);
	snprintf(text, 64, "%lu", seed);
	char* copy = strdup(text);
	const unsigned long back = strtoul(copy, NULL, 10);
	free(copy);
	free(text);
	return back;
}
*/
import "C"

import (
	"crypto/sha256"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync/atomic"
	"time"
)

const workers = 4

var rounds [workers]int64

func wrong(what string, seed uint64) {
	fmt.Println("WRONG", what, "of seed", seed)
}

//go:noinline
func grow(depth int, seed uint64) uint64 {
	var room [200]byte
	room[depth] = byte(seed)
	if depth == 0 {
		return seed
	}
	return grow(depth-1, seed) + uint64(room[depth]) - uint64(byte(seed))
}

func fail(index []int) (failed bool) {
	defer func() { failed = recover() != nil }()
	var none *[4]int
	return none[index[0]] == 1 // a fault that Go makes a panic of
}

func round(seed uint64) {
	if got := uint64(C.by_way_of_text(C.ulong(seed))); got != seed {
		wrong("C's number", seed)
	}
	texts := map[string]uint64{}
	keys := []string{}
	for i := uint64(0); i < 50; i++ {
		key := strconv.FormatUint(seed+i*7919, 10)
		texts[key] = seed + i*7919
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for i, key := range keys {
		if number, _ := strconv.ParseUint(key, 10, 64); texts[key] != number || i > 0 && keys[i-1] > key {
			wrong("the map", seed)
		}
	}
	if sha256.Sum256([]byte(keys[0])) != sha256.Sum256([]byte(string(append([]byte{}, keys[0]...)))) {
		wrong("the hash", seed)
	}
	done := make(chan uint64)
	go func() { done <- grow(100, seed) }()
	if <-done != seed {
		wrong("the goroutine's answer", seed)
	}
	if !fail([]int{int(seed & 3)}) {
		wrong("no panic", seed)
	}
}

func main() {
	for w := 0; w < workers; w++ {
		go func(w int) {
			for seed := uint64(w + 1); ; seed = seed*6364136223846793005 + 1442695040888963407 {
				round(seed)
				atomic.AddInt64(&rounds[w], 1)
				time.Sleep(3 * time.Millisecond)
			}
		}(w)
	}
	for {
		fewest := atomic.LoadInt64(&rounds[0])
		for w := range rounds {
			if count := atomic.LoadInt64(&rounds[w]); count < fewest {
				fewest = count
			}
		}
		if _, err := fmt.Println("beat", fewest); err != nil {
			os.Exit(1)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
