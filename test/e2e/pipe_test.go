package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pipe forwards bytes between two programs that use TLS with each other, and delays or
// holds the answers for a test.
type pipe struct {
	address string
	target  string
	ctx     context.Context
	delay   atomic.Int64 // the delay of each answer, in nanoseconds
	valve   valve        // while it is shut no answer passes
}

// slow delays each answer by the given time.
func (p *pipe) slow(d time.Duration) { p.delay.Store(int64(d)) }

// hang holds all answers until heal.
func (p *pipe) hang() { p.valve.close() }

// heal forwards everything again, including the held answers.
func (p *pipe) heal() {
	p.slow(0)
	p.valve.open()
}

func newPipe(ctx context.Context, target string) (*pipe, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening before %s: %w", target, err)
	}
	p := &pipe{address: listener.Addr().String(), target: target, ctx: ctx}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.carry(conn)
		}
	}()
	return p, nil
}

func (p *pipe) carry(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := (&net.Dialer{}).DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	stop := context.AfterFunc(p.ctx, func() { _, _ = client.Close(), server.Close() })
	defer stop()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close() // the end of one side ends both
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if n > 0 {
			select {
			case <-time.After(time.Duration(p.delay.Load())):
			case <-p.ctx.Done():
				return
			}
			p.valve.pass(p.ctx)
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// relayWebhooks makes the API server reach the webhooks through a pipe.
func relayWebhooks(ctx context.Context, e environment) (*pipe, error) {
	var p *pipe
	redirect := func(u *string) error {
		if u == nil {
			return errors.New("relaying webhooks: one of them has no URL")
		}
		parsed, err := url.Parse(*u)
		if err != nil {
			return fmt.Errorf("relaying webhooks: %w", err)
		}
		if p == nil {
			if p, err = newPipe(ctx, parsed.Host); err != nil {
				return err
			}
		}
		_, port, err := net.SplitHostPort(p.address)
		if err != nil {
			return err
		}
		parsed.Host = net.JoinHostPort(parsed.Hostname(), port)
		*u = parsed.String()
		return nil
	}
	admission := e.kube.AdmissionregistrationV1()
	mutating, err := admission.MutatingWebhookConfigurations().Get(ctx, "atoll-pods", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("relaying webhooks: %w", err)
	}
	for i := range mutating.Webhooks {
		if err := redirect(mutating.Webhooks[i].ClientConfig.URL); err != nil {
			return nil, err
		}
	}
	if _, err := admission.MutatingWebhookConfigurations().Update(ctx, mutating, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("relaying webhooks: %w", err)
	}
	validating, err := admission.ValidatingWebhookConfigurations().Get(ctx, "atoll-policies", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("relaying webhooks: %w", err)
	}
	for i := range validating.Webhooks {
		if err := redirect(validating.Webhooks[i].ClientConfig.URL); err != nil {
			return nil, err
		}
	}
	if _, err := admission.ValidatingWebhookConfigurations().Update(ctx, validating, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("relaying webhooks: %w", err)
	}
	return p, nil
}
