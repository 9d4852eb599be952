package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// maxAnswer bounds what is read of an answer of the cloud, in bytes.
const maxAnswer = 1 << 20

// delegate speaks for the pool in the cloud, as a ServiceAccount whose token the nodes of the pool may read. It is safe for
// concurrent use.
type delegate struct {
	// send sends a request to the cloud, as the node or with the token that it has.
	send func(r *http.Request, asNode bool) (*http.Response, error)

	mu sync.Mutex
	// of is the pool of the token.
	of, token string
}

// refusedError is the error of a request that the cloud refuses.
type refusedError struct {
	code int
	text string
}

// Error implements error.
func (e *refusedError) Error() string { return e.text }

// do sends a request for a pool, with the token that was read last, and once more with a new one if the cloud does not take
// that. It returns the answer; a refusedError is any other one than a success.
func (d *delegate) do(ctx context.Context, pool, method, path, contentType string, body []byte) ([]byte, error) {
	last := ""
	for {
		token, err := d.tokenOf(ctx, pool, last)
		if err != nil {
			return nil, err
		}
		code, answer, err := d.ask(ctx, method, path, contentType, body, token)
		if err != nil || code/100 == 2 {
			return answer, err
		}
		if code != http.StatusUnauthorized || last != "" {
			return nil, &refusedError{code, fmt.Sprintf("%s %s as %s: the cloud answers %d: %s", method, path, governance.Delegate(pool), code, messageOf(answer))}
		}
		last = token
	}
}

// tokenOf returns the token of a pool: what was read last, unless that is the one that the cloud has not taken.
func (d *delegate) tokenOf(ctx context.Context, pool, refused string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.token != "" && d.of == pool && d.token != refused {
		return d.token, nil
	}
	d.of, d.token = pool, ""
	name := governance.Delegate(pool)
	code, answer, err := d.ask(ctx, http.MethodGet, "/api/v1/namespaces/"+governance.Namespace+"/secrets/"+name, "", nil, "")
	if err != nil {
		return "", err
	}
	if code != http.StatusOK {
		return "", fmt.Errorf("reading the token of %s: the cloud answers %d: %s", name, code, messageOf(answer))
	}
	var secret corev1.Secret
	if json.Unmarshal(answer, &secret) != nil || len(secret.Data[governance.TokenField]) == 0 { // the error could have a part of the token
		return "", fmt.Errorf("reading the token of %s: there is none in the Secret yet", name)
	}
	d.token = string(secret.Data[governance.TokenField])
	return d.token, nil
}

// ask asks with a token, or as the node with "".
func (d *delegate) ask(ctx context.Context, method, path, contentType string, body []byte, token string) (code int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Accept", "application/json")
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := d.send(r, token == "")
	if err != nil {
		return 0, nil, fmt.Errorf("asking the cloud: %w", err)
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("asking the cloud: %w", err)
	}
	return response.StatusCode, answer, nil
}

// messageOf returns why the cloud refuses something.
func messageOf(answer []byte) string {
	var status metav1.Status
	if json.Unmarshal(answer, &status) != nil {
		return ""
	}
	return status.Message
}

// pulse tells the cloud, while the hub leads, that the pool is there, and how it is.
func (p *Pool) pulse(ctx context.Context, d *delegate) {
	for wait := governance.PulseEvery; ; wait = governance.PulseEvery {
		err := p.sendPulse(ctx, d)
		if errors.Is(err, errNothingTaken) {
			wait = forwardEvery
		}
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		before := p.pulseProblem
		p.pulseProblem = ""
		if err != nil {
			p.pulseProblem = err.Error()
		}
		if p.pulseProblem != before {
			p.options.Log.Info("Whether the cloud hears how the pool is has changed", "isHeard", err == nil, "reason", p.pulseProblem)
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// errNothingTaken is the error of a pulse that is not sent.
var errNothingTaken = errors.New("nothing that is forwarded for other nodes is taken")

// sendPulse writes the Lease of the pool. What the coordinator does not know yet stays as it is there.
func (p *Pool) sendPulse(ctx context.Context, d *delegate) error {
	pool := p.options.Pool()
	if pool == "" { // the node has just left it
		return nil
	}
	p.mu.Lock()
	state, mayPulse := p.state, p.mayPulse
	p.mu.Unlock()
	if !mayPulse { // whoever hears the pulse believes that what the leader does not forward was not said
		return errNothingTaken
	}
	if !p.lead.Leads() { // the round is not over that ends this
		return nil
	}
	lease := map[string]any{"spec": map[string]any{"holderIdentity": p.options.NodeName, "renewTime": metav1.NewMicroTime(p.now())}}
	if state != nil {
		text, err := json.Marshal(state)
		if err != nil {
			return err
		}
		lease["metadata"] = map[string]any{"annotations": map[string]string{governance.PulseAnnotation: string(text)}}
	}
	text, err := json.Marshal(lease)
	if err != nil {
		return err
	}
	_, err = d.do(ctx, pool, http.MethodPatch, leasesOf(governance.Namespace)+governance.Pulse(pool), string(types.MergePatchType), text)
	return err
}

// confirm tells the cloud, as the node, that the pool was right to speak for it. A pool that speaks for a node that reaches the
// cloud all the time is not believed for a while, and a node that is cut off again soon would suffer from that.
func (p *Pool) confirm(ctx context.Context) {
	if !p.isSpokenFor || !p.options.HasCloud() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, governance.BeatEvery)
	defer cancel()
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, governance.CutOffUntilAnnotation, p.now().UTC().Format(time.RFC3339))
	code, _, err := (&delegate{send: p.options.Send}).ask(ctx, http.MethodPatch, leasesOf(corev1.NamespaceNodeLease)+p.options.NodeName, "application/merge-patch+json", body, "")
	p.isSpokenFor = err != nil || code == http.StatusTooManyRequests || code/100 == 5
}
