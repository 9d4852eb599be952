// Package cache stores responses of an API server on disk, so that atoll-hub can answer while the API server is
// unreachable. It does not know HTTP or Kubernetes: it stores scopes. A scope has a key, a head (small, for
// example the metadata of a list) and items, each with an id. All of them are opaque to this package.
//
// # Guarantees
//
// A View always shows one state that the scope had, never a mixture of two states. Open finds such a state or
// none, even if files are truncated or damaged, the process is killed, or the power fails.
//
// A write that has returned survives a kill of the process. A power failure can lose the writes of the last
// SyncEvery and of the fsync calls then in progress: the scope then has an earlier state. A scope that was
// removed within that time can come back. Close makes all writes durable, and Writer.Flush waits until they
// are. Only the head set by Writer.Advance stays in memory until the next event.
//
// A state can be older than the last event: View.Written returns when it was written, and View.Stale whether
// this process failed to write a later one. The caller decides whether to answer with it.
//
// # Files
//
// Each scope is one log in one directory. The checksum of a record also covers its position and a random number
// of the file, so that a record is valid only in its place. The state of a scope is the longest valid prefix of
// its log. No byte of a log is overwritten.
//
//	<hash of the key>.<generation>.log    preamble, key, items, end of the snapshot, events …
//	<number>.tmp                          a snapshot that is not complete
//	lock                                  locked while a store is open
//
// A new snapshot becomes a log of the next generation. The previous log is removed once the new one is durable:
// at most SyncEvery later, and not by the caller of Commit. Open uses the newest generation with a complete
// snapshot.
//
// An event may change several items (see Store.Update): it is one write, and is valid only with its last
// record. A version of this package that does not know such an event reads the state before it.
//
// A log is rewritten when it has more dead bytes than live ones, so each byte of an event is written about
// twice at most, however long the log is in use.
//
// # Failures
//
// A write that fails (full disk, I/O error, read-only file system) returns its error and ends the writer. The
// scope keeps its last good state, marked by View.Stale, until the next Commit or Resume. Without that state an
// offline node would have no data. The head tells the caller which version of the list the state is.
//
// # Locks
//
// Store.mu guards everything in memory and is never held during I/O. scope.io is held while the log of one
// scope is written. A disk that hangs therefore blocks writers of the affected scopes, reads of values, and
// Close, but not Store.View, Store.Scopes or other writers.
package cache
