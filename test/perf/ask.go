package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// asker calls an extender over mutual TLS, one request after the other, as kube-scheduler
// does.
type asker struct {
	client *http.Client
	url    string
}

// newAsker returns an asker with the certificates in a directory.
func newAsker(url, dir string) (*asker, error) {
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading kube-scheduler's certificates: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, corev1.TLSCertKey), filepath.Join(dir, corev1.TLSPrivateKeyKey))
	if err != nil {
		return nil, fmt.Errorf("reading kube-scheduler's certificates: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return askerOf(url, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}), nil
}

func askerOf(url string, config *tls.Config) *asker {
	return &asker{url: url, client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: config}}}
}

// filterAnswer has the fields of the filter's answer that kube-scheduler reads.
type filterAnswer struct {
	NodeNames *[]string
	Error     string
}

// question returns the body of a filter request with node names.
func question(pod *corev1.Pod, names []string) ([]byte, error) {
	body, err := json.Marshal(struct {
		Pod       *corev1.Pod
		NodeNames []string
	}{pod, names})
	if err != nil {
		return nil, fmt.Errorf("encoding a filter request: %w", err)
	}
	return body, nil
}

// ask posts a filter request and returns the raw answer and the time that it took.
func (a *asker) ask(ctx context.Context, body []byte) (reply []byte, took time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/scheduler/filter", bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("asking the extender: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	began := time.Now()
	response, err := a.client.Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("asking the extender: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	reply, err = io.ReadAll(response.Body)
	took = time.Since(began)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the extender's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("asking the extender: status %d: %s", response.StatusCode, reply)
	}
	return reply, took, nil
}

// kept sends a filter request and returns the nodes that the filter keeps.
func (a *asker) kept(ctx context.Context, body []byte) ([]string, error) {
	reply, _, err := a.ask(ctx, body)
	if err != nil {
		return nil, err
	}
	var answer filterAnswer
	if err := json.Unmarshal(reply, &answer); err != nil {
		return nil, fmt.Errorf("decoding the extender's answer: %w", err)
	}
	if answer.Error != "" || answer.NodeNames == nil {
		return nil, fmt.Errorf("asking the extender: it answers %.200s", reply)
	}
	return *answer.NodeNames, nil
}

// percentile returns the smallest value that at least the share p of the values does not
// exceed. There must be at least one value.
func percentile(values []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
