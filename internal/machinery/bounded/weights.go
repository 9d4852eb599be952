package bounded

import (
	"errors"
	"fmt"
)

// maxDepth bounds how deeply the values of a request are nested. Objects of Kubernetes are
// nested about 20 deep.
const maxDepth = 256

// Weights are the memory, in bytes, that parts of a request in JSON take at most while the
// request is decoded, decided and answered. They were measured as all that is allocated
// meanwhile, with requests that consist of the part that costs most.
type Weights struct {
	// Byte is for each byte of the request: strings and their copies.
	Byte int64
	// Member is for each member of an object: the entry of a map.
	Member int64
	// Element is for each element of a list. "{}," is enough for one, and a container
	// takes hundreds of bytes once it is decoded, and again once it is copied.
	Element int64
	// Text is for each element of a list that is a string.
	Text int64
}

// ErrTooLarge is returned for a request that is larger than any caller may send.
var ErrTooLarge = errors.New("the request is too large")

// Weigh returns the weight of a request. It returns an error if the request is nested too
// deeply, or weighs more than largest. It allocates nothing and accepts invalid JSON.
func (w Weights) Weigh(raw []byte, largest int64) (int64, error) {
	var lists [maxDepth + 1]bool // whether the open value of each depth is a list
	depth := 0
	weight := int64(len(raw)) * w.Byte
	begins := false // whether the next value is an element of a list
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; c {
		case ' ', '\t', '\r', '\n':
			continue
		case ']', '}':
			depth = max(0, depth-1)
			begins = false
			continue
		case ',':
			if begins = lists[depth]; !begins {
				weight += w.Member
			}
			continue
		case '"':
			if begins {
				weight += w.Text
			}
			i = endOfString(raw, i+1)
		case '[', '{':
			if begins {
				weight += w.Element
			}
			if depth++; depth > maxDepth {
				return 0, fmt.Errorf("%w: it is nested more than %d deep", ErrTooLarge, maxDepth)
			}
			lists[depth] = c == '['
			begins = lists[depth]
			if !begins {
				weight += w.Member
			}
			continue
		default:
			if begins {
				weight += w.Element
			}
		}
		begins = false
	}
	if weight > largest {
		return 0, fmt.Errorf("%w: once it is decoded it may take %d MiB, more than %d", ErrTooLarge, weight>>20, largest>>20)
	}
	return weight, nil
}

// endOfString returns the index of the quote that ends a string, or the length of raw if
// the string does not end. i is the index after the opening quote.
func endOfString(raw []byte, i int) int {
	for ; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			return i
		case '\\':
			i++
		}
	}
	return i
}
