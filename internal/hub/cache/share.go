package cache

import "cmp"

// Share limits the part of a store that one owner may use. All scopes of an owner have the same Share.
type Share struct {
	// Owner is the name of the owner. It may be "".
	Owner string
	// MaxBytes and MaxScopes limit the logs of the owner, as Options.MaxBytes and Options.MaxScopes limit those
	// of all owners. 0 means that only the limits of Options apply.
	MaxBytes  int64
	MaxScopes int
	// Rank decides whose scopes are removed when the store exceeds its limits: those of the owner with the
	// lowest rank; among owners of equal rank, of the one that uses the most. Scopes of rank 0 are also removed
	// after Options.MaxIdle.
	Rank int
}

// usage is what an owner uses. It is in Store.owners while the owner has a scope.
type usage struct {
	share  Share
	bytes  int64
	scopes int
}

// isOver reports whether an owner exceeds its share. u may be nil for an owner without scopes.
func (u *usage) isOver() bool {
	return u != nil && (u.share.MaxBytes > 0 && u.bytes > u.share.MaxBytes || u.share.MaxScopes > 0 && u.scopes > u.share.MaxScopes)
}

func (s *Store) shareOf(key string) Share {
	if s.max.ShareOf == nil {
		return Share{}
	}
	return s.max.ShareOf(key)
}

// RankOf returns the rank of the share of a scope.
func (s *Store) RankOf(key string) int { return s.shareOf(key).Rank }

// maxLive returns how many live bytes a scope may have.
func (s *Store) maxLive(of Share) int64 {
	if of.MaxBytes > 0 {
		return min(of.MaxBytes, s.max.MaxBytes) / 2
	}
	return s.max.MaxBytes / 2
}

// attachLocked attaches a log to a scope that has none.
func (s *Store) attachLocked(sc *scope, l *log, st *state) {
	l.refs = 1
	sc.log, sc.state = l, st
	u := s.owners[sc.share.Owner]
	if u == nil {
		u = &usage{share: sc.share}
		s.owners[sc.share.Owner] = u
	}
	u.scopes++
	s.logs++
	s.growLocked(sc, l.size)
	s.dirty[l] = sc
}

// detachLocked detaches the log of a scope. The caller releases the log.
func (s *Store) detachLocked(sc *scope) *log {
	l := sc.log
	delete(s.dirty, l)
	s.growLocked(sc, -l.size)
	s.logs--
	u := s.owners[sc.share.Owner]
	if u.scopes--; u.scopes == 0 {
		delete(s.owners, sc.share.Owner)
	}
	sc.log, sc.state = nil, nil
	return l
}

// growLocked adds to the byte counters of the store and of the owner of a scope. by may be negative.
func (s *Store) growLocked(sc *scope, by int64) {
	s.bytes += by
	s.owners[sc.share.Owner].bytes += by
}

// shrinkLocked drops scopes, the least recently used first, until the owner does not exceed its share and the
// store does not exceed its limits. It returns the garbage.
func (s *Store) shrinkLocked(owner string) (rest []garbage) {
	for s.owners[owner].isOver() {
		rest = append(rest, s.dropOldestLocked(owner)...)
	}
	for s.bytes > s.max.MaxBytes || s.logs > s.max.MaxScopes {
		rest = append(rest, s.dropOldestLocked(s.givesWayLocked())...)
	}
	return rest
}

// givesWayLocked returns the owner whose scopes are dropped first: see Share.Rank.
func (s *Store) givesWayLocked() string {
	var last *usage
	for _, u := range s.owners {
		if last == nil {
			last = u
			continue
		}
		more := cmp.Compare(last.scopes, u.scopes)
		if s.bytes > s.max.MaxBytes {
			more = cmp.Compare(last.bytes, u.bytes)
		}
		if cmp.Or(cmp.Compare(u.share.Rank, last.share.Rank), more, cmp.Compare(u.share.Owner, last.share.Owner)) < 0 {
			last = u
		}
	}
	return last.share.Owner
}

func (s *Store) dropOldestLocked(owner string) []garbage {
	var oldest *scope
	for _, sc := range s.scopes {
		if sc.log != nil && sc.share.Owner == owner && (oldest == nil || sc.usedAge < oldest.usedAge) {
			oldest = sc
		}
	}
	s.log.V(2).Info("Removing a scope to stay within the limits of the cache", "bytes", oldest.log.size, "lastUsed", oldest.used)
	return s.dropLocked(oldest, ErrNotFound)
}
