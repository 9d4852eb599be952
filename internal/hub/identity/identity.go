// Package identity tells who sends a request to the hub, and proves it. The node's own certificate
// is used for the node only: a pod that reaches the hub gets nothing by it. It must not know what
// is asked for.
package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Caller is who sends a request.
type Caller struct {
	// Name is the identity whose answers are kept together. That of a token is what the token says,
	// and is proven only by an API server that accepts it: see Tokens.
	Name string
	// IsNode is true for the node itself, for which the hub uses the node's certificate.
	IsNode bool
	// Token is the bearer token, "" for the node.
	Token string
}

// node is the name of the node as a caller, and pool that of the node for what belongs to its pool.
const node, pool = "node", "pool"

// OfNode returns the node as a caller. Only the hub itself may use it without a proof.
func OfNode() Caller { return Caller{Name: node, IsNode: true} }

// OfPool returns the node as a caller that reads what belongs to its pool, which is kept apart from what the node
// needs itself. Only the hub itself may use it.
func OfPool() Caller { return Caller{Name: pool, IsNode: true} }

// User returns the name that the API server has for a caller, as far as its token tells: "" if that is
// opaque. It is proven only by an API server that accepts the token.
func (c Caller) User(nodeName string) string {
	if c.IsNode {
		return "system:node:" + nodeName
	}
	if subject, is := strings.CutPrefix(c.Name, "subject:"); is {
		if _, user, is := strings.Cut(subject, "#"); is {
			return user
		}
	}
	return ""
}

// ErrNobody is the error of a request without a proof of who sends it.
var ErrNobody = errors.New("who asks? Send a bearer token, or the client certificate of this node")

// Recognizer recognizes callers.
type Recognizer struct {
	// NodeName is the name of the node.
	NodeName string
	// Tokens has the secret with which tokens are hashed.
	Tokens *Tokens
	// ClientRoots returns the CAs of client certificates.
	ClientRoots func() *x509.CertPool
	// Renews reports whether a certificate of the node could have been renewed: the cloud has been reachable for
	// long enough. While it could not, one that has expired is accepted, and one that is not valid yet, because the
	// clock may be wrong after a loss of power.
	Renews func() bool
	// Now is the clock.
	Now func() time.Time

	mu sync.Mutex
	// by are the CAs that have verified the certificates in verified, and these from when to when that
	// holds: to verify one takes
	// as long as all else that is done for a small request.
	by       *x509.CertPool
	verified map[[sha256.Size]byte]validity
}

// validity is from when to when all certificates of a chain are valid.
type validity struct{ from, to time.Time }

// maxVerified bounds the certificates that are remembered. A node has one, and a new one some times a
// year.
const maxVerified = 16

// Recognize returns who sends a request, or ErrNobody, wrapped. A token counts before a
// certificate: what a client sends by name is what it means. A header that an API server may read in
// another way is refused, so that the token of a Caller is the one that the API server judges.
func (r *Recognizer) Recognize(q *http.Request) (Caller, error) {
	if headers := q.Header.Values("Authorization"); len(headers) > 0 {
		kind, token, _ := strings.Cut(headers[0], " ")
		if len(headers) > 1 || !strings.EqualFold(kind, "Bearer") || !isToken(token) {
			return Caller{}, fmt.Errorf("the header Authorization is not one bearer token: %w", ErrNobody)
		}
		return Caller{Name: r.nameOf(token), Token: token}, nil
	}
	if q.TLS == nil || len(q.TLS.PeerCertificates) == 0 {
		return Caller{}, ErrNobody
	}
	if err := r.isNode(q.TLS.PeerCertificates); err != nil {
		return Caller{}, fmt.Errorf("the client certificate is not that of this node (%w): %w", err, ErrNobody)
	}
	return OfNode(), nil
}

// isToken reports whether a text has the characters of a bearer token: RFC 6750, section 2.1.
func isToken(text string) bool {
	for _, c := range []byte(text) {
		isLetter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !isLetter && !strings.ContainsRune("-._~+/=", rune(c)) {
			return false
		}
	}
	return text != ""
}

func (r *Recognizer) isNode(chain []*x509.Certificate) error {
	leaf := chain[0]
	if want := "system:node:" + r.NodeName; leaf.Subject.CommonName != want {
		return fmt.Errorf("it is that of %q, not of %q", leaf.Subject.CommonName, want)
	}
	if !slices.Contains(leaf.Subject.Organization, "system:nodes") {
		return errors.New("its organization is not system:nodes")
	}
	at := r.Now()
	if !r.Renews() {
		if at.After(leaf.NotAfter) {
			at = leaf.NotAfter
		}
		if at.Before(leaf.NotBefore) {
			at = leaf.NotBefore
		}
	}
	roots, key := r.ClientRoots(), sumOf(chain)
	r.mu.Lock()
	if r.by != roots {
		r.by, r.verified = roots, nil
	}
	known, is := r.verified[key]
	r.mu.Unlock()
	if is && !at.Before(known.from) && !at.After(known.to) {
		return nil
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	r.remember(roots, key, chains[0])
	return nil
}

// sumOf returns a hash of certificates.
func sumOf(chain []*x509.Certificate) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, c := range chain {
		h.Write(c.Raw) // it has its own length
	}
	h.Sum(sum[:0])
	return sum
}

