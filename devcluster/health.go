package devcluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// probeTimeout bounds one health probe: a paused process accepts the connection and does
// not answer.
const probeTimeout = 5 * time.Second

// healthCheck is a URL that answers 200 when a process is healthy.
type healthCheck struct {
	URL string `json:"url"`
	// CAFile verifies the server of an https URL.
	CAFile string `json:"caFile,omitempty"`
	// CertFile and KeyFile are a client certificate, if one is needed.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

func (h *healthCheck) probe(ctx context.Context) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if h.CAFile != "" {
		pem, err := os.ReadFile(h.CAFile)
		if err != nil {
			return fmt.Errorf("reading authority: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return errors.New("reading authority: no certificate in " + h.CAFile)
		}
	}
	if h.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(h.CertFile, h.KeyFile)
		if err != nil {
			return fmt.Errorf("loading client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: probeTimeout}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL, nil)
	if err != nil {
		return fmt.Errorf("making health request: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 512))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", h.URL, response.Status, body)
	}
	return nil
}
