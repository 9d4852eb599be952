package united

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is the longest name of a workload: a StatefulSet's revision label is
// its name, a dash and ten characters, and a label's value has 63 at most.
const maxName = 52

const hashLength = 8

// Names are the two names that a pool's workload can have: <name>-<pool>, and
// one with a hash, for when the first is too long or an object that is not
// ours has it. Both are functions of the arguments, so that whoever has lost
// sight of a workload finds it again instead of making a second.
func Names(name, pool string) (plain, hashed string) {
	full := name + "-" + pool
	// A slash is in no name, so no other pair gives the same.
	sum := sha256.Sum256([]byte(name + "/" + pool))
	hash := hex.EncodeToString(sum[:])[:hashLength]
	head := full
	if len(head) > maxName-hashLength-1 {
		head = strings.TrimRight(head[:maxName-hashLength-1], "-.")
	}
	hashed = head + "-" + hash
	if len(full) > maxName {
		return hashed, hashed
	}
	return full, hashed
}
