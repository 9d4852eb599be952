// Package identity determines the caller of a request to the hub. Only the node itself may use the node's
// certificate: a pod that reaches the hub gets nothing by it. The package must not know what is requested.
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

// Caller is the identity that sends a request.
type Caller struct {
	// Name is the identity for which responses are cached. For a token it is read from the token, and is proven
	// only when an API server accepts the token: see Tokens.
	Name string
	// IsNode is true for the node itself, for which the hub uses the node's certificate.
	IsNode bool
	// Token is the bearer token, "" for the node.
	Token string
}

// node is the name of the node as a caller, and pool its name when it reads objects of its pool.
const node, pool = "node", "pool"

// OfNode returns the node as a caller. Only the hub itself may use it without credentials.
func OfNode() Caller { return Caller{Name: node, IsNode: true} }

// OfPool returns the node as a caller that reads objects of its pool. These are cached separately from the
// objects that the node itself reads. Only the hub itself may use it.
func OfPool() Caller { return Caller{Name: pool, IsNode: true} }

// User returns the Kubernetes user name of a caller, or "" if its token is opaque. The name is proven only when
// an API server accepts the token.
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

// ErrNobody is the error of a request without valid credentials.
var ErrNobody = errors.New("no credentials: send a bearer token or this node's client certificate")

// Recognizer determines the callers of requests.
type Recognizer struct {
	// NodeName is the name of the node.
	NodeName string
	// Tokens has the secret for hashing tokens.
	Tokens *Tokens
	// ClientRoots returns the CAs of client certificates.
	ClientRoots func() *x509.CertPool
	// Renews reports whether a certificate of the node could have been renewed: the cloud has been reachable
	// for long enough. Otherwise a certificate that has expired, or is not valid yet, is accepted: the clock
	// may be wrong after a power failure.
	Renews func() bool
	// Now is the clock.
	Now func() time.Time

	mu sync.Mutex
	// by are the CAs that verified the certificates in verified, which has their validity. This cache is needed
	// because verifying a certificate takes as long as the rest of a small request.
	by       *x509.CertPool
	verified map[[sha256.Size]byte]validity
}

// validity is the time in which all certificates of a chain are valid.
type validity struct{ from, to time.Time }

// maxVerified is the most certificates in Recognizer.verified. A node has one, and gets a new one a few times a
// year.
const maxVerified = 16

// Recognize returns the caller of a request, or an error that wraps ErrNobody. If a client sends a token and a
// certificate, the token is used, because the client chose to send it. A header that an API server may parse
// differently is rejected, so that Caller.Token is the token that the API server checks.
func (r *Recognizer) Recognize(q *http.Request) (Caller, error) {
	if headers := q.Header.Values("Authorization"); len(headers) > 0 {
		kind, token, _ := strings.Cut(headers[0], " ")
		if len(headers) > 1 || !strings.EqualFold(kind, "Bearer") || !isToken(token) {
			return Caller{}, fmt.Errorf("the header Authorization is not a single bearer token: %w", ErrNobody)
		}
		return Caller{Name: r.nameOf(token), Token: token}, nil
	}
	if q.TLS == nil || len(q.TLS.PeerCertificates) == 0 {
		return Caller{}, ErrNobody
	}
	if err := r.isNode(q.TLS.PeerCertificates); err != nil {
		return Caller{}, fmt.Errorf("the client certificate is not this node's (%w): %w", err, ErrNobody)
	}
	return OfNode(), nil
}

// isToken reports whether a string has only the characters of a bearer token: RFC 6750, section 2.1.
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
		return fmt.Errorf("its common name is %q, not %q", leaf.Subject.CommonName, want)
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
		h.Write(c.Raw) // a certificate contains its own length
	}
	h.Sum(sum[:0])
	return sum
}

// remember records that a chain was verified by CAs.
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

// timely are the claims that differ between the tokens of one user: those of OpenID Connect, Keycloak's
// session_state, and Microsoft Entra's aio, rh and uti.
var timely = []string{"exp", "iat", "nbf", "jti", "auth_time", "nonce", "sid", "at_hash", "c_hash", "session_state", "aio", "rh", "uti"}

// ofAccount is the prefix of the subject of ServiceAccount tokens.
const ofAccount = "system:serviceaccount:"

// nameOf returns the identity that a token claims. For a ServiceAccount that is the subject. For other users,
// an API server may grant permissions by any claim, such as groups, so the identity includes a hash of all
// claims except the timely ones. For a token that is not a JWT it is a hash of the token. Hashes are keyed with
// the secret of Tokens, because identities are stored on disk and shown in the status.
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
				rest, err := json.Marshal(claims) // the keys are sorted
				if err == nil {
					return "subject:" + issuer + "+" + r.Tokens.hash(string(rest))[:claimsShown] + "#" + subject
				}
			}
		}
	}
	return "token:" + r.Tokens.hash(token)
}

// claimsShown is how many digits of the hash of the claims are part of an identity.
const claimsShown = 32

// maxTokens is the most tokens in Tokens.known.
const maxTokens = 10000

// Tokens records which tokens an API server has accepted, for use while offline. It stores only a keyed hash of
// each token. It is safe for concurrent use.
type Tokens struct {
	secret []byte

	changed chan struct{} // has an element if a token became known or was forgotten

	mu    sync.Mutex
	known map[string]time.Time // time of the last acceptance, by hash
	// refused is the time since which a known token is refused, by hash.
	refused map[string]time.Time
}

// NewTokens returns Tokens with the known tokens of an earlier process: see Known.
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

// Accepted records that an API server accepted a token.
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

// forgetAfter is how long API servers must refuse a token, without accepting it in between, before it is
// forgotten. An API server that is starting may refuse all tokens for a moment.
const forgetAfter = time.Minute

// Refused records that an API server refused a token. The token is forgotten after forgetAfter.
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

// Changed returns a channel. It has an element if a token became known or was forgotten since the last receive.
func (t *Tokens) Changed() <-chan struct{} { return t.changed }

// Knows reports whether an API server accepted the token the last time. A token that has expired since is still
// known: it cannot be renewed while offline.
func (t *Tokens) Knows(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.known[t.hash(token)]
	return known
}

// Known returns the hashes of the known tokens, with the time of the last acceptance.
func (t *Tokens) Known() map[string]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := make(map[string]time.Time, len(t.known))
	for hash, at := range t.known {
		known[hash] = at
	}
	return known
}
