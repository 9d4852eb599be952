package page

import "sync"

// Feed has the newest picture. All methods are safe for concurrent use.
type Feed struct {
	mu      sync.Mutex
	picture Picture
	version int
	changed chan struct{}
}

// NewFeed returns a Feed without a picture.
func NewFeed() *Feed { return &Feed{changed: make(chan struct{})} }

// Set replaces the picture, which is not changed afterwards.
func (f *Feed) Set(p Picture) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.picture != nil && len(f.picture.changes(p)) == 0 {
		return
	}
	f.picture, f.version = p, f.version+1
	close(f.changed)
	f.changed = make(chan struct{})
}

// Get returns the newest picture, nil before the first, and a channel that is closed at the next one.
func (f *Feed) Get() (p Picture, version int, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.picture, f.version, f.changed
}

// changes returns the parts that differ in another picture; those that it does not have are null.
func (p Picture) changes(next Picture) Picture {
	changes := Picture{}
	for key, part := range next {
		if string(p[key]) != string(part) {
			changes[key] = part
		}
	}
	for key := range p {
		if _, is := next[key]; !is {
			changes[key] = []byte("null")
		}
	}
	return changes
}
