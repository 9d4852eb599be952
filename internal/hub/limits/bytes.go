package limits

import "sync/atomic"

// Bytes limits memory in bytes. A nil Bytes means no limit. It is safe for concurrent use.
type Bytes struct {
	limit int64
	taken atomic.Int64
}

// NewBytes returns a Bytes with a limit in bytes.
func NewBytes(limit int64) *Bytes { return &Bytes{limit: limit} }

// Take takes n bytes until Give is called. It returns false, and takes nothing, if fewer are left.
func (b *Bytes) Take(n int64) bool {
	if b == nil || b.taken.Add(n) <= b.limit {
		return true
	}
	b.taken.Add(-n)
	return false
}

// Give gives n bytes back.
func (b *Bytes) Give(n int64) {
	if b != nil {
		b.taken.Add(-n)
	}
}

// Taken returns the bytes that are taken.
func (b *Bytes) Taken() int64 { return b.taken.Load() }