// remember remembers that a chain was verified by CAs.
func (r *Recognizer) remember(by *x509.CertPool, key [sha256.Size]byte, chain []*x509.Certificate) {
	v := validity{chain[0].NotBefore, chain[0].NotAfter}
	for _, c := range chain[1:] {
		if c.NotBefore.After(v.from) {
			v.from = c.NotBefore
		}
		if c.NotAfter.Before(v.to) {
			v.to = c.NotAfter
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by != by {
		return
	}
	if r.verified == nil || len(r.verified) >= maxVerified {
		r.verified = map[[sha256.Size]byte]validity{}
	}
	r.verified[key] = v
}

// timely are the claims that differ from one token of somebody to the next: those of OpenID Connect, Keycloak's
// session_state, and Microsoft Entra's aio, rh and uti.
var timely = []string{"exp", "iat", "nbf", "jti", "auth_time", "nonce", "sid", "at_hash", "c_hash", "session_state", "aio", "rh", "uti"}

// ofAccount begins the subject of the tokens of ServiceAccounts.
const ofAccount = "system:serviceaccount:"

// nameOf returns the identity that a token claims, or for a token that is no JWT, a hash of it. Of a
// ServiceAccount that is the subject. An API server may give others their rights by any claim, such as
// groups, so all claims are part of theirs but those that are timely. A hash is made with the secret of
// the tokens, because it is on disk and in the status.
func (r *Recognizer) nameOf(token string) string {
	if parts := strings.Split(token, "."); len(parts) == 3 {
		claims := map[string]any{}
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil && json.Unmarshal(payload, &claims) == nil {
			issuer, _ := claims["iss"].(string)
			subject, _ := claims["sub"].(string)
			switch {
			case strings.HasPrefix(subject, ofAccount):
				return "subject:" + issuer + "#" + subject
			case subject != "":
				for _, claim := range timely {
					delete(claims, claim)
				}
				rest, err := json.Marshal(claims) // its keys are sorted
				if err == nil {
					return "subject:" + issuer + "+" + r.Tokens.hash(string(rest))[:claimsShown] + "#" + subject
				}
			}
		}
	}
	return "token:" + r.Tokens.hash(token)
}

// claimsShown is how many digits of the hash of claims are part of an identity.
const claimsShown = 32

// maxTokens bounds the tokens that are remembered.
const maxTokens = 10000

// Tokens remembers which tokens an API server has accepted, so that they are known while it is
// away. It keeps no token, only a hash with a secret. It is safe for concurrent use.
type Tokens struct {
	secret []byte

	changed chan struct{} // has an element if a token became known or was forgotten

	mu    sync.Mutex
	known map[string]time.Time // when it was last accepted, by hash
	// refused is since when known tokens are refused, by hash.
	refused map[string]time.Time
}

// NewTokens returns a memory of tokens with what Known returned earlier.
func NewTokens(secret []byte, known map[string]time.Time) *Tokens {
	t := &Tokens{secret: secret, changed: make(chan struct{}, 1), known: map[string]time.Time{}}
	for hash, at := range known {
		t.known[hash] = at
	}
	return t
}

func (t *Tokens) hash(token string) string {
	h := hmac.New(sha256.New, t.secret)
	h.Write([]byte(token))
	return hex.EncodeToString(h.Sum(nil))
}

// Accepted remembers that an API server accepted a token.
func (t *Tokens) Accepted(token string, at time.Time) (isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hash := t.hash(token)
	_, known := t.known[hash]
	t.known[hash] = at
	delete(t.refused, hash)
	if !known {
		t.tell()
	}
	if len(t.known) > maxTokens {
		oldest := hash
		for h, at := range t.known {
			if at.Before(t.known[oldest]) {
				oldest = h
			}
		}
		delete(t.known, oldest)
		delete(t.refused, oldest)
	}
	return !known
}

// forgetAfter is for how long an API server must refuse a token, with no success in between, until it is
// forgotten. One that starts may refuse all for a moment.
const forgetAfter = time.Minute

// Refused notes that an API server refused a token. It is forgotten once that lasts for forgetAfter.
func (t *Tokens) Refused(token string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hash := t.hash(token)
	if _, known := t.known[hash]; !known {
		return
	}
	since, is := t.refused[hash]
	switch {
	case !is:
		if t.refused == nil {
			t.refused = map[string]time.Time{}
		}
		t.refused[hash] = at
	case at.Sub(since) >= forgetAfter:
		delete(t.known, hash)
		delete(t.refused, hash)
		t.tell()
	}
}

func (t *Tokens) tell() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// Changed returns a channel that has an element once a token has become known or was forgotten since
// the last one was received.
func (t *Tokens) Changed() <-chan struct{} { return t.changed }

// Knows reports whether an API server accepted the token when it last saw it. A token that has
// expired since counts: nobody can renew it while the cloud is away.
func (t *Tokens) Knows(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.known[t.hash(token)]
	return known
}

// Known returns the hashes of the known tokens, and when they were last accepted.
func (t *Tokens) Known() map[string]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := make(map[string]time.Time, len(t.known))
	for hash, at := range t.known {
		known[hash] = at
	}
	return known
}
