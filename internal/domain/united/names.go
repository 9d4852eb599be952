package united

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is the maximum length of a workload's name. The pods of a StatefulSet have a
// label whose value is its name, a dash and ten characters. A label value has at most 63.
const maxName = 52

const hashLength = 8

// Names returns the two possible names of a pool's workload: <name>-<pool>, and a name
// with a hash, for the case that the first is too long or another object has it. Both
// depend on the arguments only, so that a workload that the cache does not have yet is
// found by its name, and no second one is created.
func Names(name, pool string) (plain, hashed string) {
	full := name + "-" + pool
	// No name contains a slash, so no other pair of names gives the same hash input.
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
