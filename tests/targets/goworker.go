// goworker G N: G goroutines call main.work N times each while the stacks grow and move and the garbage collector runs.
//
// Speaks the targets' protocol (protocol.h). Prints: calls, checksum, result.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
)

//go:noinline
func work(a int, b int) int {
	return a*31 + b*17
}

// deep makes the goroutine's stack grow, which moves it.
//
//go:noinline
func deep(depth int, b int) int {
	var room [256]byte
	room[b&255] = 1
	if depth == 0 {
		return work(int(room[b&255]), b)
	}
	return deep(depth-1, b)
}

func number(index int, otherwise int) int {
	if len(os.Args) > index {
		if n, err := strconv.Atoi(os.Args[index]); err == nil {
			return n
		}
	}
	return otherwise
}

func main() {
	goroutines, calls := number(1, 4), number(2, 1000)
	fmt.Printf("ready %d goworker\n", os.Getpid())
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		os.Exit(3)
	}
	var made, wrong, checksum int64
	var all sync.WaitGroup
	for g := 0; g < goroutines; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < calls; i++ {
				got := deep(i%64, i)
				if got != 31+i*17 {
					atomic.AddInt64(&wrong, 1)
				}
				atomic.AddInt64(&made, 1)
				atomic.AddInt64(&checksum, int64(got))
				if i%1000 == 0 {
					runtime.GC()
				}
			}
		}()
	}
	all.Wait()
	fmt.Printf("calls %d\nchecksum %d\nwrong %d\n", made, checksum, wrong)
	if wrong != 0 {
		fmt.Println("result bad")
		os.Exit(1)
	}
	fmt.Println("result ok")
}
