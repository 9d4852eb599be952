package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// plainName is the process that only passes requests on, and the name of its sides.
const plainName = "plain"

// startPlain starts a proxy that passes the requests of all clients on as the near node, and keeps nothing:
// what a second TLS connection costs at least.
func (h *hubBench) startPlain(ctx context.Context, kubeconfig string) error {
	now := time.Now()
	ca, err := certs.NewCA(now)
	if err != nil {
		return err
	}
	issued, err := certs.Issue(ca, certs.Leaf{CommonName: plainName, Names: []string{"127.0.0.1"}}, now)
	if err != nil {
		return err
	}
	config, err := os.ReadFile(kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig of the plain proxy: %w", err)
	}
	dir := filepath.Join(h.cluster.Dir(), plainName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of the plain proxy: %w", err)
	}
	for file, content := range map[string][]byte{"tls.crt": issued.Cert, "tls.key": issued.Key, "ca.crt": ca.Cert, "kubeconfig": config} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			return fmt.Errorf("writing for the plain proxy: %w", err)
		}
	}
	port, err := devcluster.FreePort()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	h.plain = devcluster.Endpoint{URL: "https://" + address, CAFile: filepath.Join(dir, "ca.crt")}
	return h.cluster.StartProcess(ctx, devcluster.ProcessSpec{
		Name: plainName, Path: program, Args: []string{"-proxy", dir, "-profile-address", address},
		HealthURL: h.plain.URL + "/readyz", HealthCAFile: h.plain.CAFile,
	})
}

// servePlain is that proxy, with the files of a directory.
func servePlain(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(o.proxy, "kubeconfig"))
	if err != nil {
		return fmt.Errorf("reading a kubeconfig: %w", err)
	}
	tls, err := clientrest.TLSConfigFor(config)
	if err != nil {
		return fmt.Errorf("reading a kubeconfig: %w", err)
	}
	to, err := url.Parse(config.Host)
	if err != nil {
		return fmt.Errorf("reading a kubeconfig: %w", err)
	}
	server := &http.Server{Addr: o.profile, ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: tls},
	}}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	err = server.ListenAndServeTLS(filepath.Join(o.proxy, "tls.crt"), filepath.Join(o.proxy, "tls.key"))
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}
