//go:build !linux

// Command devcluster-node runs on Linux only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "devcluster-node: real nodes need Linux")
	os.Exit(1)
}
