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

// maxAnswer is how many bytes are read of a response of the cloud.
const maxAnswer = 1 << 20

// delegate sends requests for the pool to the cloud, as a ServiceAccount whose token the nodes of the pool may
// read. It is safe for concurrent use.
type delegate struct {
	// send sends a request to the cloud, as the node or with the token in its headers.
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

// do sends a request for a pool with the last token, and once more with a new token if the cloud refuses that
// one. It returns the body of a successful response; other responses are a refusedError.
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
			return nil, &refusedError{code, fmt.Sprintf("%s %s as %s: the cloud returned %d: %s", method, path, governance.Delegate(pool), code, messageOf(answer))}
		}
		last = token
	}
}

// tokenOf returns the token of a pool. It reads a new one if the last one is the refused one.
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
		return "", fmt.Errorf("reading the token of %s: the cloud returned %d: %s", name, code, messageOf(answer))
	}
	var secret corev1.Secret
	if json.Unmarshal(answer, &secret) != nil || len(secret.Data[governance.TokenField]) == 0 { // the error could contain a part of the token
		return "", fmt.Errorf("reading the token of %s: the Secret has no token yet", name)
	}
	d.token = string(secret.Data[governance.TokenField])
	return d.token, nil
}

// ask sends a request with a token, or as the node if the token is "".
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
		return 0, nil, fmt.Errorf("sending a request to the cloud: %w", err)
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("sending a request to the cloud: %w", err)
	}
	return response.StatusCode, answer, nil
}

// messageOf returns the error message in a response of the cloud.
func messageOf(answer []byte) string {
	var status metav1.Status
	if json.Unmarshal(answer, &status) != nil {
		return ""
	}
	return status.Message
}

// pulse reports the pool and its state to the cloud, while the hub leads.
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
			p.options.Log.Info("The state of the pool's reports to the cloud changed", "isHeard", err == nil, "reason", p.pulseProblem)
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// errNothingTaken is returned instead of sending a pulse.
var errNothingTaken = errors.New("the cloud accepts nothing that is forwarded for other nodes")

// sendPulse writes the Lease of the pool. Without a state from the coordinator, the state in the Lease does not
// change.
func (p *Pool) sendPulse(ctx context.Context, d *delegate) error {
	pool := p.options.Pool()
	if pool == "" { // the node has just left its pool
		return nil
	}
	p.mu.Lock()
	state, mayPulse := p.state, p.mayPulse
	p.mu.Unlock()
	if !mayPulse { // readers of the pulse assume that the leader forwards all reports
		return errNothingTaken
	}
	if !p.lead.Leads() { // the round that stops this goroutine has not ended
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

// confirm tells the cloud, as the node, that the report of the pool about this node was right. The cloud
// ignores for a while a pool that reports nodes which reach the cloud all the time, and this node would suffer
// if it is cut off again soon.
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
