package cache

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// shares gives the scopes of node and of listed, the first words of their keys, ranks, and those of others bounds.
func shares(key string) Share {
	owner, _, _ := strings.Cut(key, " ")
	switch owner {
	case "node":
		return Share{Owner: owner, Rank: 2}
	case "listed":
		return Share{Owner: owner, Rank: 1}
	default:
		return Share{Owner: owner, MaxBytes: 40_000, MaxScopes: 3}
	}
}

func sorted(keys []string) []string {
	slices.Sort(keys)
	return keys
}

// TestAnOwnerHasNoMoreThanItsShare: each write removes older scopes of the owner beyond its share, also if a
// scope grows by its events.
func TestAnOwnerHasNoMoreThanItsShare(t *testing.T) {
	s := openOn(t, newDisk(), Options{SyncEvery: time.Hour, MaxBytes: 1_000_000, ShareOf: shares})
	replace(t, s, "node 1", sized(15_000))
	replace(t, s, "a 1", sized(15_000))
	w := replace(t, s, "a 2", sized(15_000))
	if diff := cmp.Diff([]string{"a 1", "a 2", "node 1"}, sorted(keysOf(s))); diff != "" {
		t.Fatal(diff)
	}
	must(t, w.Put("ns/more", make([]byte, 4_000), nil))
	must(t, w.Put("ns/more", make([]byte, 4_000), nil))
	must(t, w.Put("ns/more", make([]byte, 4_000), nil))
	if diff := cmp.Diff([]string{"a 2", "node 1"}, sorted(keysOf(s))); diff != "" {
		t.Fatal(diff)
	}
	for _, key := range []string{"a 3", "a 4", "a 5"} {
		replace(t, s, key, sized(10))
	}
	if diff := cmp.Diff([]string{"a 3", "a 4", "a 5", "node 1"}, sorted(keysOf(s))); diff != "" {
		t.Fatal(diff)
	}
	if _, err := s.Replace("a 6", nil, sized(21_000).pairs); !errors.Is(err, ErrTooLarge) {
		t.Errorf("the error of a scope larger than half of the share is %v", err)
	}
}

// TestScopesOfTheHighestRankAreRemovedLast: however much space the scopes of other owners take together.
func TestScopesOfTheHighestRankAreRemovedLast(t *testing.T) {
	d := newDisk()
	o := Options{SyncEvery: time.Hour, MaxBytes: 100_000, ShareOf: shares}
	s := openOn(t, d, o)
	for _, key := range []string{"node 1", "node 2", "listed 1", "a 1", "b 1", "b 2"} {
		replace(t, s, key, sized(14_000))
	}
	replace(t, s, "c 1", sized(14_000))
	replace(t, s, "c 2", sized(14_000))
	if diff := cmp.Diff([]string{"a 1", "b 2", "c 1", "c 2", "listed 1", "node 1", "node 2"}, sorted(keysOf(s))); diff != "" {
		t.Fatal(diff)
	}
	for _, key := range []string{"node 3", "node 4", "node 5", "node 6"} {
		replace(t, s, key, sized(14_000))
	}
	if diff := cmp.Diff([]string{"listed 1", "node 1", "node 2", "node 3", "node 4", "node 5", "node 6"}, sorted(keysOf(s))); diff != "" {
		t.Fatal(diff)
	}
	replace(t, s, "node 7", sized(14_000))
	replace(t, s, "a 1", sized(14_000))
	if diff := cmp.Diff([]string{"node 1", "node 2", "node 3", "node 4", "node 5", "node 6", "node 7"}, sorted(keysOf(s))); diff != "" {
		t.Fatal(diff)
	}
	must(t, s.Close())
	// Also if there is less room later.
	o.MaxScopes = 2
	if diff := cmp.Diff([]string{"node 6", "node 7"}, sorted(keysOf(openOn(t, d, o)))); diff != "" {
		t.Fatal(diff)
	}
}
