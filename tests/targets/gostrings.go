// gostrings: a Go function whose parameters are strings and what holds them. Each line but "quit" is handed to it.
package main

import (
	"bufio"
	"fmt"
	"os"
)

type item struct {
	name string
	next *item
}

//go:noinline
func take(text string, it *item, number int) int { return len(text) + len(it.name) + number }

//go:noinline
func same[T comparable](first, second T) bool { return first == second }

func main() {
	fmt.Printf("ready %d gostrings\n", os.Getpid())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan() && lines.Text() != "quit"; {
		// Its text goes on behind what is handed over.
		half := lines.Text()[:len(lines.Text())/2]
		same(half, lines.Text())
		fmt.Println(take(half, &item{lines.Text(), &item{"", nil}}, 7))
	}
	fmt.Println("result ok")
}
