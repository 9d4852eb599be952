package record

import (
	"slices"
	"strings"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
)

// Limits for one identity in the cache, so that it does not displace the cached answers of the node or of the
// clients of Services.
const (
	// ofClient and ofOthers are the divisors of the cache's size for each client of Services, and for each
	// other identity. The objects of the pool count as another identity.
	ofClient, ofOthers = 2, 4
	// maxOthers is the most scopes of each other identity.
	maxOthers = 256
	// maxReviews is the most reviews of tokens and permissions by the node: the kubelet requests one for every
	// client that sends it a request.
	maxReviews = 500
)

// Shares returns the shares of a cache of maxBytes. Scopes of the node are removed last. Before them come the
// scopes of clients of Services (user names), and of the pool while the hub leads; scopes of all others are
// removed first.
func Shares(maxBytes int64, clients []string) func(key string) cache.Share {
	return func(key string) cache.Share {
		name, scope, _ := strings.Cut(key, "\n")
		caller := identity.Caller{Name: name, IsNode: IsOfNode(key)}
		switch {
		case strings.HasPrefix(scope, QuestionPrefix+"/apis/") && caller.IsNode:
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
