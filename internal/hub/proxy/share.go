package proxy

import (
	"slices"
	"strings"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
)

// Bounds on what is kept for one identity, so that nobody takes the place of the node's answers, nor of those
// to the clients of Services.
const (
	// ofClient and ofOthers are the parts of the cache's size that each client of Services, and each other
	// identity, may take. What belongs to the pool is another identity's.
	ofClient, ofOthers = 2, 4
	// maxOthers bounds the scopes of each other identity.
	maxOthers = 256
	// maxReviews bounds the reviews of tokens and rights that the node has asked for: for anybody who asks the
	// kubelet something.
	maxReviews = 500
)

// Shares returns which part of a cache of maxBytes is whose. What the node reads gives way last, and before that what
// the clients of Services read, which are users, and what the hub reads of the pool while it leads.
func Shares(maxBytes int64, clients []string) func(key string) cache.Share {
	return func(key string) cache.Share {
		name, scope, _ := strings.Cut(key, "\n")
		caller := identity.Caller{Name: name, IsNode: isOfNode(key)}
		switch {
		case strings.HasPrefix(scope, repeatablePrefix+"/apis/") && caller.IsNode:
			return cache.Share{Owner: name + " reviews", MaxScopes: maxReviews, MaxBytes: maxBytes / ofOthers, Rank: 1}
		case caller.IsNode:
			return cache.Share{Owner: name, Rank: 2}
		case name == identity.OfPool().Name:
			return cache.Share{Owner: name, MaxBytes: maxBytes / ofOthers, Rank: 1}
		case slices.Contains(clients, caller.User("")):
			return cache.Share{Owner: name, MaxBytes: maxBytes / ofClient, Rank: 1}
		default:
			return cache.Share{Owner: name, MaxScopes: maxOthers, MaxBytes: maxBytes / ofOthers}
		}
	}
}
